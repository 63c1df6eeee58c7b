"""The metadata of views, and updates of it: Iceberg's view spec, version 1. Pure functions.

A commit does not name the version that it is based on, only the uuid of the view. So updates are applied to
the view as it is, in their order, and concurrent ones stay: a new version gets the next id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID, uuid4

from pydantic import Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import update as changes
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from distop.catalog.updates import LAST, Ids
from distop.errors import InvalidArgument
from distop.lake.layout.metadata import MAX_VIEW_BYTES
from distop.lake.layout.properties import check_properties
from distop.lake.layout.schemas import check_schema

MAX_SQL = 256 << 10
"""Longest SQL of one representation, in characters."""
MAX_REPRESENTATIONS = 20
"""Most representations of one version: one for each dialect."""
MAX_KEPT = 100
"""Most versions that :data:`KEEP` may ask for."""
MAX_LOG = 1000
"""Most entries of the history of versions."""
MAX_UPDATES = 500
"""Most updates of one commit."""
MAX_ID = (1 << 31) - 1
MAX_TIME_MS = (1 << 53) - 1

KEEP, KEEP_DEFAULT = "version.history.num-entries", 10
"""The property for the number of versions to keep."""
MAY_DROP_DIALECTS = "replace.drop-dialect.allowed"


class AddViewVersionUpdate(IcebergBaseModel):
    action: Literal["add-view-version"] = Field(default="add-view-version")
    view_version: ViewVersion = Field(alias="view-version")


class SetCurrentViewVersionUpdate(IcebergBaseModel):
    action: Literal["set-current-view-version"] = Field(default="set-current-view-version")
    view_version_id: int = Field(alias="view-version-id", default=LAST)


class AssertViewUUID(IcebergBaseModel):
    type: Literal["assert-view-uuid"] = Field(default="assert-view-uuid")
    uuid: UUID


ViewUpdate: TypeAlias = Annotated[
    changes.AssignUUIDUpdate
    | changes.UpgradeFormatVersionUpdate
    | changes.AddSchemaUpdate
    | changes.SetLocationUpdate
    | changes.SetPropertiesUpdate
    | changes.RemovePropertiesUpdate
    | AddViewVersionUpdate
    | SetCurrentViewVersionUpdate,
    Field(discriminator="action"),
]
ViewRequirement: TypeAlias = AssertViewUUID


def new_view(
    location: str, schema: Schema, version: ViewVersion, properties: Mapping[str, str]
) -> ViewMetadata:
    """A new view. Raises as :func:`check_view`."""
    first = version.model_copy(update={"version_id": 1, "schema_id": 0})
    metadata = ViewMetadata(
        **_named(
            view_uuid=str(uuid4()),
            format_version=1,
            location=location,
            schemas=[schema.model_copy(update={"schema_id": 0})],
            current_version_id=1,
            versions=[first],
            version_log=[_entry(first.timestamp_ms, 1)],
            properties=dict(properties),
        )
    )
    check_view(metadata)
    return metadata


def view_after(
    base: ViewMetadata, requirements: Iterable[ViewRequirement], updates: Sequence[ViewUpdate], now_ms: int
) -> ViewMetadata:
    """The view after a commit; the same one if that changes nothing.

    Raises ``CommitFailedException`` if a requirement does not hold, and as :func:`check_view`.
    """
    for requirement in requirements:
        if requirement.uuid != UUID(base.view_uuid):
            raise CommitFailedException(
                "Requirement failed: view UUID does not match: "
                f"expected {requirement.uuid} != {base.view_uuid}"
            )
    if len(updates) > MAX_UPDATES:
        raise _bad(f"a commit has at most {MAX_UPDATES} updates", "updates")
    change = _ViewDraft(base, now_ms)
    for update in updates:
        change.take(update)
    after = change.made()
    if after == base:
        return base
    check_view(after, base.properties)
    return after


def check_view(metadata: ViewMetadata, existing: Mapping[str, str] | None = None) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for an invalid view, or one that is too large.

    Parameters
    ----------
    existing:
        Its present properties.
    """
    try:
        UUID(metadata.view_uuid)
    except ValueError:
        raise _bad(f"{metadata.view_uuid[:50]!r} is no UUID", "view-uuid") from None
    check_properties(metadata.properties, metadata.location, existing)
    kept(metadata.properties)
    if len(metadata.version_log) > MAX_LOG or len(metadata.versions) > MAX_KEPT + MAX_KEPT:
        raise _bad("its history is longer than that of a view may be", "versions")
    schemas = {schema.schema_id for schema in metadata.schemas}
    versions = {version.version_id for version in metadata.versions}
    if metadata.current_version_id not in versions:
        raise _bad(f"there is no version {metadata.current_version_id}", "current-version-id")
    for number in schemas | versions:
        if not 0 <= number <= MAX_ID:
            raise _bad(f"{number} is no id of a schema or version", "versions")
    if len(schemas) < len(metadata.schemas) or len(versions) < len(metadata.versions):
        raise _bad("two schemas or versions have the same id", "versions")
    for schema in metadata.schemas:
        check_schema(schema)
    for version in metadata.versions:
        if version.schema_id not in schemas:
            raise _bad(f"version {version.version_id} has the unknown schema {version.schema_id}", "versions")
        _check_version(version)
    if (size := len(encoded_view(metadata))) > MAX_VIEW_BYTES:
        raise _bad(
            f"its metadata takes {size:,} bytes, at most {MAX_VIEW_BYTES:,} are kept",
            "versions",
            f"shorten its SQL, or keep fewer versions by the property {KEEP}",
        )


