"""What stands in etcd of what is done to a table by itself: its schedules, and when to look at them."""

from __future__ import annotations

from typing import Any

import msgspec

from distop.metastore.records.operation import PauseRecord
from distop.metastore.records.options import OperationOptions
from distop.metastore.records.record import Record

MAX_SCHEDULES = 20
"""Of one table: a leader reads them all together, and a rename moves them in one transaction."""

MAX_SCHEDULE_BYTES = 32 * 1024
"""Largest record of a schedule: so many of them must fit into one transaction."""

MAX_DECIDED = 16
"""Requests by which a repeat recognises itself."""


class Skip(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A tick at which nothing was started."""

    code: str
    """Of the error that a start would have met, such as ``INCOMPATIBLE_OPERATION``."""
    message: str = ""
    at: float = 0.0
    """When it was skipped."""
    head: int = 0
    """Of a condition: the revision of the head that it was looked at for."""


class ScheduleRecord(Record, kw_only=True):
    """``<table>.schedule.<name>``: an operation that is started at times, or on a condition.

    The transaction that starts it compares this record as it was read, and writes it with the tick decided.
    """

    type: str
    object: str = ""
    argument: dict[str, Any] = {}
    """As the caller sent it: it is planned at each tick."""
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    cron: str = ""
    """Five fields, in UTC; or:"""
    measure: str = ""
    """What is measured when the table's head has moved; it is started where that is more than:"""
    above: int = 0
    added_by: str = ""
    added_at: float = 0.0
    request: str = ""
    """The call that has added it: a repeat recognises itself."""
    pause: PauseRecord | None = None
    tick: float = 0.0
    """Ticks up to this time (seconds since the Unix epoch) are decided: what was to be started was started,
    or was skipped, or its time passed while somebody had paused it."""
    last: float = 0.0
    """The last one at which something was started, or skipped; of a condition: when that was."""
    head: int = 0
    """Of a condition: the revision of the head that it is decided for."""
    started: int = 0
    """Operations started."""
    operation: str = ""
    """The last of them."""
    skipped: int = 0
    """Ticks at which nothing was started."""
    skip: Skip | None = None
    """The last of them."""


class AgendaRecord(Record, kw_only=True):
    """``_schedules.<table>``: when a leader is to look at the schedules of a table.

    Whoever changes a schedule writes it along; so it being unchanged says that they are.
    """

    due: float | None = None
    """Seconds since the Unix epoch; 0: at once; ``None``: not because of the time."""
    watches: bool = False
    """Whether to look when the head moves, too."""
    head: int = 0
    """Its revision (0: none) when the conditions were looked at last,"""
    looked_at: float = 0.0
    """and when that was."""
    decided: list[str] = msgspec.field(default_factory=list)
    """The requests that have changed schedules last, the newest at the end: a repeat recognises itself."""
