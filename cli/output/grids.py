"""Lists as text for people: a line for each operation, table, snapshot, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.table import Table as Grid
from rich.text import Text

from distop.cli.output.base import Listing
from distop.cli.output.texts import STATE_STYLES, became, counts, in_series, shown, skip_reason, state_of
from distop.client import AuditEntry, Batch, Grant, Operation, Quarantine, Schedule, Snapshot, Table
from distop.proto.json_text import duration, printable, text_of

T = TypeVar("T")


def grid_of(*columns: str) -> Grid:
    """An empty list with these headers."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        grid.add_column(column, no_wrap=index == 0, overflow="fold")
    return grid


@dataclass(frozen=True)
class ListStyle(Generic[T]):
    """How a list is printed: a line for each item."""

    columns: Mapping[str, Callable[[T], Any]]
    """The value of an item in each column, by the column's header."""
    empty: str
    """What to say if it has no lines."""
    spare: tuple[str, ...] = ()
    """Columns that a narrow terminal drops, in this order."""

    def grid(self, items: Iterable[T]) -> Grid:
        grid = grid_of(*self.columns)
        for item in items:
            values = [value_of(item) for value_of in self.columns.values()]
            cells = (cell if isinstance(cell, Text) else printable(shown(cell)) for cell in values)
            grid.add_row(*cells)
        return grid


