"""Conditions of schedules, what to decide about a schedule at a time, and when to look at it next.

A condition is on a cheap measure of a table, or on a watermark of any table. All measures are in the metadata
file of the published snapshot: nothing is listed, and no manifest is read. Only :func:`measured` reads it;
the rest is pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from distop.coordinator.schedules.times import check_cron, last_tick, next_tick, rendered
from distop.errors import CorruptRecord, InvalidArgument, PreconditionFailed
from distop.lake.iceberg.measures import MEASURES
from distop.lake.iceberg.watermarks import is_after
from distop.lake.storage.storage import storage_of
from distop.metastore.records.names import check_table_name
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.schedules import After, AgendaRecord, ScheduleRecord, Skip

_WRITTEN = re.compile(r"\s*([a-z_]+)\s*>\s*([0-9][0-9_]{0,17})\s*")


_AFTER = re.compile(
    r"\s*watermark\(\s*([^,()\s]+)\s*,\s*(\S.*?)\s*,\s*([^,\s][^,]*?)\s*\)\s*>=\s*(\S.*?)\s*", re.DOTALL
)


@dataclass(frozen=True)
class Condition:
    """What stands in the record of a schedule: a measure with its limit, or a watermark."""

    measure: str = ""
    above: int = 0
    after: After | None = None

    def __str__(self) -> str:
        if (after := self.after) is not None:
            return f"watermark({after.table}, {after.source}, {after.partition}) >= {after.value}"
        return f"{self.measure} > {self.above}" if self.measure else ""


def parse_condition(text: str) -> Condition:
    """Parse the text of ``--when``; raises :class:`~distop.errors.InvalidArgument`."""
    if (match := _AFTER.fullmatch(text)) is not None:
        table = check_table_name(match[1], "when")
        return Condition(after=After(table=table, source=match[2], partition=match[3], value=match[4]))
    match = _WRITTEN.fullmatch(text)
    if match is None or match[1] not in MEASURES:
        raise InvalidArgument(
            f"{text[:100]!r} is not a condition",
            hint=f"such as 'small_files > 200'; measures: {', '.join(sorted(MEASURES))}; or "
            "'watermark(TABLE, SOURCE, PARTITION) >= VALUE', as distop watermark list TABLE shows them",
            details={"field": "when"},
        )
    return Condition(measure=match[1], above=int(match[2]))


def condition_of(record: ScheduleRecord) -> Condition:
    """The condition of a schedule; of one without: an empty one."""
    return Condition(record.measure, record.above, record.after)


def after_at(after: After, tick: float, timezone: str) -> After:
    """A condition with its templates rendered for a tick; raises :class:`~distop.errors.InvalidArgument`."""
    parts = rendered([after.source, after.partition, after.value], tick, timezone, "when")
    return After(table=after.table, source=parts[0], partition=parts[1], value=parts[2])


def is_reached(after: After, current: str | None) -> bool:
    """Whether a watermark is at the value of a condition, or beyond it, in the order of watermarks."""
    return current is not None and not is_after(after.value, current)


def state_of(current: str) -> int:
    """A number for a watermark's value: a record has no room for long ones."""
    return int.from_bytes(sha256(current.encode()).digest()[:6], "big")


def check_measured(table: TableRecord) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` for a table without measures."""
    if table.format != "iceberg":
        raise PreconditionFailed(
            f"table {table.name!r} has format {table.format}: conditions need the metadata of Iceberg tables",
            hint="give a cron expression instead",
            details={"field": "when", "table": table.name},
        )


def measured(table: TableRecord, head: Head) -> dict[str, int]:
    """All measures of a published state. Reads its metadata file."""
    from distop.lake.layout.model import load_metadata

    metadata = load_metadata(head.metadata_location, storage=storage_of(table))
    snapshot = metadata.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return {name: measure(metadata, summary) for name, measure in MEASURES.items()}


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
