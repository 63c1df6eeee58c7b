"""Starts the operations of one table's schedules, once for each tick: a part of the table's leader.

The transaction that starts the operation of a tick carries the leader's epoch, compares the schedule as read,
and writes it with the tick decided. So a tick is decided once, whatever process dies, is suspended or loses a
reply; and since it is examined again until it is decided, it is at most late.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from distop import errors
from distop.coordinator.metrics.counts import code_of
from distop.coordinator.schedules.due import (
    Tick,
    after_at,
    check_times,
    due_tick,
    is_reached,
    looks,
    measured,
    rested,
    state_of,
    was_skipped,
)
from distop.coordinator.schedules.times import rendered
from distop.coordinator.starting.body import StartBody
from distop.coordinator.starting.launching import Launched, Launcher
from distop.coordinator.starting.services import Services, Term
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put, Txn, absent, unchanged
from distop.metastore.operations.starting import author_and_reason, digest_of, operation_in_the_way
from distop.metastore.records.operation import OperationArg, PauseRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.schedules import After, ScheduleRecord, agenda_of, all_of, name_in
from distop.metastore.tables.watermarks import read_mark
from distop.operations.api import DistributedOperation
from distop.process.loop import log_failure

log = logging.getLogger(__name__)


def tick_id(name: str, record: ScheduleRecord, at: float) -> str:
    """The run of the tick of a schedule at a time, in seconds since the Unix epoch.

    Whoever starts the operation of a tick uses it, and the transaction of a start compares that the id is as
    read. So one start happens, whatever leader is killed, sleeps or is replaced, and whenever a copy of a
    call arrives; the others are answered with its operation. It is started again only by a new call, and if
    it has failed. A schedule that is removed and added again has other ids.
    """
    return f"schedule.{name}.{record.request[:12]}.{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def tick_body(
    table: str, kind: DistributedOperation, record: ScheduleRecord, at: float, run: str
) -> StartBody:
    """The operation of a tick; ``run`` makes its digest that of no other one."""
    argument = record.argument
    if record.version > 1:  # in a schedule of release 0.2.0 braces are braces
        argument = rendered(argument, at, record.timezone)
    return StartBody(
        table=table,
        type=kind.type,
        object=record.object,
        argument=argument,
        options=record.options,
        digest=digest_of([kind.type, record.object, argument, run]),
    )


RETRY_S = 0.5
"""Back-off after etcd was unreachable, or a race was lost."""

MEASURE_S = 60.0
"""Longest read of a table's metadata, in seconds."""

MAX_MESSAGE_LENGTH = 500


@dataclass(frozen=True)
class TickerState:
    """The schedules of a table at one revision."""

    agenda: KeyValue
    table: KeyValue
    head: KeyValue
    pause: KeyValue
    run_ops: KeyValue
    schedules: Mapping[str, tuple[KeyValue, ScheduleRecord]]
    unreadable: bool
    """Whether there are schedules of a newer version: their times are unknown here."""


