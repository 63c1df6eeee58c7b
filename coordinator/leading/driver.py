"""The leader of one table: follows its operations, decides what to do about each, and drives it to its end.

Level-triggered: it lists the table's operations at a revision, watches from the next one, and acts on the
state in etcd. State in memory is a cache that can be discarded and read again. That happens when the watch
loses history, and when another leader begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress

from distop import errors
from distop.coordinator.backlog.drainer import Drainer
from distop.coordinator.completion.completion import Completion
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.state.tracker import (
    LED,
    Action,
    Collect,
    Finish,
    Nothing,
    Resolve,
    Seal,
    Tracked,
    decide,
    event,
)
from distop.coordinator.state.tracker import sealed as sealed_event
from distop.metastore.backlog.batches import WAITING
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, Put, Txn, equals, named
from distop.metastore.etcd.watch import watch
from distop.metastore.members.lease import Epoch
from distop.metastore.operations.ending import seal
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import OperationId, escape, prefix_end
from distop.metastore.records.operation import RUNNING, ErrorRecord, JobCountsRecord, OperationArg
from distop.metastore.records.record import decode, encode
from distop.process.loop import cancel_all, log_failure
from distop.process.tracing import Span

log = logging.getLogger(__name__)


COUNT_EVERY_S = 1.0
"""Shortest time between two records of how many jobs of an operation are done."""


class DrivenOperation:
    """One tracked operation, with its running action and the time of its next attempt."""

    def __init__(self, tracked: Tracked, deadline: float | None) -> None:
        self.tracked = tracked
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        self.action: Action = Nothing()
        """The running action, or the last one."""
        self.not_before = 0.0
        self.failures = tracked.completion.attempts
        """Failed attempts at the present action in a row, with those of the leaders before."""
        self._recorded = JobCountsRecord()
        self._record_at = 0.0
        self._recording: asyncio.Task[None] | None = None

    def tasks(self) -> list[asyncio.Task[None]]:
        """The running tasks."""
        return [task for task in (self.task, self._recording) if task is not None]

    def due(self, now: float) -> list[float]:
        """The times of its timers."""
        times = [self._record_at] if self._is_outdated() else []
        if self.task is None:
            times.append(self.not_before)
            if self.deadline is not None:
                times.append(self.deadline)
        return [time for time in times if time > now]

    def _is_outdated(self) -> bool:
        """Whether ``.jobCounts``, if the operation has it, is out of date; or ``.events`` must be written."""
        if self.tracked.state != RUNNING:
            return False
        if self.tracked.timeline.unrecorded or not self.tracked.has_many:
            return self.tracked.timeline.unrecorded
        jobs, recorded = self.tracked.jobs, self._recorded
        return (jobs.succeeded, jobs.failed) != (recorded.succeeded, recorded.failed)

    def record_progress(self, client: EtcdClient, epoch: Epoch, now: float) -> None:
        """Record how many jobs are done, and what no other key says for long, if it is time.

        Nothing depends on it, and it is soon repeated. So nothing waits for it.
        """
        if self._record_at > now or not self._is_outdated():
            return
        self._recorded, self._record_at = self.tracked.counts(), now + COUNT_EVERY_S
        keys, timeline = self.tracked.keys, self.tracked.timeline
        puts: tuple[Put, ...] = ()
        if self.tracked.has_many:
            puts = (Put(keys.job_counts, encode(self._recorded, checked=False)),)
        if timeline.unrecorded:
            puts += (Put(keys.events, encode(self.tracked.events())),)
        had_events, timeline.unrecorded = timeline.unrecorded, False
        txn = Txn((equals(keys.state, RUNNING), epoch.held()), puts, lane=keys.table_prefix)

        async def send() -> None:
            try:
                await client.txn(txn, timeout_s=COUNT_EVERY_S)
            except errors.DistopError:
                timeline.unrecorded |= had_events

        self._recording = asyncio.create_task(send())


class Alarm:
    """Belongs to one event loop; has one waiter.

    Setting it for a later time than the one already set costs nothing. That is the common case: most events
    that a leader waits for happen long before any of these times.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Set the event now."""
        self._event.set()

    async def within(self, seconds: float) -> None:
        """Wait for the event, this many seconds at most. It may end earlier, without a reason."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is None or self._timer.when() > at:
            self.cancel()
            self._timer = loop.call_at(at, self._due)
        await self._event.wait()
        self._event.clear()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._event.set()