def encoded_view(metadata: ViewMetadata) -> bytes:
    """The content of its file."""
    return metadata.model_dump_json().encode()


def kept(properties: Mapping[str, str]) -> int:
    """How many versions of a view are kept. Raises :class:`~distop.errors.InvalidArgument`."""
    given = properties.get(KEEP, str(KEEP_DEFAULT))
    if not (given.isascii() and given.isdecimal() and 0 < int(given[:9]) <= MAX_KEPT):
        raise _bad(f"{KEEP} is a number from 1 to {MAX_KEPT}, not {given[:50]!r}", "properties")
    return int(given)


def _check_version(version: ViewVersion) -> None:
    named = f"version {version.version_id}"
    if not version.representations:
        raise _bad(f"{named} has no SQL", "representations")
    if len(version.representations) > MAX_REPRESENTATIONS:
        raise _bad(f"{named} has more than {MAX_REPRESENTATIONS} representations", "representations")
    if not 0 <= version.timestamp_ms <= MAX_TIME_MS:
        raise _bad(f"{named} is of no time", "timestamp-ms")
    dialects = set[str]()
    for representation in version.representations:
        if (dialect := representation.root.dialect.lower()) in dialects:
            raise _bad(f"{named}: Cannot add multiple queries for dialect {dialect[:100]}", "representations")
        if not dialect or len(representation.root.sql) > MAX_SQL:
            raise _bad(f"{named}: SQL has a dialect, and at most {MAX_SQL:,} characters", "representations")
        dialects.add(dialect)