STYLES: Mapping[Listing, ListStyle[Any]] = {
    "operations": ListStyle[Operation](
        {
            "OPERATION": lambda operation: operation.name + in_series(operation),
            "STATE": lambda operation: Text(state_of(operation), STATE_STYLES[operation.state]),
            "JOBS": lambda operation: counts(operation.jobs),
            "ROWS": lambda operation: text_of(operation.facts.get("rows", "")),
            "STARTED": lambda operation: operation.started_at,
            "DURATION": lambda operation: duration(operation.duration_s),
            "BY": lambda operation: operation.started_by,
            "ERROR": lambda operation: operation.error.code if operation.error else "",
        },
        "no operations",
        ("BY", "DURATION", "STARTED", "ROWS", "JOBS"),
    ),
    "tables": ListStyle[Table](
        {
            "TABLE": lambda table: table.name,
            "LOCATION": lambda table: (
                f"cannot be read: {table.error.code}" if table.error else table.location
            ),
            "FORMAT": lambda table: table.format,
            "RUNNING": lambda table: " ".join(
                filter(None, (str(len(table.running) or ""), "paused" if table.pause else ""))
            ),
            "LED BY": lambda table: table.leader,
            "SNAPSHOT": lambda table: str(table.snapshot_id or ""),
        },
        "no tables: distop table create NAME --location URL",
        ("LED BY", "SNAPSHOT", "FORMAT"),
    ),
    "alerts": ListStyle[Mapping[str, Any]](
        {
            "ALERT": lambda alert: alert["kind"],
            "ABOUT": lambda alert: alert["operation"] or alert["table"],
            "BATCH": lambda alert: alert["batch"],
            "SINCE": lambda alert: alert["since"],
            "CODE": lambda alert: alert["code"],
            "SENT": lambda alert: alert["sent_at"],
            "MESSAGE": lambda alert: alert["message"],
            "COMMAND": lambda alert: alert["command"],
        },
        "no alerts",
        ("MESSAGE", "SENT", "BATCH", "CODE"),
    ),
    "audit": ListStyle[AuditEntry](
        {
            "WHEN": lambda entry: entry.at,
            "WHO": lambda entry: entry.by,
            "FROM": lambda entry: entry.address,
            "WHAT": lambda entry: entry.action if entry.outcome != "denied" else f"{entry.action} (denied)",
            "TO": lambda entry: entry.target,
            "ARGUMENT": lambda entry: entry.argument,
            "WHY": lambda entry: entry.reason,
            "BECAME": became,
        },
        "nothing yet",
        ("ARGUMENT", "WHY", "BECAME", "WHO"),
    ),
    "backlog": ListStyle[Batch](
        {
            "BATCH": lambda batch: batch.name,
            "STATE": lambda batch: batch.state,
            "TYPE": lambda batch: batch.type,
            "SINCE": lambda batch: batch.queued_at,
            "BY": lambda batch: batch.queued_by,
            "FAILED": lambda batch: str(batch.attempts or ""),
            "OPERATION": lambda batch: batch.operation,
        },
        "no batches",
        ("BY", "SINCE", "TYPE"),
    ),
    "applied": ListStyle[Batch](
        {
            "BATCH": lambda batch: batch.name,
            "STATE": lambda batch: batch.state,
            "SINCE": lambda batch: batch.finished_at,
            "ROWS": lambda batch: batch.rows,
            "FILES": lambda batch: batch.files,
            "BYTES": lambda batch: batch.bytes,
            "BY": lambda batch: batch.queued_by,
            "FAILED": lambda batch: str(batch.attempts or ""),
            "DECIDED BY": lambda batch: batch.decided_by,
            "OPERATION": lambda batch: (
                f"{batch.operation} ({batch.together} batches)" if batch.together > 1 else batch.operation
            ),
        },
        "no batches",
        ("BY", "BYTES", "FILES", "SINCE", "FAILED", "DECIDED BY"),
    ),
    "snapshots": ListStyle[Snapshot](
        {
            "SNAPSHOT": lambda snapshot: str(snapshot.snapshot_id),
            "COMMITTED": lambda snapshot: snapshot.committed_at,
            "CHANGE": lambda snapshot: snapshot.change,
            "ROWS": lambda snapshot: snapshot.rows,
            "ADDED": lambda snapshot: snapshot.added_rows,
            "OPERATION": lambda snapshot: snapshot.operation or "another program",
            "STATE": lambda snapshot: list(filter(None, (_position(snapshot), *snapshot.refs))),
        },
        "no snapshot: nothing has been published yet",
        ("ADDED", "CHANGE", "STATE", "COMMITTED"),
    ),
    "quarantines": ListStyle[Quarantine](
        {
            "OPERATION": lambda quarantine: quarantine.operation,
            "ROWS": lambda quarantine: quarantine.rows,
            "FINISHED": lambda quarantine: quarantine.at,
            "REPLAYED BY": lambda quarantine: quarantine.replayed_by,
            "FILES": lambda quarantine: quarantine.folder,
        },
        "no quarantined rows",
        ("FILES", "FINISHED"),
    ),
    "schedules": ListStyle[Schedule](
        {
            "SCHEDULE": lambda schedule: schedule.name,
            "TYPE": lambda schedule: schedule.type,
            "WHEN": lambda schedule: " ".join(
                filter(None, (schedule.cron, schedule.timezone, schedule.when))
            ),
            "NEXT": lambda schedule: "paused" if schedule.pause else schedule.next_at,
            "LAST": lambda schedule: schedule.last_at,
            "STARTED": lambda schedule: str(schedule.started or ""),
            "OPERATION": lambda schedule: schedule.operation,
            "SKIPPED": lambda schedule: str(schedule.skipped or ""),
            "WHY": skip_reason,
        },
        "no schedules",
        ("STARTED", "LAST", "OPERATION"),
    ),
    "members": ListStyle[Mapping[str, Any]](
        {
            "MEMBER": lambda member: member["id"],
            "ROLE": lambda member: member["role"] + (" (draining)" if member["draining"] else ""),
            "ADDRESS": lambda member: member["address"],
            "HOST": lambda member: member["host"],
            "PID": lambda member: str(member["pid"] or ""),
            "SINCE": lambda member: member["started_at"],
            "TYPES": lambda member: member["types"],
            "LEADS": lambda member: str(len(member["leads"])) if member["role"] == "coordinator" else "",
        },
        "no members",
        ("SINCE", "PID", "HOST", "TYPES", "LEADS"),
    ),
}
"""Every list but those of stack traces and of quarantined rows, which are no tables."""

WATERMARKS = ListStyle[tuple[str, str, str]](
    {"SOURCE": lambda row: row[0], "PARTITION": lambda row: row[1], "WATERMARK": lambda row: row[2]},
    "no watermarks: nothing has been ingested yet",
)

GRANTS = ListStyle[Grant](
    {"WHO": lambda grant: grant.who, "ROLE": lambda grant: grant.role, "TABLES": lambda grant: grant.tables},
    "no grant that you can see",
)


def _position(snapshot: Snapshot) -> str:
    """Where a snapshot lies in the history of its table."""
    return "present" if snapshot.present else "" if snapshot.in_history else "not in the history"
