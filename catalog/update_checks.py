"""Checks of the updates of a table that programs of Iceberg commit.

Rows that are not checked are refused in the main branch of a table with rules, as in every other way in. A
branch may have them: publishing it through distop validates it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from distop.errors import InvalidArgument
from distop.lake.layout.properties import check_properties
from distop.lake.layout.schemas import check_fields, check_schema
from distop.lake.layout.sizes import MAX_ID
from distop.metastore.records.table import TableRecord

MAX_LONG = (1 << 63) - 1
_OF_32_BITS = frozenset(
    """
    element-id field-id id key-id min-snapshots-to-keep order-id schema-id sort-order-id source-id spec-id
    value-id
    """.split()  # noqa: SIM905
)
"""Names of numbers of 32 bits, with a sign; others have 64."""


def check_updates(updates: Iterable[TableUpdate]) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a property, column, field or number is invalid."""
    for update in updates:
        if isinstance(update, SetPropertiesUpdate):
            check_properties(update.updates)
        if isinstance(update, AddSchemaUpdate):
            check_schema(update.schema_)
        if isinstance(update, AddPartitionSpecUpdate):
            check_fields(update.spec.fields)
        if isinstance(update, AddSortOrderUpdate):
            check_fields(update.sort_order.fields)
        _check_numbers(update.model_dump(mode="json", by_alias=True), "")


def _check_numbers(value: Any, name: str) -> None:
    """Refuse numbers with more bits than Iceberg has for them: its Java library would not read the table."""
    if isinstance(value, Mapping):
        for inner, one in value.items():
            _check_numbers(one, inner)
    elif isinstance(value, list):
        for one in value:
            _check_numbers(one, name)
    elif isinstance(value, int):
        most = MAX_ID if name in _OF_32_BITS else MAX_LONG
        if abs(value) > most:
            raise InvalidArgument(f"{name} is {value}: at most {most} is allowed", details={"field": name})


def refuse_unchecked(
    record: TableRecord, base: TableMetadata, updates: Iterable[TableUpdate], io: FileIO
) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a commit brings rows into the main branch of a table
    that has rules which must be kept."""
    if not _must_keep(record.options.get("checks")):
        return
    known = {snapshot.snapshot_id: snapshot for snapshot in base.snapshots}
    live = {snapshot.snapshot_id for snapshot in ancestors_of(base.current_snapshot(), base)}
    for update in updates:
        if isinstance(update, AddSnapshotUpdate):
            known[update.snapshot.snapshot_id] = update.snapshot
        elif isinstance(update, SetSnapshotRefUpdate) and update.ref_name == MAIN_BRANCH:
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
    found: list[Snapshot] = []
    while wanted is not None and wanted not in live and (snapshot := known.get(wanted)) is not None:
        found.append(snapshot)
        live = live | {wanted}
        wanted = snapshot.parent_snapshot_id
    return found


def _adds_rows(snapshot: Snapshot, io: FileIO) -> bool:
    """Whether it has new data files, by its manifests: programs may leave counts out of the summary."""
    told = snapshot.summary
    if told is None or told.operation is Operation.APPEND:
        return True
    if told.operation is Operation.REPLACE:
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
