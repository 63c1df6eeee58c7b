"""Updates of a client, made to fit the table as it is now, as Iceberg's Java library makes them; and commits
that lost to others and are repeated by the catalog: those that only describe the table, as long as their
requirements hold; and appends, if the table or the commit asks for it.

The operation ``append`` of a snapshot does not prove that it may be rebased: a MERGE or an upsert that has
only inserted, and an overwrite of an empty table, look the same. After a refusal their programs read the
table again, and may find a conflict. So none is rebased unless ``distop.on-conflict`` is ``rebase``.

The snapshot keeps its id, by which programs find out whether it was committed. Its files are listed in a new
manifest: the table then refers only to the program's data files, so the program may remove its manifests as
those of a failed attempt, as Iceberg's Java library does.

A client counts the ids of schemas, partition specs and sort orders on from the state of the table that it
has seen. If one was added concurrently, the same id means another thing; pyiceberg refuses that, or has two
schemas with one id. Here an equal one is used again, and one whose id is taken gets the next free id.

What a client removes may be gone: of two that expire the same snapshots the second one requires nothing of
them, and has what it wants. pyiceberg calls it a wrong value; here it changes nothing.

Rows that are not checked are refused in the main branch of a table with rules, as in every other way in. A
branch may have them: publishing it through distop validates it first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table import update as changes
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ADDED_DATA_FILES, Operation, Snapshot, Summary, ancestors_of
from pyiceberg.table.sorting import SortOrder
from pyiceberg.view.metadata import ViewVersion

from distop.errors import InvalidArgument
from distop.lake.iceberg.branch_steps import Rebased, rebased
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.provenance import PRODUCT_PROPERTIES
from distop.lake.iceberg.snapshots import Draft
from distop.lake.iceberg.takeover import manifests_of
from distop.lake.layout.properties import (
    FORMAT,
    FORMAT_VERSION,
    MAX_ID,
    ON_CONFLICT,
    check_on_conflict,
    check_properties,
)
from distop.lake.layout.schemas import check_fields, check_schema
from distop.metastore.records.table import TableRecord

MAX_LONG = (1 << 63) - 1
_OF_32_BITS = frozenset(
    """
    element-id field-id id key-id min-snapshots-to-keep order-id schema-id sort-order-id source-id spec-id
    value-id
    """.split()  # noqa: SIM905
)
"""Names of numbers of 32 bits, with a sign; others have 64."""


def check_updates(updates: Iterable[changes.TableUpdate]) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a property, column, field or number is invalid."""
    for update in updates:
        if isinstance(update, changes.SetPropertiesUpdate):
            check_properties(update.updates)
        if isinstance(update, changes.AddSchemaUpdate):
            check_schema(update.schema_)
        if isinstance(update, changes.AddPartitionSpecUpdate):
            check_fields(update.spec.fields)
        if isinstance(update, changes.AddSortOrderUpdate):
            check_fields(update.sort_order.fields)
        _check_numbers(update.model_dump(mode="json", by_alias=True), "")


def _check_numbers(value: Any, name: str) -> None:
    """Refuse numbers with more bits than Iceberg has for them: its Java library would not read the table."""
    if isinstance(value, Mapping):
        for inner, inner_value in value.items():
            _check_numbers(inner_value, inner)
    elif isinstance(value, list):
        for inner_value in value:
            _check_numbers(inner_value, name)
    elif isinstance(value, int):
        most = MAX_ID if name in _OF_32_BITS else MAX_LONG
        if abs(value) > most:
            raise InvalidArgument(f"{name} is {value}: at most {most} is allowed", details={"field": name})


