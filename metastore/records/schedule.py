"""Records of schedules in etcd: the schedules of tables, and when to look at them."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from distop.metastore.records.operation import OperationOptions, PauseRecord
from distop.metastore.records.record import Record

MAX_SCHEDULES = 20
"""Most schedules of one table: a leader reads them together, and a rename moves them in one transaction."""

MAX_SCHEDULE_BYTES = 32 * 1024
"""Largest record of a schedule: all of them must fit into one transaction."""

MAX_DECIDED = 16
"""Requests whose repetitions are recognised."""


class Skip(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A skipped tick."""

    code: str
    """Code of the error that the start would have raised, such as ``INCOMPATIBLE_OPERATION``."""
    message: str = ""
    at: float = 0.0
    """When it was skipped."""
    head: int = 0
    """Of a condition: what it was evaluated for, as in the schedule."""


class After(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The condition that a watermark, mostly of another table, has reached a value."""

    table: str
    source: str
    partition: str
    value: str


class ScheduleRecord(Record, kw_only=True):
    """``<table>.schedule.<name>``: an operation that is started at times, or on a condition.

    The transaction that starts it compares this record as it was read, and writes it with the tick decided.
    Layout 2 is for those that release 0.2.0 would start at other times, or otherwise: with a time zone,
    templates, or a condition on a watermark.
    """

    LAYOUT: ClassVar[int] = 2
    type: str
    object: str = ""
    argument: dict[str, Any] = {}
    """The argument as the caller sent it: it is rendered and planned at each tick."""
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    cron: str = ""
    """Five fields; empty: it has a condition. Or both, if that is on a watermark."""
    timezone: str = ""
    """Of the cron expression, and of the times in templates; empty: UTC."""
    measure: str = ""
    """The measure, evaluated when the table's head has moved; the operation starts if it is more than:"""
    above: int = 0
    after: After | None = None
    """The condition on a watermark, if that is what it waits for."""
    added_by: str = ""
    added_at: float = 0.0
    request: str = ""
    """Id of the call that added it, to recognise a repetition."""
    pause: PauseRecord | None = None
    tick: float = 0.0
    """Ticks up to this time (seconds since the Unix epoch) are decided: the operation was started or skipped,
    or the time passed while the schedule was paused."""
    last: float = 0.0
    """The last one that was started or skipped; of a condition: when that was."""
    head: int = 0
    """Of a condition: what it is decided for, the revision of the head or a digest of the watermark."""
    started: int = 0
    """Operations started."""
    operation: str = ""
    """The last of them."""
    skipped: int = 0
    """Skipped ticks."""
    skip: Skip | None = None
    """The last of them."""


class AgendaRecord(Record, kw_only=True):
    """``_schedules.<table>``: when a leader must look at the schedules of a table.

    Every change of a schedule also writes this record; so if it is unchanged, they are.
    """

    due: float | None = None
    """Seconds since the Unix epoch; 0: at once; ``None``: no time is due."""
    watches: bool = False
    """Whether to look also when the head moves."""
    head: int = 0
    """Its revision (0: none) at the last evaluation of the conditions,"""
    marks: dict[str, int] = {}
    """The tables whose watermarks conditions wait for, with the revisions of these then (0: none),"""
    looked_at: float = 0.0
    """and when that was."""
    decided: list[str] = msgspec.field(default_factory=list)
    """The requests that changed schedules last, the newest at the end, to recognise repetitions."""
