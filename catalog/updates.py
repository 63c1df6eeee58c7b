"""Updates of a client, made to fit the table as it is now, as Iceberg's Java library makes them.

A client counts the ids of schemas, partition specs and sort orders on from the state of the table that it
has seen. If one was added concurrently, the same id means another thing; pyiceberg refuses that, or has two
schemas with one id. Here an equal one is used again, and one whose id is taken gets the next free id.

What a client removes may be gone: of two that expire the same snapshots the second one requires nothing of
them, and has what it wants. pyiceberg calls it a wrong value; here it changes nothing.

Rows that are not checked are refused in the main branch of a table with rules, as in every other way in. A
branch may have them: publishing it through distop validates it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import update as changes
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.sorting import SortOrder
from pyiceberg.view.metadata import ViewVersion

from distop.errors import InvalidArgument
from distop.lake.layout.properties import FORMAT, MAX_ID, check_properties
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