def refuse_unchecked(
    record: TableRecord, base: TableMetadata, updates: Iterable[changes.TableUpdate], io: FileIO
) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a commit adds rows into the main branch of a table
    that has rules which must be kept."""
    if not _must_keep(record.options.get("checks")):
        return
    known = {snapshot.snapshot_id: snapshot for snapshot in base.snapshots}
    live = {snapshot.snapshot_id for snapshot in ancestors_of(base.current_snapshot(), base)}
    for update in updates:
        if isinstance(update, changes.AddSnapshotUpdate):
            known[update.snapshot.snapshot_id] = update.snapshot
        elif isinstance(update, changes.SetSnapshotRefUpdate) and update.ref_name == MAIN_BRANCH:
            for snapshot in _new(known, live, update.snapshot_id):
                if _adds_rows(snapshot, io):
                    raise InvalidArgument(
                        f"rows of table {record.name!r} must keep rules, which are not checked on this way "
                        "into it",
                        hint="ingest them; or commit to a branch, and publish it: see docs/validation.md",
                        details={"table": record.name},
                    )


def _must_keep(checks: Any) -> bool:
    return bool(checks) and not (isinstance(checks, Mapping) and checks.get("report_only"))


def _new(known: Mapping[int, Snapshot], live: set[int], wanted: int | None) -> list[Snapshot]:
    """The snapshots that the commit would add to the history of the main branch."""
    snapshots: list[Snapshot] = []
    while wanted is not None and wanted not in live and (snapshot := known.get(wanted)) is not None:
        snapshots.append(snapshot)
        live = live | {wanted}
        wanted = snapshot.parent_snapshot_id
    return snapshots


def _adds_rows(snapshot: Snapshot, io: FileIO) -> bool:
    """Whether it has new data files, by its manifests: programs may leave counts out of the summary."""
    summary = snapshot.summary
    if summary is None or summary.operation is Operation.APPEND:
        return True
    if summary.operation is Operation.REPLACE:
        return False
    try:
        manifests = snapshot.manifests(io)
    except FileNotFoundError:
        return True
    return any(
        manifest.content == ManifestContent.DATA
        and manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.added_files_count != 0
        for manifest in manifests
    )


LAST = -1
"""Means the last one that the same commit has added."""


class Ids:
    """The ids of one kind of object in one table or view."""

    def __init__(self, name: str, there: Iterable[Any]) -> None:
        self._name = name
        self._there = {getattr(item, name): _content(item) for item in there}
        self._given: dict[int, int] = {}
        """The ids here, by the client's ids."""

    def add(self, wanted: Any) -> Any | None:
        """The object to add, with its new id; ``None`` if an equal one exists.

        Raises :class:`~distop.errors.InvalidArgument` if the id is too large for Iceberg.
        """
        given, content = getattr(wanted, self._name), _content(wanted)
        same = next((number for number, existing in self._there.items() if existing == content), None)
        number = same if same is not None else self._free(given)
        if number > MAX_ID:
            raise InvalidArgument(
                f"{number} is no id: at most {MAX_ID} is allowed", details={"field": self._name}
            )
        self._given[given] = self._given[LAST] = number
        if same is not None:
            return None
        self._there[number] = content
        return wanted.model_copy(update={self._name: number})

    def _free(self, given: int) -> int:
        return given if given not in self._there else max(self._there) + 1

    def of(self, given: int) -> int:
        return self._given.get(given, given)


def _content(item: Schema | PartitionSpec | SortOrder | ViewVersion) -> Any:
    if isinstance(item, Schema):
        return item.fields, frozenset(item.identifier_field_ids)
    if isinstance(item, ViewVersion):
        return item.model_copy(update={"version_id": 0, "timestamp_ms": 0})
    return item.fields


def renumbered(
    updates: Iterable[changes.TableUpdate], base: TableMetadata
) -> tuple[changes.TableUpdate, ...]:
    """The same updates, with ids that fit the present table."""
    schemas = Ids("schema_id", base.schemas)
    specs = Ids("spec_id", base.partition_specs)
    orders = Ids("order_id", base.sort_orders)
    kept: list[changes.TableUpdate | None] = []
    for update in updates:
        match update:
            case changes.AddSchemaUpdate():
                kept.append(_with(update, "schema_", schemas.add(update.schema_)))
            case changes.AddPartitionSpecUpdate():
                kept.append(_with(update, "spec", specs.add(update.spec)))
            case changes.AddSortOrderUpdate():
                kept.append(_with(update, "sort_order", orders.add(update.sort_order)))
            case changes.SetCurrentSchemaUpdate():
                kept.append(_with(update, "schema_id", schemas.of(update.schema_id)))
            case changes.SetDefaultSpecUpdate():
                kept.append(_with(update, "spec_id", specs.of(update.spec_id)))
            case changes.SetDefaultSortOrderUpdate():
                kept.append(_with(update, "sort_order_id", orders.of(update.sort_order_id)))
            case _:
                kept.append(update)
    return tuple(update for update in kept if update is not None)


def _with(update: Any, name: str, value: Any) -> changes.TableUpdate | None:
    copied: changes.TableUpdate | None = None if value is None else update.model_copy(update={name: value})
    return copied


def format_upgraded(updates: Iterable[changes.TableUpdate]) -> Iterator[changes.TableUpdate]:
    """The same updates: a property that names the format version upgrades the table, as with Iceberg's Java
    library, and is not stored."""
    for update in updates:
        if isinstance(update, changes.SetPropertiesUpdate) and FORMAT in update.updates:
            kept = dict(update.updates)
            yield changes.UpgradeFormatVersionUpdate(format_version=int(kept.pop(FORMAT)))
            update = update.model_copy(update={"updates": kept})
        yield update


