"""Lists as text for people: a line for each operation, table, snapshot, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from distop.cli.output.base import Listing
from distop.cli.output.schedules import schedules_grid
from distop.cli.output.screen import grid_of
from distop.cli.output.style import STATE_STYLES, counts, duration, printable
from distop.cli.output.texts import became, in_series, number_of, state_of, text_of, when
from distop.client import (
    AuditEntry,
    Batch,
    Leader,
    Member,
    Operation,
    Quarantine,
    Snapshot,
    Table,
    Watermarks,
)


def _operations_grid(operations: Sequence[Operation]) -> Grid:
    """A line for each operation."""
    grid = grid_of("OPERATION", "STATE", "JOBS", "ROWS", "STARTED", "TOOK", "BY", "ERROR")
    for operation in operations:
        grid.add_row(
            printable(operation.name) + in_series(operation),
            Text(
                state_of(operation) + (" (paused)" if operation.pause else ""),
                STATE_STYLES[operation.state],
            ),
            counts(operation.jobs),
            text_of(operation.facts.get("rows", "")),
            when(operation.started_at),
            duration(operation.duration_s),
            printable(operation.started_by),
            printable(operation.error.code) if operation.error else "",
        )
    return grid


def _snapshots_grid(snapshots: Sequence[Snapshot]) -> Grid:
    """A line for each snapshot of a table."""
    grid = grid_of("SNAPSHOT", "COMMITTED", "CHANGE", "ROWS", "ADDED", "OPERATION", "STATE")
    for one in snapshots:
        state = "present" if one.present else "" if one.in_history else "not in the history"
        grid.add_row(
            str(one.snapshot_id),
            when(one.committed_at),
            one.change,
            number_of(one.rows),
            number_of(one.added_rows),
            printable(one.operation or "another program"),
            printable(", ".join(filter(None, [state, *one.refs]))),
        )
    return grid


def _tables_grid(tables: Sequence[Table]) -> Grid:
    """A line for each table."""
    grid = grid_of("TABLE", "LOCATION", "FORMAT", "RUNNING", "LED BY", "SNAPSHOT")
    for table in tables:
        grid.add_row(
            printable(table.name),
            printable(f"cannot be read: {table.error.code}" if table.error else table.location),
            printable(table.format),
            " ".join(filter(None, [str(len(table.running) or ""), "paused" if table.pause else ""])),
            printable(table.leader),
            "" if table.snapshot_id is None else str(table.snapshot_id),
        )
    return grid


def watermarks_grid(watermarks: Watermarks) -> Grid:
    """A line for each partition of each source."""
    grid = grid_of("SOURCE", "PARTITION", "WATERMARK")
    for source, partitions in sorted(watermarks.items()):
        for partition, value in sorted(partitions.items()):
            grid.add_row(printable(source), printable(partition), printable(value))
    return grid


def members_grid(members: Iterable[Member], leaders: Iterable[Leader]) -> Grid:
    """A line for each live process, with how many tables it leads."""
    led: dict[str, int] = {}
    for leader in leaders:
        led[leader.member] = led.get(leader.member, 0) + 1
    grid = grid_of("MEMBER", "ROLE", "ADDRESS", "HOST", "PID", "SINCE", "TYPES", "LEADS")
    for member in members:
        leads = str(led.get(member.id, 0)) if member.role == "coordinator" else ""
        grid.add_row(
            printable(member.id),
            member.role + (" (draining)" if member.draining else ""),
            printable(member.address),
            printable(member.host),
            str(member.pid or ""),
            when(member.started_at),
            printable(", ".join(member.types)),
            leads,
        )
    return grid


def _audit_grid(entries: Sequence[AuditEntry]) -> Grid:
    """A line for each entry of the audit trail."""
    grid = grid_of("WHEN", "WHO", "FROM", "WHAT", "TO", "ASKED FOR", "WHY", "BECAME")
    for entry in entries:
        grid.add_row(
            when(entry.at),
            printable(entry.by),
            printable(entry.address),
            printable(entry.action if entry.outcome != "denied" else f"{entry.action} (denied)"),
            printable(entry.target),
            printable(text_of(entry.argument)),
            printable(entry.reason),
            became(entry),
        )
    return grid


def _backlog_grid(batches: Sequence[Batch]) -> Grid:
    """A line for each batch."""
    grid = grid_of("BATCH", "STATE", "TYPE", "SINCE", "BY", "FAILED", "OPERATION")
    for batch in batches:
        grid.add_row(
            printable(batch.name),
            batch.state,
            printable(batch.type),
            when(batch.queued_at),
            printable(batch.queued_by),
            str(batch.attempts or ""),
            printable(batch.operation),
        )
    return grid


def _applied_grid(batches: Sequence[Batch]) -> Grid:
    """A line for each batch that was applied or skipped."""
    figures = ("ROWS", "FILES", "BYTES")
    grid = grid_of("BATCH", "STATE", "SINCE", *figures, "BY", "FAILED", "DECIDED BY", "OPERATION")
    for batch in batches:
        grid.add_row(
            printable(batch.name),
            batch.state,
            when(batch.finished_at),
            *map(number_of, (batch.rows, batch.files, batch.bytes)),
            printable(batch.queued_by),
            str(batch.attempts or ""),
            printable(batch.decided_by),
            printable(batch.operation) + (f" (of {batch.together})" if batch.together > 1 else ""),
        )
    return grid


def _quarantines_grid(quarantines: Sequence[Quarantine]) -> Grid:
    """A line for each operation with quarantined rows."""
    grid = grid_of("OPERATION", "ROWS", "FINISHED", "REPLAYED BY", "FILES")
    for one in quarantines:
        grid.add_row(
            printable(one.operation),
            number_of(one.rows),
            when(one.at),
            printable(one.replayed_by),
            printable(one.folder),
        )
    return grid


@dataclass(frozen=True)
class ListStyle:
    """How a list is printed."""

    grid: Callable[[Sequence[Any]], Grid]
    empty: str
    """What to say if it has no lines."""
    spare: tuple[str, ...]
    """Columns that a narrow terminal drops, in this order."""


STYLES: Mapping[Listing, ListStyle] = {
    "operations": ListStyle(_operations_grid, "no operations", ("BY", "TOOK", "STARTED", "ROWS", "JOBS")),
    "tables": ListStyle(
        _tables_grid,
        "no tables: distop tables create NAME --location URL",
        ("LED BY", "SNAPSHOT", "FORMAT"),
    ),
    "audit": ListStyle(_audit_grid, "nothing yet", ("ASKED FOR", "WHY", "BECAME", "WHO")),
    "backlog": ListStyle(_backlog_grid, "no batches", ("BY", "SINCE", "TYPE")),
    "applied": ListStyle(
        _applied_grid, "no batches", ("BY", "BYTES", "FILES", "SINCE", "FAILED", "DECIDED BY")
    ),
    "snapshots": ListStyle(
        _snapshots_grid,
        "no snapshot: nothing has been published yet",
        ("ADDED", "CHANGE", "STATE", "COMMITTED"),
    ),
    "quarantines": ListStyle(_quarantines_grid, "no quarantined rows", ("FILES", "FINISHED")),
    "schedules": ListStyle(schedules_grid, "no schedules", ("STARTED", "LAST", "OPERATION")),
}
"""Every list but those of stack traces and of quarantined rows, which are no tables."""