class Ticker:
    """The schedules of one table in one term of its leader. Ticks go by the wall clock."""

    def __init__(self, services: Services, term: Term) -> None:
        self._services, self._term = services, term
        self._client, self._keys, self._wall = services.client, term.keys, services.wall
        self._launcher = Launcher(
            services,
            term,
            before=lambda: reached("schedule.start.before"),
            after=lambda: reached("schedule.start.after"),
        )
        self._changed = asyncio.Event()
        self.busy = False
        """A tick may be due."""

    def notify(self) -> None:
        """A time has come, the table's head has moved, or a schedule was changed."""
        self.busy = True
        self._changed.set()

    async def run(self) -> None:
        """Decide ticks until cancelled; raises when the epoch is over."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._term.check()
            try:
                done = await self._look()
            except (errors.LeadershipLost, errors.LeaseLost):
                raise
            except Exception as error:
                # No etcd, no thread to plan, or a defect: not the schedule's fault. Its tick waits.
                log_failure(log, "schedules_wait", error, table=self._keys.name)
                done = False
            if not done:
                await asyncio.sleep(RETRY_S * random.uniform(0.1, 1.0))
                self._changed.set()
            self.busy = self._changed.is_set()

    async def _look(self) -> bool:
        """Decide what is due; return whether nothing is left."""
        read = await self._read()
        if not read.agenda.exists:
            return True
        if not read.table.exists:
            gone = Txn((absent(read.table.key), unchanged(read.agenda)), (DeleteRange(read.agenda.key),))
            return await self._launcher.settled(gone, lambda: None)
        now, head = self._wall(), read.head.mod_revision
        measures, failure = await self._measured(read)
        acted, waiting, marks = False, read.unreadable, dict[str, int]()
        for name, (kv, record) in read.schedules.items():
            unmeasured = failure if looks(record, head) else None
            tick = due_tick(record, now, head, measures) if unmeasured is None else Tick(now, head)
            if tick is not None and record.after is not None:
                tick = await self._reached(record, record.after, tick, marks)
            if tick is None:
                continue
            try:
                started = await self._start(read, name, kv, record, tick, unmeasured)
            except errors.OF_THE_WORLD:
                raise
            except Exception as error:
                if was_skipped(record, tick):
                    waiting = True
                    continue
                await self._skip(name, kv, record, tick, error)
            else:
                if started is not Launched.STARTED:
                    return False
                self._services.metrics.schedule_ticked(record.type, started=True)
            acted = True
        # Read the decisions before writing when to look next.
        if acted:
            self._changed.set()
            return True
        return await self._rest(read, marks, now, waiting=waiting)

    async def _read(self) -> TickerState:
        keys = self._keys
        wanted = [Get(key) for key in (keys.agenda, keys.table, keys.head, keys.pause, keys.run_ops)]
        read = await self._client.read_at_once([*wanted, all_of(keys)])
        schedules = {}
        for kv in read.got(len(wanted)):
            try:
                name = name_in(keys, kv.key)
                record = decode(kv.value, ScheduleRecord, kv.key)
                check_times(record)
                schedules[name] = kv, record
            except errors.CorruptRecord as error:  # a newer version's, whose coordinators decide about it
                log.error("schedule_unreadable", extra={"table": keys.name, "error": str(error)})
        agenda, table, head, pause, run_ops = read.each(get.key for get in wanted)
        unreadable = len(schedules) < len(read.got(len(wanted)))
        return TickerState(agenda, table, head, pause, run_ops, schedules, unreadable)

    async def _measured(self, read: TickerState) -> tuple[Mapping[str, int] | None, Exception | None]:
        """The measures of the table, or why they are unavailable; neither if no schedule needs them."""
        head = read.head.mod_revision
        if not any(looks(record, head) for _, record in read.schedules.values()):
            return None, None
        try:
            table = decode(read.table.value, TableRecord, read.table.key)
            state = decode(read.head.value, Head, read.head.key)
            work, label = self._services.planning, "measuring the table for its schedules"
            return await work.blocking(table.name, label, measured, table, state, limit_s=MEASURE_S), None
        except errors.OF_THE_WORLD:
            raise
        except Exception as error:
            return None, error

    async def _reached(
        self, record: ScheduleRecord, after: After, tick: Tick, marks: dict[str, int]
    ) -> Tick | None:
        """The tick, if the watermark that it waits for is there. Notes in ``marks`` the revision that was
        looked at: the table is looked at again once that has moved."""
        wanted, keys = after_at(after, tick.at, record.timezone), self._keys.keyspace.table(after.table)
        try:
            current, revision = await read_mark(self._client, keys, wanted.source, wanted.partition)
        except errors.CorruptRecord as error:  # it counts as one that has moved
            log.error("watermark_unreadable", extra={"table": after.table, "error": str(error)})
            current, revision = None, -1
        # Another condition may have been evaluated on an earlier one.
        marks[after.table] = min(marks.get(after.table, revision), revision)
        if current is None or not is_reached(wanted, current):
            return None
        if record.cron:
            return tick
        return replace(tick, head=state_of(current)) if state_of(current) != record.head else None

    async def _start(
        self,
        read: TickerState,
        name: str,
        kv: KeyValue,
        record: ScheduleRecord,
        tick: Tick,
        unmeasured: Exception | None,
    ) -> Launched:
        """Start the operation of a tick; raises why the tick is skipped."""
        if unmeasured is not None:
            raise unmeasured
        keys, registry = self._keys, self._services.registry
        kind = registry.get(record.type)
        # The same while the schedule is unchanged; a start changes it.
        call = f"schedule.{name}.{kv.mod_revision}"
        run = tick_id(name, record, tick.at) if record.cron else call
        body = tick_body(keys.name, kind, record, tick.at, run)
        self._check_free(read, kind, body, record)

        def share(arg: OperationArg) -> Txn:
            return Txn((unchanged(kv),), (Put(kv.key, encode(tick.started(record, str(arg.id)))),))

        return await self._launcher.launch(
            kind, body, call, share, [kv], run=run, started_by=record.added_by, schedule=name
        )

    def _check_free(
        self, read: TickerState, kind: DistributedOperation, body: StartBody, record: ScheduleRecord
    ) -> None:
        """Raise what a start would, so that the tick is skipped before anything is planned."""
        table, registry = self._keys.name, self._services.registry
        if read.pause.exists:
            pause = decode(read.pause.value, PauseRecord, read.pause.key)
            raise errors.TablePaused(f"table {table!r} is paused{author_and_reason(pause)}")
        request = body.request("", kind)
        other = operation_in_the_way(
            read.run_ops.value, request, lambda running: registry.compatible(kind, running)
        )
        if other is not None:
            last = "its last operation, " if str(other) == record.operation else ""
            raise errors.IncompatibleOperation(
                f"{last}{other}, is running" if last else f"{other} is running"
            )

    async def _skip(
        self, name: str, kv: KeyValue, record: ScheduleRecord, tick: Tick, error: Exception
    ) -> None:
        """Record that nothing was started, and why."""
        in_the_way = isinstance(error, errors.IncompatibleOperation | errors.TablePaused)
        passes = in_the_way or not isinstance(error, errors.DistopError) or error.retryable
        message = errors.shortened(str(error), MAX_MESSAGE_LENGTH)
        left = tick.skipped(record, code_of(error), message, self._wall(), passes=passes)
        txn = Txn((unchanged(kv),), (Put(kv.key, encode(left)),))
        reached("schedule.skip.before")
        # Refused: the schedule has changed meanwhile, and the next look shows how.
        if await self._launcher.settled(txn, lambda: reached("schedule.skip.after")):
            self._services.metrics.schedule_ticked(record.type, started=False)
            fields = {"table": self._keys.name, "schedule": name, "code": code_of(error), "error": message}
            log.warning("schedule_skipped", extra=fields, exc_info=errors.defect_of(error))

    async def _rest(self, read: TickerState, marks: Mapping[str, int], now: float, *, waiting: bool) -> bool:
        """Record in etcd when to look next, unless something has changed since this look; return whether it
        was."""
        try:
            agenda = agenda_of(read.agenda)
        except errors.CorruptRecord as error:  # a newer version's, as above
            log.error("schedule_unreadable", extra={"table": self._keys.name, "error": str(error)})
            return True
        records = [record for _, record in read.schedules.values()]
        left = rested(agenda, records, read.head.mod_revision, marks, now, waiting=waiting)
        if left == agenda:
            return True
        txn = Txn((unchanged(read.agenda),), (Put(read.agenda.key, encode(left)),))
        reached("schedule.rest.before")
        return await self._launcher.settled(txn, lambda: reached("schedule.rest.after"))