def of_what_is_there(
    updates: Iterable[changes.TableUpdate], base: TableMetadata
) -> Iterator[changes.TableUpdate]:
    """The same updates, without removals of what neither the table has nor an earlier update adds."""
    snapshots = {snapshot.snapshot_id for snapshot in base.snapshots}
    schemas = {schema.schema_id for schema in base.schemas}
    specs = {spec.spec_id for spec in base.partition_specs}
    statistics = {file.snapshot_id for file in base.statistics}
    of_partitions = {file.snapshot_id for file in base.partition_statistics}
    for update in updates:
        match update:
            case changes.AddSnapshotUpdate():
                snapshots.add(update.snapshot.snapshot_id)
            case changes.AddSchemaUpdate():
                schemas.add(update.schema_.schema_id)
            case changes.AddPartitionSpecUpdate():
                specs.add(update.spec.spec_id)
            case changes.SetStatisticsUpdate():
                statistics.add(update.statistics.snapshot_id)
            case changes.SetPartitionStatisticsUpdate():
                of_partitions.add(update.partition_statistics.snapshot_id)
            case changes.RemoveSnapshotsUpdate():
                if not (gone := _taken(snapshots, update.snapshot_ids)):
                    continue
                statistics.difference_update(gone)  # pyiceberg removes these with their snapshots
                update = update.model_copy(update={"snapshot_ids": gone})
            case changes.RemoveSchemasUpdate():
                if not (gone := _taken(schemas, update.schema_ids)):
                    continue
                update = update.model_copy(update={"schema_ids": gone})
            case changes.RemovePartitionSpecsUpdate():
                if not (gone := _taken(specs, update.spec_ids)):
                    continue
                update = update.model_copy(update={"spec_ids": gone})
            case changes.RemoveStatisticsUpdate() if not _taken(statistics, [update.snapshot_id]):
                continue
            case changes.RemovePartitionStatisticsUpdate() if not _taken(of_partitions, [update.snapshot_id]):
                continue
        yield update


def _taken(there: set[int], wanted: Iterable[int]) -> list[int]:
    """Those that are there; from now on they are not."""
    both = sorted(there.intersection(wanted))
    there.difference_update(both)
    return both


log = logging.getLogger(__name__)

_DESCRIBING = (
    changes.SetPropertiesUpdate,
    changes.RemovePropertiesUpdate,
    changes.AddSchemaUpdate,
    changes.SetCurrentSchemaUpdate,
    changes.AddPartitionSpecUpdate,
    changes.SetDefaultSpecUpdate,
    changes.AddSortOrderUpdate,
    changes.SetDefaultSortOrderUpdate,
)
"""Updates that name no snapshot: what they depend on is in the requirements, which are checked each time."""


@dataclass(frozen=True)
class PendingCommit:
    """The updates of a table, and their requirements on its present state."""

    requirements: tuple[changes.TableRequirement, ...]
    updates: tuple[changes.TableUpdate, ...]
    rebases: bool = False
    """Whether it may be rebased."""
    draft: Draft | None = None
    """Files that were written for it."""

    def discard(self) -> None:
        """Remove those files: it will not be published. Never raises."""
        if self.draft is not None:
            self.draft.discard()


def pending_commit(
    current: Table,
    requirements: tuple[changes.TableRequirement, ...],
    updates: tuple[changes.TableUpdate, ...],
) -> PendingCommit:
    """The updates for the present table: the same, unless the commit has lost and may be rebased.

    Raises ``CommitFailedException`` if it has lost in a way that pyiceberg would take for a wrong value, and
    :class:`~distop.errors.InvalidArgument` if what it asks for there is not.
    """
    base, snapshot = current.metadata, _append_in(updates)
    if snapshot is None or not _rebases(snapshot, base):
        _check_fresh(updates, base)
        describes = all(isinstance(update, _DESCRIBING) for update in updates)
        return PendingCommit(requirements, updates, rebases=describes)
    if _has_lost(snapshot, base) and _follows(snapshot, base, requirements):
        try:
            return _rebase(current, snapshot, requirements, updates)
        except Exception as error:
            # The program can read its own files, which this process may not: it is refused, and tries again
            # itself.
            log.warning("append_not_rebased", extra={"location": base.location, "error": str(error)})
    _check_fresh(updates, base)
    return PendingCommit(requirements, updates, rebases=True)


def is_same(committed: Snapshot, present: Snapshot) -> bool:
    """Whether the snapshot of a table that has this id is the one that a program commits, perhaps rebased."""
    if committed.manifest_list == present.manifest_list:
        return True
    own = _own(committed.summary)
    return own is not None and own == _own(present.summary)


def _own(summary: Summary | None) -> dict[str, str] | None:
    """What the summary of an append says, without the state of the table; ``None``: it is no append."""
    if summary is None or summary.operation is not Operation.APPEND:
        return None
    properties = summary.additional_properties.items()
    return {
        name: value
        for name, value in properties
        if not name.startswith("total-") and name not in PRODUCT_PROPERTIES
    }


