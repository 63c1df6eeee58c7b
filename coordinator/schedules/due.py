"""What to decide about a schedule at a time, and when to look at it next. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from distop.coordinator.schedules.times import check_cron, last_tick, next_tick
from distop.errors import CorruptRecord, InvalidArgument
from distop.metastore.tables.schedules import AgendaRecord, ScheduleRecord, Skip

AGAIN_S = 60.0
"""Shortest interval between looks at the conditions of a table; also after a skipped tick, and for schedules
that only a newer version can read."""


@dataclass(frozen=True)
class Tick:
    """A schedule whose operation is to be started, or skipped."""

    at: float
    """All ticks up to it are decided with it."""
    head: int = 0
    """What the condition was evaluated for: the revision of the head, or a digest of the watermark."""

    def started(self, record: ScheduleRecord, operation: str) -> ScheduleRecord:
        """The record after its operation was started."""
        return msgspec.structs.replace(
            record,
            tick=self.at,
            last=self.at,
            head=self.head,
            started=record.started + 1,
            operation=operation,
        )

    def skipped(
        self, record: ScheduleRecord, code: str, message: str, now: float, *, passes: bool
    ) -> ScheduleRecord:
        """The record after it was skipped.

        Parameters
        ----------
        passes:
            Whether a condition is evaluated again although the head or watermark is unchanged: the obstacle
            may be gone by then. A time is not repeated.
        """
        waits = passes and not record.cron
        return msgspec.structs.replace(
            record,
            tick=self.at,
            last=self.at,
            head=record.head if waits else self.head,
            skipped=record.skipped + 1,
            skip=Skip(code=code, message=message, at=now, head=self.head),
        )


def check_times(record: ScheduleRecord) -> None:
    """Raises :class:`~distop.errors.CorruptRecord` if this version does not know its times: another release
    wrote it."""
    try:
        if record.cron:
            check_cron(record.cron, record.tick, record.timezone)
    except InvalidArgument as error:
        raise CorruptRecord(error.message) from error


def due_tick(
    record: ScheduleRecord, now: float, head: int, measures: Mapping[str, int] | None
) -> Tick | None:
    """The ticks to decide now; if there is a condition on a watermark, once it holds for them.

    Of the undecided times that have passed only the last one counts: one operation makes up for all of them.
    A clock that has jumped back shows times that are already decided.

    Parameters
    ----------
    head:
        The revision of the table's head; 0: it has none.
    measures:
        The table's measures; ``None``: not measured.
    """
    if record.pause is not None:
        return None
    if record.cron:
        at = last_tick(record.cron, record.tick, now, record.timezone)
        return Tick(at) if at is not None else None
    if record.after is not None:
        return Tick(now)
    if not looks(record, head) or measures is None or measures.get(record.measure, 0) <= record.above:
        return None
    return Tick(now, head)


def looks(record: ScheduleRecord, head: int) -> bool:
    """Whether the condition of a schedule must be evaluated."""
    return bool(record.measure) and record.pause is None and head not in (0, record.head)


def was_skipped(record: ScheduleRecord, tick: Tick) -> bool:
    """Whether this tick of a condition was already counted as skipped, and only waits for its start."""
    return not record.cron and record.skip is not None and record.skip.head == tick.head


def rested(
    agenda: AgendaRecord,
    records: Iterable[ScheduleRecord],
    head: int,
    marks: Mapping[str, int],
    now: float,
    *,
    waiting: bool,
) -> AgendaRecord:
    """When to look next, once nothing is left to decide.

    Parameters
    ----------
    marks:
        The tables on whose watermarks ticks wait, with the revisions that were evaluated.
    waiting:
        Whether a true condition could not start its operation, or a schedule could not be read.
    """
    active = [record for record in records if record.pause is None]
    # A tick that waits for a watermark is due, but not before that has moved, or the next one replaces it.
    ticks = [
        next_tick(record.cron, max(record.tick, now) if record.after else record.tick, record.timezone)
        for record in active
        if record.cron
    ]
    times = [tick for tick in ticks if tick < math.inf]
    watches = any(record.measure for record in active)
    return msgspec.structs.replace(
        agenda,
        due=min([*times, *([now + AGAIN_S] if waiting else [])], default=None),
        watches=watches,
        head=head if watches else 0,
        marks=dict(marks),
        looked_at=now if watches or marks else 0.0,
    )
