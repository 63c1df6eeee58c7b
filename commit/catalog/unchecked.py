"""Rows that a program of Iceberg commits, unchecked, to a table with rules.

They are refused in the main branch, as in every other way in that does not check rules. A
branch may have them: publishing it through distop validates it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from distop.errors import InvalidArgument
from distop.metastore.records.table import TableRecord

_ADDED_FILES = "added-data-files"


def refuse_unchecked(record: TableRecord, base: TableMetadata, updates: Iterable[TableUpdate]) -> None:
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
                if _adds_rows(snapshot):
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


def _adds_rows(snapshot: Snapshot) -> bool:
    told = snapshot.summary
    if told is None or told.operation is Operation.APPEND:
        return True
    return told.operation is Operation.OVERWRITE and told.additional_properties.get(_ADDED_FILES, "0") != "0"
