"""What pages draw: where things lie on a line of time, or in a calendar. Pure: messages in, places out."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from distop.coordinator.views.messages import state_of_batch
from distop.coordinator.views.why import many, seconds_of
from distop.proto import distop_pb2 as pb

WIDTH, HEIGHT = 1000.0, 100.0
"""The size of a drawing, in its own units: a browser scales it."""

_BEGINS = {
    "started": "waiting",
    "taken": "running",
    "waits again": "waiting",
    "sealed": "completing",
    "parked": "parked",
    "decided": "completing",
}
"""What an operation does after an event; after others it goes on with what it did."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What an operation did for a while."""

    name: str
    seconds: float
    at: float
    """Where it begins, and how wide it is, in units of the drawing."""
    width: float


def phases(events: Iterable[pb.Event], end: float) -> list[Phase]:
    """The phases of an operation up to ``end``, in seconds since the epoch; none without events."""
    begun: list[tuple[str, float]] = []
    for event in events:
        name = _BEGINS.get(event.what)
        if name is not None and (not begun or begun[-1][0] != name):
            # By the clocks of several hosts: no phase begins before the one that it follows.
            begun.append((name, max(seconds_of(event.at), begun[-1][1] if begun else 0.0)))
    if not begun:
        return []
    first = begun[0][1]
    scale = WIDTH / max(end - first, 1e-3)
    ends = [*(at for _, at in begun[1:]), end]
    return [
        Phase(name, until - at, (at - first) * scale, max(until - at, 0.0) * scale)
        for (name, at), until in zip(begun, ends, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """A count over time."""

    name: str
    last: int
    path: str
    """Of an SVG path, in units of the drawing: each value lasts until the next one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Some counts over the same time, by one scale that begins at 0."""

    title: str
    lines: Sequence[Line]
    highest: int
    begin: float
    """In seconds since the epoch; it ends now."""


def over_time(snapshots: Iterable[pb.Snapshot], now: float) -> list[Chart]:
    """How a table's rows and files have become what they are ``now``, in seconds since the epoch; nothing
    with less than two snapshots."""
    history = sorted(
        (snapshot for snapshot in snapshots if snapshot.in_history),
        key=lambda snapshot: seconds_of(snapshot.committed_at),
    )
    charts = []
    for title, fields in (("Rows", ("rows",)), ("Files", ("files", "small_files"))):
        known = [snapshot for snapshot in history if all(snapshot.HasField(field) for field in fields)]
        if len(known) < 2:
            continue
        begin = seconds_of(known[0].committed_at)
        end = max(now, seconds_of(known[-1].committed_at))  # by the clocks of other programs
        scale = WIDTH / max(end - begin, 1e-3)
        highest = max(getattr(snapshot, field) for snapshot in known for field in fields)
        lines = []
        for field in fields:
            path = ""
            for snapshot in known:
                y = HEIGHT * (1 - getattr(snapshot, field) / max(highest, 1))
                x = (seconds_of(snapshot.committed_at) - begin) * scale
                path += f"H{x:.1f}V{y:.1f}" if path else f"M0 {y:.1f}"
            path += f"H{WIDTH:.1f}"
            lines.append(Line(field.replace("_", " "), getattr(known[-1], field), path))
        charts.append(Chart(title, lines, highest, begin))
    return charts


_DAY = re.compile(r"(?<!\d)(\d{4})(-?)(\d{2})\2(\d{2})(?!\d)")
"""A day in the name of a batch: ``2024-01-15`` or ``20240115``."""

_WORST = ("failed", "approval", "rewritten", "running", "waiting", "skipped", "applied")
"""States of batches; the first one that a batch of a day has is that of the day."""

MONTHS = 12


@dataclass(frozen=True, slots=True)
class Day:
    """The batches of one day."""

    state: str
    label: str
    operation: str
    """Of a batch in that state; empty: none has it yet."""


def _day_of(name: str) -> date | None:
    """The first day that is part of a batch's name."""
    if (match := _DAY.search(name)) is None:
        return None
    try:
        return date(int(match[1]), int(match[3]), int(match[4]))
    except ValueError:
        return None


def first_shown(last: str) -> str:
    """The name from which on applied batches fit into a calendar that ends with the one called ``last``: of
    the last twelve months, or of one if a day has several. Empty: all, since names have no days."""
    match, day = _DAY.search(last), _day_of(last)
    if match is None or day is None:
        return ""
    months = day.year * 12 + day.month - (MONTHS if match.end() == len(last) else 1)
    return f"{last[: match.start()]}{months // 12:04}{match[2]}{months % 12 + 1:02}{match[2]}01"


def by_day(*listed: pb.ListBacklogResponse) -> list[tuple[str, list[Day | None]]]:
    """A calendar of batches whose names have days: for each month, the newest first, its 31 days.

    A batch that is in two lists, as one that is applied again, counts as in the first one.
    """
    named: dict[str, tuple[date, str, str]] = {}
    for answer in listed:
        for batch in answer.batches:
            if batch.name not in named and (day := _day_of(batch.name)) is not None:
                named[batch.name] = day, state_of_batch(batch, answer.ordering), batch.operation
    days: dict[date, list[tuple[str, str]]] = defaultdict(list)
    for day, state, operation in named.values():
        days[day].append((state, operation))
    months: dict[str, list[Day | None]] = {}
    for day, batches in sorted(days.items(), reverse=True):
        month = months.setdefault(f"{day:%Y-%m}", [None] * 31)
        state, operation = min(batches, key=lambda batch: _WORST.index(batch[0]))
        counts = Counter(state for state, _ in batches)
        label = f"{day}: {state}"
        if len(batches) > 1:
            each = ", ".join(f"{counts[state]:,} {state}" for state in _WORST if counts[state])
            label = f"{day}: {many(len(batches), 'batch', 'batches')}: {each}"
        month[day.day - 1] = Day(state, label, operation)
    return list(months.items())[:MONTHS]