class _ViewDraft:
    """A view while a commit is applied to it."""

    def __init__(self, base: ViewMetadata, now_ms: int) -> None:
        self._base, self._now_ms = base, now_ms
        self._location, self._properties = base.location, dict(base.properties)
        self._schemas, self._versions = list(base.schemas), list(base.versions)
        self._current, self._log = base.current_version_id, list(base.version_log)
        self._schema_ids = Ids("schema_id", base.schemas)
        self._version_ids = Ids("version_id", base.versions)
        self._added, self._added_schemas = set[int](), set[int]()

    def take(self, update: ViewUpdate) -> None:
        match update:
            case changes.AssignUUIDUpdate():
                if update.uuid != UUID(self._base.view_uuid):
                    raise _bad("Cannot reassign uuid", "uuid")
            case changes.UpgradeFormatVersionUpdate():
                if update.format_version != self._base.format_version:
                    raise _bad(f"views have no format version {update.format_version}", "format-version")
            case changes.SetLocationUpdate():
                self._location = update.location
            case changes.SetPropertiesUpdate():
                self._properties.update(update.updates)
            case changes.RemovePropertiesUpdate():
                for name in update.removals:
                    self._properties.pop(name, None)
            case changes.AddSchemaUpdate():
                if (schema := self._schema_ids.add(update.schema_)) is not None:
                    self._schemas.append(schema)
                    self._added_schemas.add(schema.schema_id)
            case AddViewVersionUpdate():
                self._add(update.view_version)
            case SetCurrentViewVersionUpdate():
                self._set_current(self._version_ids.of(update.view_version_id))

    def _add(self, wanted: ViewVersion) -> None:
        schema = self._schema_ids.of(wanted.schema_id)
        if schema == LAST:
            raise _bad("Cannot set last added schema: no schema has been added", "schema-id")
        if (version := self._version_ids.add(wanted.model_copy(update={"schema_id": schema}))) is not None:
            self._versions.append(version)
            self._added.add(version.version_id)

    def _set_current(self, wanted: int) -> None:
        if wanted == LAST:
            raise _bad("Cannot set last added version id: no version id has been added", "view-version-id")
        if wanted == self._current:
            return
        version = next((version for version in self._versions if version.version_id == wanted), None)
        if version is None:
            raise _bad(f"Cannot set current version to unknown version: {wanted}", "view-version-id")
        at_ms = version.timestamp_ms if wanted in self._added else self._now_ms
        self._current = wanted
        self._log.append(_entry(at_ms, wanted))

    def made(self) -> ViewMetadata:
        self._check_dialects()
        versions = self._newest_versions()
        live = {version.version_id for version in versions}
        schemas = self._schemas
        if len(versions) < len(self._versions):
            # Those that no version has any more; the highest id stays, so that it is not given again.
            used = {version.schema_id for version in versions} | self._added_schemas
            used.add(max(schema.schema_id for schema in schemas))
            schemas = [schema for schema in schemas if schema.schema_id in used]
        changed = _named(
            location=self._location,
            properties=self._properties,
            schemas=schemas,
            versions=versions,
            current_version_id=self._current,
            version_log=self._log_of(live)[-MAX_LOG:],
        )
        return self._base.model_copy(update=changed)

    def _newest_versions(self) -> list[ViewVersion]:
        """The versions to keep: the present one, the added ones, and the newest of the others."""
        certain = self._added | {self._current}
        rest = sorted(
            (version.version_id for version in self._versions if version.version_id not in certain),
            reverse=True,
        )
        wanted = certain | set(rest[: max(0, kept(self._properties) - len(certain))])
        return [version for version in self._versions if version.version_id in wanted]

    def _log_of(self, live: set[int]) -> list[ViewHistoryEntry]:
        """The history behind the last removed version."""
        start = max((at + 1 for at, entry in enumerate(self._log) if entry.version_id not in live), default=0)
        return self._log[start:]

    def _check_dialects(self) -> None:
        if self._properties.get(MAY_DROP_DIALECTS, "").lower() == "true":
            return
        before, after = (
            {representation.root.dialect.lower() for representation in version.representations}
            for number in (self._base.current_version_id, self._current)
            for version in self._versions
            if version.version_id == number
        )
        if lost := before - after:
            raise _bad(
                f"Cannot replace view due to loss of view dialects ({MAY_DROP_DIALECTS}=false): "
                f"{', '.join(sorted(lost))[:200]}",
                "representations",
            )


def _entry(timestamp_ms: int, version_id: int) -> ViewHistoryEntry:
    return ViewHistoryEntry(**_named(timestamp_ms=timestamp_ms, version_id=version_id))


def _named(**fields: Any) -> dict[str, Any]:
    """Arguments of a model by its field names, not its names in JSON."""
    return fields


def _bad(message: str, field: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": field})
