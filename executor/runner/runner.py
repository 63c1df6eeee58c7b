"""The runner: takes running operations of the types it serves, and sees their jobs through.

Level-triggered: what there is to do follows from the index of operations that wait for an executor as it
stands, and events, lost or not, only say when to look again. Executors divide that index among themselves
(see ``shares.py``), and each watches its own piece; one that has room left looks into those of the others. A
runner owns nothing but the lease that its ``.runner`` keys are bound to: when it dies they vanish, the others
let its operations wait again, and who takes one goes on with the jobs that have no result yet.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from distop.errors import CorruptRecord, DistopError
from distop.executor.launch.launch import Launcher, LauncherBroken
from distop.executor.ledger.ledger import Ledger
from distop.executor.runner.dynamic_run import DynamicOperationRun
from distop.executor.runner.operation_run import End, OperationRun
from distop.executor.runner.shares import NOTHING, Shares
from distop.executor.runner.types import ServedTypes
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import Snapshot
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.etcd.update import settle
from distop.metastore.etcd.watch import WatchBatch, follow
from distop.metastore.members.installation import enter
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.members import incarnation
from distop.metastore.operations.active import wait_again
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.operations.runs import PAUSED, RUNNER_GONE, release_runner, take_runner
from distop.metastore.records.keyspace import OperationId, prefix_end
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import RunnerRecord
from distop.metastore.records.record import encode

log = logging.getLogger(__name__)

_WINDOW = 60
"""Of so many operations that have waited longest, one of the table that is least busy here is taken."""
_RETRY_S = 0.5
_HELP_S, _HELP_AGAIN_S = 0.1, 0.02
"""How often executors that have room left look for what waits at others: all of them together, so that more
executors ask no more; and one that has just found something."""
_HELP_PAGE = 100
_LAST_MARKS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How a runner works."""

    max_operations: int = 4
    """Operations at once."""
    lease_ttl_s: int = 5
    """Seconds after which another runner takes over from one that vanished."""
    resync_s: float = 10.0
    """How often it looks at everything again, event or not; cut at random."""
    stop_s: float = 3.0
    """How long tasks may take to end once it is asked to."""
    rest_s: float = 30.0
    """How long it leaves an operation to others that it could not finish."""
    only: OperationId | None = None
    """The one operation it serves; ``None``: all of its types."""