def _rebase(
    current: Table,
    snapshot: Snapshot,
    requirements: tuple[changes.TableRequirement, ...],
    updates: tuple[changes.TableUpdate, ...],
) -> PendingCommit:
    base, io = current.metadata, current.io
    _check_adds_files_only(manifests_of(snapshot, io), snapshot.snapshot_id, base)
    draft = Draft(io, TableFile.of(base, current.metadata_location))
    try:
        made = rebased(draft, [snapshot], snapshot.snapshot_id)
        summary = _summary(snapshot, made)
        again = draft.snapshot(snapshot.snapshot_id, made.manifests, summary, now=time.time())
    except BaseException:
        draft.discard()
        raise
    added = changes.AddSnapshotUpdate(snapshot=again)
    return PendingCommit(
        tuple(requirement for requirement in requirements if not _is_of_main(requirement)),
        tuple(added if isinstance(update, changes.AddSnapshotUpdate) else update for update in updates),
        True,
        draft,
    )


def _check_fresh(updates: Sequence[changes.TableUpdate], base: TableMetadata) -> None:
    """An error that pyiceberg calls a wrong value: the commit lost to one of another branch, and can be
    repeated."""
    if isinstance(base, TableMetadataV1):
        return
    for update in updates:
        if isinstance(update, changes.AddSnapshotUpdate):
            number = update.snapshot.sequence_number or 0
            # Two that replace a table may have one number: none of them follows the other.
            least = base.last_sequence_number + (update.snapshot.parent_snapshot_id is not None)
            if number < least:
                raise CommitFailedException(
                    f"Sequence number {number} was taken by another commit: refresh and try again"
                )


def _append_in(updates: Sequence[changes.TableUpdate]) -> Snapshot | None:
    """The snapshot of a commit that only appends it to the main branch."""
    added = [update.snapshot for update in updates if isinstance(update, changes.AddSnapshotUpdate)]
    moved = [update for update in updates if isinstance(update, changes.SetSnapshotRefUpdate)]
    if len(added) != 1 or len(moved) != 1 or len(updates) != 2:
        return None
    summary, to = added[0].summary, (moved[0].ref_name, moved[0].snapshot_id)
    is_append = summary is not None and summary.operation is Operation.APPEND
    return added[0] if is_append and to == (MAIN_BRANCH, added[0].snapshot_id) else None


def _has_lost(snapshot: Snapshot, base: TableMetadata) -> bool:
    stale = (snapshot.sequence_number or 0) < base.next_sequence_number()
    return stale or snapshot.parent_snapshot_id != base.current_snapshot_id


def _rebases(snapshot: Snapshot, base: TableMetadata) -> bool:
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    check_on_conflict(properties)
    return (properties.get(ON_CONFLICT) or base.properties.get(ON_CONFLICT)) == "rebase"


def _follows(
    snapshot: Snapshot, base: TableMetadata, requirements: Sequence[changes.TableRequirement]
) -> bool:
    """Whether the state that the program has seen is an ancestor of the present one, with the same format and
    columns.

    All snapshots in between are known, and this one is not among them: a request may be repeated.
    """
    if base.format_version != FORMAT_VERSION or snapshot.schema_id != base.current_schema_id:
        return False
    expected = [
        requirement.snapshot_id
        for requirement in requirements
        if isinstance(requirement, changes.AssertRefSnapshotId) and requirement.ref == MAIN_BRANCH
    ]
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in base.snapshots}
    at = base.current_snapshot_id
    while at is not None and at != snapshot.parent_snapshot_id and at in parents:
        at = parents[at]
    return snapshot.snapshot_id not in parents and expected == [snapshot.parent_snapshot_id] == [at]


def _check_adds_files_only(manifests: Sequence[ManifestFile], snapshot_id: int, base: TableMetadata) -> None:
    """Raises ``ValueError`` if a snapshot adds more than data files of the table's partitioning."""
    for manifest in manifests:
        is_adding = manifest.content == ManifestContent.DATA and manifest.deleted_files_count == 0
        if manifest.added_snapshot_id == snapshot_id and not (
            is_adding and manifest.partition_spec_id == base.default_spec_id
        ):
            raise ValueError("it adds more than data files, or files of another partitioning")


def _summary(snapshot: Snapshot, made: Rebased) -> Summary:
    """The program's summary, with the totals of the present table.

    Raises ``ValueError`` if its manifests list other files than its summary.
    """
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    if (count := properties.get(ADDED_DATA_FILES, "0")) != str(made.files):
        raise ValueError(f"it lists {made.files} files, and its summary says {count}")
    own = {name: value for name, value in properties.items() if not name.startswith("total-")}
    return Summary(operation=Operation.APPEND, **{**own, **made.summary.additional_properties})


def _is_of_main(requirement: changes.TableRequirement) -> bool:
    return isinstance(requirement, changes.AssertRefSnapshotId) and requirement.ref == MAIN_BRANCH