FEW = 32
"""Operations of a table, and keys of an operation, that a new leader reads in the same requests as those of
other tables. A member that takes over a thousand tables would otherwise make several requests for each."""

PAGE = 2000
"""Keys of a larger operation read in one request: few enough not to block the event loop for long."""

CHECK_STATES_S = 30.0
"""How often a leader checks whether the state of an operation, or what parks it, was removed by hand."""

TAKES_OVER_S = 5.0
"""An operation that has run for longer when its leader begins had another one before."""

LIST_AGAIN_S = 0.2
"""Pause after a listing that failed."""

WIND_DOWN_S = 2.0
"""Longest wait for running actions before a table is handed over."""


class TableDriver:
    """Leads one table for one term.

    Parameters
    ----------
    paused:
        Whether an operation is paused, as far as is known; call :meth:`look_again` when it changes.
        The transactions compare it again.
    member:
        The id of this coordinator, for people.
    """

    def __init__(
        self,
        services: Services,
        term: Term,
        completion: Completion,
        *,
        paused: Callable[[OperationId], bool] = lambda _: False,
        member: str = "",
    ) -> None:
        self._services, self._term, self._completion = services, term, completion
        self._client, self._keys = services.client, term.keys
        self._clock, self._wall = services.clock, services.wall
        self._paused, self._member = paused, member
        self._slots: dict[bytes, DrivenOperation] = {}
        self._of_batches = (
            self._keys.backlog_prefix,
            self._keys.applied_prefix,
            self._keys.unordered_prefix,
        )
        self._alarm = Alarm()
        self._results, self._leaders = services.caches.results, services.caches.leaders
        self._cache = services.caches.table(self._keys)
        self._drainer = Drainer(services, term, rested=self._alarm.ring)
        self._winds_down = False
        """No new action is started."""
        self._lost = False
        """The leader's key is gone, or another leader's."""
        self.idle_since: float | None = None
        """When the table was last seen without any operation, by the monotonic clock."""
        self._listed = False

    def tracked(self) -> Iterator[Tracked]:
        """The operations it follows at present."""
        return (slot.tracked for slot in self._slots.values())

    def look_again(self) -> None:
        """Call when something has changed that the driver does not watch itself."""
        self._alarm.ring()
        self._notify_drainer()

    def _notify_drainer(self) -> None:
        self._drainer.notify()
        self.idle_since = None

    def key_read(self, kv: KeyValue) -> None:
        """Call with the leader's key, as read after the driver was made: without its own :meth:`run` ends."""
        if kv.create_revision != self._term.epoch.revision:
            self._lost = True
            self._alarm.ring()

    async def wind_down(self) -> bool:
        """Start no action and wait for running ones; returns whether all ended. If not, work goes on."""
        self._winds_down = True
        tasks = [slot.task for slot in self._slots.values() if slot.task is not None]
        if tasks and (await asyncio.wait(tasks, timeout=WIND_DOWN_S))[1]:
            self._winds_down = False
            self._alarm.ring()
        return self._winds_down

    async def run(self) -> None:
        """Drive the table until cancelled.

        Raises
        ------
        LeadershipLost, LeaseLost
            The epoch is over; another coordinator leads, or will.
        """
        try:
            while True:
                try:
                    await self._follow()
                except errors.Compacted:
                    log.info("table_relisted", extra=self._term.fields)
                except (errors.Unavailable, errors.Busy) as error:
                    log.warning("table_unreadable", extra={**self._term.fields, "error": str(error)})
                    await asyncio.sleep(LIST_AGAIN_S)
        finally:
            await self._drop_all()

    async def _drop_all(self) -> None:
        slots = list(self._slots.values())
        self._slots.clear()
        self._cache.leave()
        for slot in slots:
            self._leaders.leave(slot.tracked)
        await cancel_all(*(task for slot in slots for task in slot.tasks()))
        self._results.leave(self._keys.history_prefix)

    # -- reading etcd ----------------------------------------------------------------------------------

    async def _list(self) -> int:
        """Read everything again, at one revision; returns it."""
        self._term.check()
        prefix = self._keys.keyspace.active + escape(self._keys.name).encode() + b"."
        wanted = [
            Get(self._keys.coordinator),
            Get(self._keys.backlog_index),
            Get(prefix, prefix_end(prefix), keys_only=True, limit=FEW),
        ]
        read = await self._client.read_in_lane(wanted, self._keys.prefix)
        revision, active = read.revision, read.got(2)
        self.key_read(read.single(0, self._keys.coordinator))
        self._check()
        if read.counts[2] > len(active):
            active = (await self._client.scan(prefix, revision=revision, keys_only=True)).kvs
        for operation, _ in named(active, self._keys.keyspace.parse_active):
            await self._track(operation, revision)
        self._listed = True
        self._drainer.begin(revision, work=bool(read.got(1)))
        self._cache.follow(revision)
        self._results.follow_table(self._keys.history_prefix, revision)
        self._note_idle()
        self._alarm.ring()
        return revision

    async def _track(self, operation: OperationId, revision: int) -> None:
        """Begin to follow an operation, from its state at ``revision``."""
        keys = self._keys.operation(operation)
        read = await self._client.read_in_lane([Get(keys.arg, revision=revision)], self._keys.prefix)
        arg_kv = read.single(0, keys.arg)
        tracked = self._begin(keys, arg_kv) if arg_kv.exists else None
        if tracked is None:
            return
        if tracked.total > FEW or not await self._apply_few(tracked, revision):
            pages = self._client.pages(keys.prefix, prefix_end(keys.prefix), limit=PAGE, revision=revision)
            async with aclosing(pages):
                async for page in pages:
                    for kv in page.kvs:
                        tracked.apply_put(kv)
        for reason in tracked.unreadable.values():
            self._report_unreadable(str(operation), reason)
        self._keep(tracked)

    async def _apply_few(self, tracked: Tracked, revision: int) -> bool:
        """Read all keys of an operation with few jobs and apply them; returns whether there were no more."""
        prefix = tracked.keys.prefix
        wanted = Get(prefix, prefix_end(prefix), limit=FEW, revision=revision)
        read = await self._client.read_in_lane([wanted], self._keys.prefix)
        for kv in read.got(0):
            tracked.apply_put(kv)
        return read.counts[0] <= FEW

    def _begin(self, keys: OperationKeys, arg_kv: KeyValue) -> Tracked | None:
        """The operation of an argument; ``None`` if this version cannot decode it."""
        try:
            arg = decode(arg_kv.value, OperationArg, arg_kv.key)
        except errors.CorruptRecord as error:
            # A newer version has started it and must end it. The table's other operations continue.
            self._report_unreadable(str(keys.operation), error)
            return None
        return Tracked(keys, arg)

    def _keep(self, tracked: Tracked) -> None:
        """Follow an operation from here on: all its present keys have been applied."""
        arg, keys = tracked.arg, tracked.keys
        deadline = None
        if arg.options.deadline_s is not None:
            # Wall clocks of hosts are compared once, here; then only this host's monotonic clock counts.
            deadline = self._clock() + arg.started_at + arg.options.deadline_s - self._wall()
        tracked.timeline.lead(event(self._wall(), LED, self._member))
        # Another leader has probably driven it before. Its other keys do not say who.
        tracked.timeline.unrecorded |= self._wall() - arg.started_at > TAKES_OVER_S
        self._slots[keys.root] = DrivenOperation(tracked, deadline)
        self._leaders.lead(tracked)
        self._results.lead(self._keys.history(keys.operation))
        fields = {**self._term.fields, "operation": str(keys.operation), "jobs": tracked.total}
        log.debug("operation_tracked", extra=fields)

    async def _follow(self) -> None:
        self._listed = False
        await self._drop_all()
        followers = [
            asyncio.create_task(self._pump(), name=f"pump-{self._keys.name}"),
            asyncio.create_task(self._check_states(), name=f"states-{self._keys.name}"),
            asyncio.create_task(self._drainer.run(), name=f"drain-{self._keys.name}"),
        ]
        for follower in followers:
            follower.add_done_callback(lambda _: self._alarm.ring())
        try:
            while True:
                self._check()
                await self._alarm.within(self._next_due(self._act()))
                for follower in followers:
                    if follower.done():
                        follower.result()
        finally:
            self._alarm.cancel()
            await cancel_all(*followers)

    async def _pump(self) -> None:
        """List the table, then apply changes as the watch delivers them.

        Deletions are not watched: those of 100,000 marks would cost as much as the marks. A leader makes all
        deletions it must know of itself, under its epoch, except what is removed by hand: its own key (see
        :meth:`key_read`), a state (see :meth:`_check_states`).
        """
        prefix = self._keys.prefix
        changes = watch(self._client, prefix, prefix_end(prefix), deletes=False)
        async with aclosing(changes):
            await anext(changes)
            revision = await self._list()
            async for batch in changes:
                events = batch.after(revision).events
                for event in events:
                    self._apply_put(event.kv)
                self._cache.follow(batch.revision)
                if events:
                    self._alarm.ring()
                self._drainer.reader.observe(batch.revision)

    def _check(self) -> None:
        """Raise :class:`LeaseLost` or :class:`LeadershipLost` if the epoch is over."""
        self._term.check()
        if self._lost:
            raise errors.LeadershipLost(
                f"table {self._keys.name!r}: epoch {self._term.epoch.revision} is over"
            )

    async def _check_states(self) -> None:
        """Notice what was removed by hand, see :meth:`_pump`: a state, whose operation is over; a record of a
        completion that could not be read."""
        while True:
            await asyncio.sleep(CHECK_STATES_S)
            for tracked in [slot.tracked for slot in self._slots.values()]:
                wanted = tracked.keys.state, tracked.keys.completion
                with suppress(errors.Unavailable, errors.Busy):  # the next check sees it
                    gets = [Get(key, keys_only=True) for key in wanted]
                    read = await self._client.read_in_lane(gets, self._keys.prefix)
                    for index, key in enumerate(wanted):
                        if not read.got(index):
                            tracked.apply_delete(key, read.revision)
                            self._alarm.ring()

    def _slot_of(self, key: bytes) -> DrivenOperation | None:
        """The operation a key belongs to: directly below its root, or one level further for a job."""
        above = key.rpartition(b".")[0]
        return self._slots.get(above) or self._slots.get(above.rpartition(b".")[0])

    def _apply_put(self, kv: KeyValue) -> None:
        slot = self._slot_of(kv.key)
        if slot is not None:
            ended = slot.tracked.apply_put(kv)
            self._leaders.key_written(slot.tracked.keys.root, kv.key, ended)
            if kv.key in slot.tracked.unreadable:
                self._report_unreadable(str(slot.tracked.keys.operation), slot.tracked.unreadable[kv.key])
        elif kv.key.startswith(self._of_batches):
            self._batch_changed(kv.key)  # whatever the name of the batch
        elif kv.key.endswith(b".arg") and kv.create_revision == kv.mod_revision:
            # An operation not known yet: it has just been started, and its other keys follow in the same
            # revision. So nothing needs to be read.
            operation = self._operation_of(kv.key)
            tracked = self._begin(self._keys.operation(operation), kv) if operation is not None else None
            if tracked is not None:
                self._keep(tracked)
                self.idle_since = None
        elif kv.key.startswith(self._keys.history_prefix):
            self._results.ended(kv)
        elif kv.key == self._keys.coordinator:
            self.key_read(kv)
        elif kv.key == self._keys.ordering:
            self._notify_drainer()
            self.idle_since = None
        else:
            self._cache.apply_put(kv)

    def _batch_changed(self, key: bytes) -> None:
        if key.startswith(self._keys.unordered(WAITING)):
            self._notify_drainer()
            self.idle_since = None
        elif key.startswith(self._keys.backlog_prefix):
            self._drainer.arrived(key)
            self.idle_since = None

    def _operation_of(self, arg_key: bytes) -> OperationId | None:
        try:
            return self._keys.keyspace.parse_root(arg_key.removesuffix(b".arg"))
        except errors.CorruptRecord:
            return None

    def _report_unreadable(self, operation: str, error: object) -> None:
        fields = {**self._term.fields, "operation": operation, "error": str(error)}
        log.error("operation_unreadable", extra=fields)

    def _note_idle(self) -> None:
        if self._slots or not self._listed or not self._drainer.resting:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = self._clock()

    # -- deciding and acting ---------------------------------------------------------------------------

    def _next_due(self, acted_at: float) -> float:
        """Seconds until the next timer is due; short enough to notice an expired lease.

        A timer counts that was not due yet at ``acted_at``, also if it is by now: nothing has acted on it.
        """
        times = [acted_at + self._term.session.ttl_s]
        for slot in self._slots.values():
            times += slot.due(acted_at)
        return max(0.0, min(times) - self._clock())

    def _act(self) -> float:
        """Do what is due; returns the time by which that was decided."""
        now = self._clock()
        for slot in list(self._slots.values()):
            slot.record_progress(self._client, self._term.epoch, now)
            if slot.task is not None and slot.task.done():
                self._reap(slot, now)
            if slot.task is not None:
                self._interrupt(slot)
            if slot.task is not None or self._winds_down:
                continue
            if slot.tracked.gone:
                self._slots.pop(slot.tracked.keys.root, None)
                self._leaders.leave(slot.tracked)
                if not self._drainer.resting:
                    self._notify_drainer()  # it was incompatible with a batch, or has applied one
                continue
            late = slot.deadline is not None and slot.deadline <= now
            held = self._paused(slot.tracked.keys.operation)
            action = decide(slot.tracked, deadline_passed=late, paused=held)
            # After a failure, actions wait for the back-off; a cancellation does not.
            backs_off = slot.not_before > now and action == slot.action
            if not isinstance(action, Nothing) and not backs_off:
                slot.action = action
                slot.task = asyncio.create_task(self._traced(slot.tracked, action))
                slot.task.add_done_callback(lambda _: self._alarm.ring())
        self._note_idle()
        return now

    def _interrupt(self, slot: DrivenOperation) -> None:
        """Interrupt the running call of an operation that is no longer to be published."""
        if isinstance(slot.action, Finish):
            now = decide(slot.tracked, deadline_passed=False)
            if not isinstance(now, Finish | Nothing):
                self._completion.outside.interrupt(slot.tracked)

    def _reap(self, slot: DrivenOperation, now: float) -> None:
        """Handle an action that has ended. Its effects are read from etcd, so only a failure matters here."""
        task, slot.task = slot.task, None
        error = None if task is None or task.cancelled() else task.exception()
        if error is None:
            slot.failures, slot.not_before = 0, 0.0
        elif isinstance(error, errors.LeadershipLost | errors.LeaseLost):
            raise error
        else:
            slot.failures += 1
            pause = self._completion.parking.retry(slot.tracked.arg).pause_s(slot.failures)
            slot.not_before = now + pause
            if isinstance(error, errors.OperationPaused):
                # Nothing has failed: the index of what is paused will show it, unless its entry was removed.
                return
            self._services.metrics.action_failed(slot.tracked.arg.type, error)
            fields = {"operation": str(slot.tracked.arg.id), "failures": slot.failures, "retry_in_s": pause}
            log_failure(log, "operation_action_failed", error, **self._term.fields, **fields)

    async def _traced(self, tracked: Tracked, action: Action) -> None:
        with self._services.tracer.inside(tracked.arg.trace):
            await self._perform(tracked, action)

    async def _perform(self, tracked: Tracked, action: Action) -> None:
        """Perform one action. Its effect on ``tracked`` is applied at once, and again by the watch."""
        self._term.check()
        match action:
            case Seal():
                error = None
                if action.code:
                    error = ErrorRecord(code=action.code, message=action.message, at=self._wall())
                began = self._wall()
                happened = sealed_event(began, action.after, error)
                sealed = await seal(
                    self._client,
                    tracked.keys,
                    self._term.epoch,
                    before=action.before,
                    after=action.after,
                    error=error,
                    events=tracked.events(happened),
                )
                if sealed.state == action.after:
                    tracked.timeline.add(happened)
                    part = f"seal/{action.after.decode()}/{self._term.epoch.revision}"
                    facts = {"state": action.after.decode(), "leader": self._member}
                    span = Span(tracked.arg.trace, part, "seal", began, self._wall(), attributes=facts)
                    self._services.tracer.send(span)
                fields = {"operation": str(tracked.arg.id), "state": sealed.state.decode()}
                log.info("operation_sealed", extra={**self._term.fields, **fields})
                tracked.set_state(sealed.state, sealed.revision)
                tracked.error = error or tracked.error
            case Finish():
                await self._completion.finish(self._term, tracked)
            case Resolve(decision):
                await self._completion.parking.resolve(self._term, tracked, decision)
            case Collect():
                await self._completion.collector.collect(self._term, tracked)
            case Nothing():
                return