class Runner:
    """One incarnation of a runner: one lease, one member id, from its registration to its end."""

    def __init__(
        self,
        ledger: Ledger,
        launcher: Launcher,
        types: ServedTypes,
        options: RunnerOptions,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.member = incarnation("runner")
        self._client, self._keyspace = ledger.client, ledger.client.keyspace
        self._ledger, self._launcher, self._types, self._options = ledger, launcher, types, options
        self._clock, self._rng = clock, rng or random.Random()
        self._session = LeaseSession(self._client, options.lease_ttl_s)
        self._wake = asyncio.Event()
        self._waiting: dict[OperationId, None] = {}
        """Operations that may need a runner, as far as is known, in the order in which they came."""
        self._shares = Shares(self._keyspace, self.member, [] if options.only else types.names)
        self._moved, self._doubt = asyncio.Event(), asyncio.Event()
        """Set when it looks after other shares; and when some may wait that it does not know of."""
        self._pauses = PauseIndex(self._keyspace)
        self._working: dict[OperationId, asyncio.Task[bool]] = {}
        """Those that are being taken, and those whose runner this is."""
        self._runs: dict[OperationId, OperationRun] = {}
        """The latter."""
        self._resting: dict[OperationId, float] = {}
        """Those that could not be finished here, and until when they are left to others."""
        self._broken: LauncherBroken | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Run operations until ``stop`` or until the lease is lost; then let go of them all.

        Raises
        ------
        LauncherBroken
            Nothing can be launched here any more. All operations have been let go.
        DistopError
            It could not register.
        """
        async with self._session:
            await self._register()
            self._ledger.desk.begin(self.member, self._session)
            helpers = [
                # The operations of an executor that ended have no runner now.
                asyncio.create_task(self._follow(self._keyspace.executors, self._heed_members)),
                asyncio.create_task(self._follow(self._keyspace.paused, self._heed_pauses)),
                asyncio.create_task(self._follow_shares()),
                asyncio.create_task(self._look()),
                asyncio.create_task(self._help()),
            ]
            ends = [
                asyncio.create_task(self._work()),
                asyncio.create_task(stop.wait()),
                asyncio.create_task(self._session.lost.wait()),
            ]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for helper in helpers + ends:
                    helper.cancel()
                await asyncio.gather(*helpers, *ends, return_exceptions=True)
                await self._let_go("the runner stops" if stop.is_set() else "the runner's lease is lost")
        # The lease is revoked: others go on. Tasks that still run can mark nothing, but may clean up.
        await self._until_tasks_end(self._options.stop_s)
        if self._broken is not None:
            raise self._broken

    async def _register(self) -> None:
        await enter(self._client)
        record = MemberRecord(
            id=self.member,
            role="executor",
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._clock(),
            types=self._types.names,
            only=str(self._options.only or ""),
        )
        put = Put(self._keyspace.executor(self.member), encode(record), self._session.lease_id)
        await settle(
            self._client,
            Txn(then=(put,)),
            patience_s=self._options.lease_ttl_s,
            replied=lambda: reached("runner.register.after"),
        )
        log.info("runner_registered", extra={"member": self.member, "types": self._types.names})

    async def _let_go(self, reason: str) -> None:
        """Cancel all tasks. What they have marked by now shall still count, but others need not wait long."""
        for run in self._runs.values():
            run.cancel(reason)
        await self._until_tasks_end(_LAST_MARKS_S, cancel=False)
        await self._ledger.batcher.flush(_LAST_MARKS_S)
        self._ledger.desk.lease_lost()
        log.info("runner_ended", extra={"member": self.member, "reason": reason})

    async def _until_tasks_end(self, timeout_s: float, *, cancel: bool = True) -> None:
        if self._working:
            await asyncio.wait(self._working.values(), timeout=timeout_s)
        if cancel and self._working:
            for task in list(self._working.values()):
                task.cancel()
            await asyncio.gather(*self._working.values(), return_exceptions=True)

    @property
    def _has_room(self) -> bool:
        return len(self._working) < self._options.max_operations

    @property
    def resting(self) -> list[OperationId]:
        """Operations that could not be finished here, and are left to others for a while."""
        return list(self._resting)

    # -- when to look --------------------------------------------------------------------------------

    async def _follow(
        self,
        start: bytes,
        heed: Callable[[Snapshot | WatchBatch], None],
        end: bytes = b"",
        *,
        keys_only: bool = False,
        deletes: bool = True,
    ) -> None:
        while True:
            try:
                changes = follow(self._client, start, end, keys_only=keys_only, deletes=deletes)
                async with aclosing(changes) as news:
                    async for one in news:
                        heed(one)
            except DistopError as error:
                log.warning("runner_cannot_follow", extra={"prefix": start.decode(), "error": str(error)})
                await asyncio.sleep(_RETRY_S)

    async def _follow_shares(self) -> None:
        """Hear of what begins to wait in the shares that this executor looks after."""
        while True:
            self._moved.clear()
            hull, following = self._shares.hull, None
            if hull != NOTHING:
                start, end = (self._keyspace.waiting_from(share) for share in hull)
                # What stops waiting need not be told: the transaction that takes it finds out.
                following = asyncio.create_task(
                    self._follow(start, self._heed_waiting, end, keys_only=True, deletes=False)
                )
            try:
                await self._moved.wait()
            finally:
                if following is not None:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)

    def _heed_waiting(self, news: Snapshot | WatchBatch) -> None:
        if isinstance(news, Snapshot):
            kvs = sorted(news.kvs, key=lambda kv: kv.create_revision)
        else:
            kvs = [event.kv for event in news.events]
        for kv in kvs:
            operation = self._served(kv.key)
            if operation is not None and self._shares.hold(operation):
                self._waiting[operation] = None
        self._wake.set()

    def _heed_members(self, news: Snapshot | WatchBatch) -> None:
        before = self._shares.hull
        self._shares.apply(news)
        if self._shares.hull != before:
            self._moved.set()
        if isinstance(news, Snapshot) or any(event.kind == "delete" for event in news.events):
            self._doubt.set()

    def _heed_pauses(self, news: Snapshot | WatchBatch) -> None:
        """What is held is not taken; runs under way hear of it from the watch over them."""
        self._pauses.apply(news)
        if isinstance(news, Snapshot) or any(event.kind == "delete" for event in news.events):
            self._doubt.set()

    def _served(self, waiting: bytes) -> OperationId | None:
        """The operation of an entry, if it could be taken here."""
        try:
            operation = self._keyspace.parse_waiting(waiting)
        except CorruptRecord as error:
            log.warning("waiting_key_unknown", extra={"error": str(error)})
            return None
        return operation if self._may_take(operation) else None

    def _may_take(self, operation: OperationId) -> bool:
        return (
            self._options.only in (None, operation)
            and self._types.get(operation.type) is not None
            and operation not in self._working
            and operation not in self._resting
            and not self._pauses.holds(operation)
        )

    async def _look(self) -> None:
        """Look at everything, in doubt and from time to time."""
        while True:
            try:
                await self._look_at_all()
            except DistopError as error:
                log.warning("runner_cannot_look", extra={"member": self.member, "error": str(error)})
                await asyncio.sleep(_RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.resync_s * self._rng.uniform(0.5, 1.0)):
                    await self._doubt.wait()

    async def _look_at_all(self) -> None:
        """Of the shares it looks after: let those wait again that nobody has, and see all that wait."""
        self._doubt.clear()
        now = time.monotonic()
        self._resting = {operation: until for operation, until in self._resting.items() if until > now}
        if self._options.only is not None:
            if self._may_take(self._options.only):
                self._waiting[self._options.only] = None
            self._wake.set()
            return
        hull = self._shares.hull
        if hull == NOTHING:
            return
        start, end = (self._keyspace.waiting_from(share) for share in hull)
        standing = await self._client.scan(start, end, keys_only=True)
        known = {kv.key for kv in standing.kvs}
        active = await self._client.scan(self._keyspace.active, keys_only=True)
        left = []
        for kv in active.kvs:
            keys = self._keyspace.operation(self._keyspace.parse_active(kv.key))
            if self._shares.hold(keys.operation) and keys.operation not in self._working:
                left += [keys] if keys.waiting not in known else []
        await wait_again(self._client, left)  # the watch tells of those that wait from now on
        self._heed_waiting(standing)

    async def _help(self) -> None:
        """While there is room left and nothing waits here, look for what waits at others."""
        cursor, pause = self._keyspace.waiting, _HELP_S
        while True:
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
            pause = _HELP_S * max(self._shares.executors, 2)
            if not self._has_room or self._waiting or not self._shares.divided:
                continue
            try:
                end = prefix_end(self._keyspace.waiting)
                page = await self._client.get_range(cursor, end, keys_only=True, limit=_HELP_PAGE)
            except DistopError:
                continue  # those who look after them say so
            cursor = page.kvs[-1].key + b"\0" if page.more else self._keyspace.waiting
            found = [one for kv in page.kvs if (one := self._served(kv.key)) is not None]
            if found:
                room = self._options.max_operations - len(self._working)
                self._waiting.update(dict.fromkeys(self._rng.sample(found, min(room, len(found)))))
                self._wake.set()
                pause = _HELP_AGAIN_S

    # -- what to do ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Take operations; ends when nothing can be launched any more."""
        while self._broken is None:
            self._wake.clear()
            while self._waiting and self._has_room and self._session.alive and self._broken is None:
                operation = self._fairest()
                del self._waiting[operation]
                if self._may_take(operation):
                    task = asyncio.create_task(self._take(operation), name=f"run-{operation}")
                    self._working[operation] = task
                    task.add_done_callback(functools.partial(self._one_ended, operation))
            # All that fits is taken. Whatever changes that wakes us: news, a look, a run that ended.
            await self._wake.wait()

    def _fairest(self) -> OperationId:
        """Of the table that has the fewest running here, the one that waits longest."""
        busy = Counter(operation.table for operation in self._working)
        return min(itertools.islice(self._waiting, _WINDOW), key=lambda operation: busy[operation.table])

    async def _take(self, operation: OperationId) -> bool:
        """Take an operation and see it through; whether there may be something left to do for it here."""
        kind = self._types.get(operation.type)
        assert kind is not None
        record = RunnerRecord(member=self.member, started_at=self._clock())
        keys = self._keyspace.operation(operation)
        try:
            taken = await take_runner(self._client, keys, record, self._session.lease_id)
        except CorruptRecord as error:
            log.error("operation_not_understood", extra={"operation": str(operation), "error": str(error)})
            self._rest(operation)
            return False
        except DistopError as error:
            log.warning("runner_cannot_take", extra={"operation": str(operation), "error": str(error)})
            await asyncio.sleep(_RETRY_S)
            return True
        if taken is None:
            return False
        log.info(
            "operation_taken",
            extra={
                "operation": str(operation),
                "run_token": taken.run.token,
                "unfinished": len(taken.unfinished),
            },
        )
        runs = DynamicOperationRun if taken.arg.dynamic else OperationRun
        run = runs(self._ledger, self._launcher, kind, taken, clock=self._clock, rng=self._rng)
        self._runs[operation] = run
        try:
            return await self._see_through(operation, run)
        finally:
            del self._runs[operation]

    async def _see_through(self, operation: OperationId, run: OperationRun) -> bool:
        try:
            end = await run.finish()
        except LauncherBroken as error:
            self._broken = error
            return False
        except Exception:
            log.exception("run_failed", extra={"operation": str(operation)})
            end = End.LEFT
        log.info("run_ended", extra={"operation": str(operation), "end": end.value, "reason": run.over})
        again = end is End.LEFT or run.over == PAUSED
        if end is End.LEFT:
            self._rest(operation)
        try:
            if again or run.taken.arg.stages_files:
                # Nothing runs here any more. Staged files are swept once this key is gone, and not before.
                await release_runner(self._client, run.run, again=again)
            if run.over == RUNNER_GONE:
                await wait_again(self._client, [run.run.keys])
        except DistopError as error:
            # The key goes with our lease, or with the operation.
            log.warning("runner_not_released", extra={"operation": str(operation), "error": str(error)})
        return again or run.over == RUNNER_GONE

    def _one_ended(self, operation: OperationId, task: asyncio.Task[bool]) -> None:
        del self._working[operation]
        if not task.cancelled() and task.result():
            self._doubt.set()
        self._wake.set()

    def _rest(self, operation: OperationId) -> None:
        self._resting[operation] = time.monotonic() + self._options.rest_s
