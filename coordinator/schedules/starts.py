"""What a schedule starts for a tick: the same at that time, and for a caller who makes up for it."""

from __future__ import annotations

from datetime import UTC, datetime

from distop.coordinator.schedules.templates import rendered
from distop.coordinator.starting.body import StartBody
from distop.metastore.operations.starting import digest_of
from distop.metastore.tables.schedules import ScheduleRecord
from distop.operations.api import DistributedOperation


def tick_id(name: str, record: ScheduleRecord, at: float) -> str:
    """The request id of the tick of a schedule at a time, in seconds since the Unix epoch.

    Whoever starts the operation of a tick uses it, and the transaction of a start compares that the id is as
    read. So one start happens, whatever leader is killed, sleeps or is replaced, and whenever a copy of a
    call arrives; the others are answered with its operation. It is started again only by a new call, and if
    it has failed. A schedule that is removed and added again has other ids.
    """
    return f"schedule.{name}.{record.request[:12]}.{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def tick_body(
    table: str, kind: DistributedOperation, record: ScheduleRecord, at: float, request_id: str
) -> StartBody:
    """The operation of a tick; ``request_id`` makes its digest that of no other one."""
    argument = record.argument
    if record.version > 1:  # in a schedule of release 0.2.0 braces are braces
        argument = rendered(argument, at, record.timezone)
    return StartBody(
        table=table,
        type=kind.type,
        object=record.object,
        argument=argument,
        options=record.options,
        digest=digest_of([kind.type, record.object, argument, request_id]),
    )
