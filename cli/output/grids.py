"""Lists as text for people: a line for each operation, table, snapshot, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.table import Table as Grid
from rich.text import Text

from distop.cli.output.base import Listing
from distop.cli.output.screen import grid_of
from distop.cli.output.texts import (
    STATE_STYLES,
    became,
    counts,
    duration,
    in_series,
    printable,
    shown,
    skip_reason,
    state_of,
    text_of,
)
from distop.client import (
    AuditEntry,
    Batch,
    Grant,
    Member,
    Operation,
    Quarantine,
    Schedule,
    Snapshot,
    Table,
)

T = TypeVar("T")


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
            cells = (one if isinstance(one, Text) else printable(shown(one)) for one in values)
            grid.add_row(*cells)
        return grid


STYLES: Mapping[Listing, ListStyle[Any]] = {
    "operations": ListStyle[Operation](
        {
            "OPERATION": lambda one: one.name + in_series(one),
            "STATE": lambda one: Text(
                state_of(one) + (" (paused)" if one.pause else ""), STATE_STYLES[one.state]
            ),
            "JOBS": lambda one: counts(one.jobs),
            "ROWS": lambda one: text_of(one.facts.get("rows", "")),
            "STARTED": lambda one: one.started_at,
            "DURATION": lambda one: duration(one.duration_s),
            "BY": lambda one: one.started_by,
            "ERROR": lambda one: one.error.code if one.error else "",
        },
        "no operations",
        ("BY", "DURATION", "STARTED", "ROWS", "JOBS"),
    ),
    "tables": ListStyle[Table](
        {
            "TABLE": lambda one: one.name,
            "LOCATION": lambda one: f"cannot be read: {one.error.code}" if one.error else one.location,
            "FORMAT": lambda one: one.format,
            "RUNNING": lambda one: " ".join(
                filter(None, (str(len(one.running) or ""), "paused" if one.pause else ""))
            ),
            "LED BY": lambda one: one.leader,
            "SNAPSHOT": lambda one: str(one.snapshot_id or ""),
        },
        "no tables: distop table create NAME --location URL",
        ("LED BY", "SNAPSHOT", "FORMAT"),
    ),
    "audit": ListStyle[AuditEntry](
        {
            "WHEN": lambda one: one.at,
            "WHO": lambda one: one.by,
            "FROM": lambda one: one.address,
            "WHAT": lambda one: one.action if one.outcome != "denied" else f"{one.action} (denied)",
            "TO": lambda one: one.target,
            "ARGUMENT": lambda one: one.argument,
            "WHY": lambda one: one.reason,
            "BECAME": became,
        },
        "nothing yet",
        ("ARGUMENT", "WHY", "BECAME", "WHO"),
    ),
    "backlog": ListStyle[Batch](
        {
            "BATCH": lambda one: one.name,
            "STATE": lambda one: one.state,
            "TYPE": lambda one: one.type,
            "SINCE": lambda one: one.queued_at,
            "BY": lambda one: one.queued_by,
            "FAILED": lambda one: str(one.attempts or ""),
            "OPERATION": lambda one: one.operation,
        },
        "no batches",
        ("BY", "SINCE", "TYPE"),
    ),
    "applied": ListStyle[Batch](
        {
            "BATCH": lambda one: one.name,
            "STATE": lambda one: one.state,
            "SINCE": lambda one: one.finished_at,
            "ROWS": lambda one: one.rows,
            "FILES": lambda one: one.files,
            "BYTES": lambda one: one.bytes,
            "BY": lambda one: one.queued_by,
            "FAILED": lambda one: str(one.attempts or ""),
            "DECIDED BY": lambda one: one.decided_by,
            "OPERATION": lambda one: one.operation + (f" (of {one.together})" if one.together > 1 else ""),
        },
        "no batches",
        ("BY", "BYTES", "FILES", "SINCE", "FAILED", "DECIDED BY"),
    ),
    "snapshots": ListStyle[Snapshot](
        {
            "SNAPSHOT": lambda one: str(one.snapshot_id),
            "COMMITTED": lambda one: one.committed_at,
            "CHANGE": lambda one: one.change,
            "ROWS": lambda one: one.rows,
            "ADDED": lambda one: one.added_rows,
            "OPERATION": lambda one: one.operation or "another program",
            "STATE": lambda one: list(filter(None, (_place(one), *one.refs))),
        },
        "no snapshot: nothing has been published yet",
        ("ADDED", "CHANGE", "STATE", "COMMITTED"),
    ),
    "quarantines": ListStyle[Quarantine](
        {
            "OPERATION": lambda one: one.operation,
            "ROWS": lambda one: one.rows,
            "FINISHED": lambda one: one.at,
            "REPLAYED BY": lambda one: one.replayed_by,
            "FILES": lambda one: one.folder,
        },
        "no quarantined rows",
        ("FILES", "FINISHED"),
    ),
    "schedules": ListStyle[Schedule](
        {
            "SCHEDULE": lambda one: one.name,
            "TYPE": lambda one: one.type,
            "WHEN": lambda one: " ".join(filter(None, (one.cron, one.timezone, one.when))),
            "NEXT": lambda one: "paused" if one.pause else one.next_at,
            "LAST": lambda one: one.last_at,
            "STARTED": lambda one: str(one.started or ""),
            "OPERATION": lambda one: one.operation,
            "SKIPPED": lambda one: str(one.skipped or ""),
            "WHY": skip_reason,
        },
        "no schedules",
        ("STARTED", "LAST", "OPERATION"),
    ),
}
"""Every list but those of stack traces and of quarantined rows, which are no tables."""

MEMBERS = ListStyle[tuple[Member, int]](
    {
        "MEMBER": lambda one: one[0].id,
        "ROLE": lambda one: one[0].role + (" (draining)" if one[0].draining else ""),
        "ADDRESS": lambda one: one[0].address,
        "HOST": lambda one: one[0].host,
        "PID": lambda one: str(one[0].pid or ""),
        "SINCE": lambda one: one[0].started_at,
        "TYPES": lambda one: one[0].types,
        "LEADS": lambda one: str(one[1]) if one[0].role == "coordinator" else "",
    },
    "no members",
    ("SINCE", "PID", "HOST", "TYPES", "LEADS"),
)
"""Live processes, each with how many tables it leads."""

WATERMARKS = ListStyle[tuple[str, str, str]](
    {"SOURCE": lambda one: one[0], "PARTITION": lambda one: one[1], "WATERMARK": lambda one: one[2]},
    "no watermarks: nothing has been ingested yet",
)

GRANTS = ListStyle[Grant](
    {"WHO": lambda one: one.who, "ROLE": lambda one: one.role, "TABLES": lambda one: one.tables},
    "no grant that you can see",
)


def _place(snapshot: Snapshot) -> str:
    """Where a snapshot lies in the history of its table."""
    return "present" if snapshot.present else "" if snapshot.in_history else "not in the history"
