"""Schedules as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table as Grid

from distop.cli.output.screen import grid_of
from distop.cli.output.style import paused, printable
from distop.cli.output.texts import asked_for, when
from distop.client import Schedule


def schedules_grid(schedules: Sequence[Schedule]) -> Grid:
    """A line for each schedule."""
    grid = grid_of("SCHEDULE", "TYPE", "WHEN", "NEXT", "LAST", "STARTED", "OPERATION", "SKIPPED", "WHY")
    for one in schedules:
        grid.add_row(
            printable(one.name),
            printable(one.type),
            printable(" ".join(filter(None, (one.cron, one.timezone, one.when)))),
            "paused" if one.pause else when(one.next_at),
            when(one.last_at),
            str(one.started or ""),
            printable(one.operation),
            str(one.skipped or ""),
            _why(one),
        )
    return grid


def schedule_pairs(one: Schedule) -> list[tuple[str, str]]:
    """One schedule, as names and values."""
    return [
        ("schedule", one.name),
        ("table", one.table),
        ("starts", "/".join(filter(None, (one.type, one.object)))),
        *asked_for(one.argument),
        (f"at ({printable(one.timezone) or 'UTC'})", one.cron),
        ("when", one.when),
        ("next", when(one.next_at)),
        ("paused", paused(one.pause)),
        ("started", str(one.started or "")),
        ("last operation", one.operation),
        ("skipped", f"{one.skipped}, last {when(one.skipped_at)}: {_why(one)}" if one.skipped else ""),
        ("added by", one.added_by),
        ("added", when(one.added_at)),
    ]


def _why(one: Schedule) -> str:
    return printable(f"{one.skip.code}: {one.skip.message}") if one.skip else ""
