"""Which table properties are stored, and which are refused because libraries act on them; limits of a schema.

Loads nothing heavy: arguments are checked before libraries are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.tables.locations import canonical, place_of

MAX_COLUMNS, MAX_COLUMN_NAME, MAX_COLUMN_DOC = 10_000, 1_000, 10_000
"""Columns of one table; characters of a name, and of a comment."""

MAX_FIELDS = 1_000
"""Fields to partition or to sort by."""

MAX_NESTING = 32
"""Levels of nested values."""

MAX_ID = 2_147_483_447
"""Of columns and partition fields; Iceberg keeps the 200 above it for its own columns. For schemas, partition
specs and sort orders, too, whose ids have 31 bits."""

MAX_PROPERTIES, MAX_PROPERTY_NAME, MAX_PROPERTY, MAX_MAPPING = 256, 256, 16 << 10, 1 << 20
"""Limits: properties of a table; characters of a name, of a value, and of the name mapping."""

_ACTS = re.compile(
    r"(.*[.-])?impl|py-.*|(s3|gcs|adls|hdfs|oss|abfs|wasb|client|rest|hive|glue|dynamodb|sql|fs|http|ssl|auth"
    r"|oauth2|header|token|credential|uri|warehouse)([.-].*)?|.*(secret|password|passwd|access-key|credential).*",
    re.DOTALL,
)
"""Names of properties that libraries act on."""

_KINDS = frozenset(
    """
    commit compatibility distop engine flink format gc history option read replace schema spark trino user
    version write
    """.split()  # noqa: SIM905
)
"""Allowed prefixes of dotted names: reading and writing files, notes of engines, notes of users."""

NAME_MAPPING = "schema.name-mapping.default"
"""Ids of columns by their names, for files without ids; JSON."""

_NAMES_FOLDERS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Folders that Iceberg programs write to instead of the table's location."""

ON_CONFLICT = "distop.on-conflict"
"""What happens to another program's append that lost to other commits: ``refuse`` or ``rebase``."""


GC_ENABLED = "gc.enabled"
"""Whether files that the table no longer needs may be removed; other tables may share them if not."""

FORMAT_VERSION: Literal[2] = 2
"""The Iceberg format version to write: the first in which a later snapshot can adopt a manifest."""

FORMAT = "format-version"
"""Names the format version of a new table, and is no property of it."""

OWN_FORMATS, FOREIGN_FORMATS = frozenset({str(FORMAT_VERSION)}), frozenset({"1", str(FORMAT_VERSION)})
"""Formats that a new table may get from distop, and from another program through the catalog."""

_OF_NEW_TABLES = {"write.parquet.compression-codec": "zstd"}
"""Iceberg's own catalogs write this default down, since its Java library takes gzip for tables without: twice
the time for the same rows."""


def of_new_table(given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table that is created with the given ones."""
    return {**_OF_NEW_TABLES, **stored(given)}


def stored(given: Mapping[str, str]) -> dict[str, str]:
    """Those of the given properties that a table gets: :data:`FORMAT` is none."""
    return {name: value for name, value in given.items() if name != FORMAT}


def check_may_remove(properties: Mapping[str, Any], table: str) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` if :data:`GC_ENABLED` forbids to remove files of a
    table; anything but ``true`` does, as in Iceberg's Java library."""
    if (given := str(properties.get(GC_ENABLED, "true")).strip().lower()) != "true":
        raise PreconditionFailed(
            f"files of table {table!r} may not be removed: its property {GC_ENABLED} is {given[:50]!r}",
            hint=f"other tables may need them; if none does, set {GC_ENABLED}=true",
            details={"field": GC_ENABLED, "table": table},
        )


def check_properties(
    properties: Mapping[str, Any],
    location: str = "",
    existing: Mapping[str, Any] | None = None,
    formats: Collection[str] = OWN_FORMATS,
) -> None:
    """Refuse properties that a library would act on, and more or larger ones than allowed.

    Dotted names need a known prefix: libraries configure access to files and services by such names, and add
    new ones. A single word is a note, unless libraries act on it: pyiceberg would run the code that
    ``py-io-impl`` names in any process that opens the table. A folder to write to must be below the table's
    ``location``, if that is known: any other may be another table's.

    Parameters
    ----------
    existing:
        Existing properties of the table: their prefix and format version are not checked.
    formats:
        What :data:`FORMAT` may be.

    Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` is ``properties``.
    """
    if len(properties) > MAX_PROPERTIES:
        raise _bad_property(f"there are {len(properties):,} properties, at most {MAX_PROPERTIES} are kept")
    for name, value in properties.items():
        if _ACTS.fullmatch(name.lower()):
            raise _bad_property(
                f"property {name[:100]!r} names code, a credential or an endpoint",
                "leave it out; how files are reached is up to each process, not to the table",
            )
        if not _is_of_a_kind(name) and name not in (existing or {}):
            raise _bad_property(
                f"property {name[:100]!r} has no known prefix",
                f"for your own notes use the prefix user. or no dot; known: {', '.join(sorted(_KINDS))}",
            )
        if name == FORMAT and str(value) not in formats and name not in (existing or {}):
            raise _bad_property(
                f"tables get Iceberg format {FORMAT_VERSION}, not {str(value)[:50]!r}", f"leave {FORMAT} out"
            )
        most = MAX_MAPPING if name == NAME_MAPPING else MAX_PROPERTY
        if len(name) > MAX_PROPERTY_NAME or len(str(value)) > most:
            raise _bad_property(
                f"property {name[:100]!r} is too long: names have at most {MAX_PROPERTY_NAME} characters, "
                f"and this one's value {most:,}"
            )
    check_on_conflict(properties)
    mapping = properties.get(NAME_MAPPING)
    if mapping is not None and mapping != (existing or {}).get(NAME_MAPPING):
        _check_mapping(str(mapping))
    for name in _NAMES_FOLDERS if location else ():
        if name not in properties:
            continue
        own, folder = (place_of(canonical(str(text), "properties")) for text in (location, properties[name]))
        if folder != own and not folder.startswith(f"{own}/"):
            raise InvalidArgument(
                f"property {name!r} names {properties[name]}, which is not in the table's own folder {own}",
                hint="leave it out, or name a folder below the table's location",
                details={"field": "properties"},
            )


def _check_mapping(text: str) -> None:
    from pyiceberg.table.name_mapping import parse_mapping_from_json

    try:
        parse_mapping_from_json(text)
    except (ValueError, TypeError) as error:
        raise _bad_property(
            f"property {NAME_MAPPING!r} is no name mapping: the table could not be read",
            'write for example [{"field-id": 1, "names": ["id"]}]',
        ) from error


def check_on_conflict(properties: Mapping[str, Any]) -> None:
    """The setting of a table, or of a snapshot. Raises :class:`~distop.errors.InvalidArgument`."""
    if (wanted := properties.get(ON_CONFLICT, "refuse")) not in ("refuse", "rebase"):
        raise InvalidArgument(
            f"{ON_CONFLICT} is refuse or rebase, not {str(wanted)[:50]!r}", details={"field": ON_CONFLICT}
        )


def inert(properties: Mapping[str, str]) -> dict[str, str]:
    """Another program's properties, without those that :func:`check_properties` may refuse."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _NAMES_FOLDERS and _is_of_a_kind(name) and not _ACTS.fullmatch(name.lower())
    }


def _is_of_a_kind(name: str) -> bool:
    kind, dot, _ = name.lower().partition(".")
    return not dot or kind in _KINDS


def _bad_property(message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": "properties"})
