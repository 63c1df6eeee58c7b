"""The runner: takes running operations of the types it serves, and sees their jobs through.

Level-triggered: what there is to do follows from the index of active operations as it stands, and events,
lost or not, only say when to look again. A runner owns nothing but the lease that its ``.runner`` keys are
bound to: when it dies they vanish, another runner finds the operations without one, and goes on with the
jobs that have no result yet.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from distop.errors import CorruptRecord, DistopError
from distop.executor.launch.launch import Launcher, LauncherBroken
from distop.executor.ledger.ledger import Ledger
from distop.executor.runner.dynamic_run import DynamicOperationRun
from distop.executor.runner.operation_run import End, OperationRun
from distop.executor.runner.types import ServedTypes
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import Snapshot
from distop.metastore.etcd.txn import Get, Put, Txn
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.etcd.watch import WatchBatch, follow
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.members import incarnation
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.operations.runs import PAUSED, RUNNER_GONE, release_runner, take_runner
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import RUNNING, RunnerRecord
from distop.metastore.records.record import encode

log = logging.getLogger(__name__)

_READ_AT_ONCE = 60
_RETRY_S = 0.5
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
        self._known: dict[OperationId, None] = {}
        """Active operations of served types, in the order in which they came."""
        self._unchecked: dict[OperationId, None] = {}
        """Those that may need a runner, as far as is known."""
        self._pauses = PauseIndex(self._keyspace)
        self._mine: dict[OperationId, OperationRun] = {}
        """Those whose runner this is; the ones whose jobs all have a result are still among them."""
        self._working: dict[asyncio.Task[None], OperationId] = {}
        self._resting: dict[OperationId, float] = {}
        """Those that could not be finished here, and until when they are left to others."""
        self._strange: set[str] = set()
        """Types that are left to other executors, each logged once."""
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
                asyncio.create_task(self._follow(self._keyspace.active, self._heed_active)),
                # The operations of an executor that ended have no runner now.
                asyncio.create_task(self._follow(self._keyspace.executors, self._heed_members)),
                asyncio.create_task(self._follow(self._keyspace.paused, self._heed_pauses)),
                asyncio.create_task(self._resync()),
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
        record = MemberRecord(
            id=self.member,
            role="executor",
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._clock(),
            types=self._types.names,
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
        for run in self._mine.values():
            run.cancel(reason)
        await self._until_tasks_end(_LAST_MARKS_S, cancel=False)
        await self._ledger.batcher.flush(_LAST_MARKS_S)
        self._ledger.desk.lease_lost()
        log.info("runner_ended", extra={"member": self.member, "reason": reason})

    async def _until_tasks_end(self, timeout_s: float, *, cancel: bool = True) -> None:
        if self._working:
            await asyncio.wait(self._working, timeout=timeout_s)
        if cancel and self._working:
            for task in list(self._working):
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    @property
    def resting(self) -> list[OperationId]:
        """Operations that could not be finished here, and are left to others for a while."""
        return list(self._resting)

    # -- when to look --------------------------------------------------------------------------------

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._options.resync_s * self._rng.uniform(0.5, 1.0))
            self._doubt()

    async def _follow(self, prefix: bytes, heed: Callable[[Snapshot | WatchBatch], None]) -> None:
        while True:
            try:
                async with aclosing(follow(self._client, prefix, keys_only=True)) as news:
                    async for one in news:
                        heed(one)
            except DistopError as error:
                log.warning("runner_cannot_follow", extra={"prefix": prefix.decode(), "error": str(error)})
                await asyncio.sleep(_RETRY_S)

    def _heed_active(self, news: Snapshot | WatchBatch) -> None:
        if isinstance(news, Snapshot):
            standing = {kv.key for kv in news.kvs}
            for operation in list(self._known):
                if self._keyspace.active_operation(operation) not in standing:
                    self._forget(operation)
            for kv in sorted(news.kvs, key=lambda kv: kv.create_revision):
                self._see(kv.key)
            self._doubt()
            return
        for event in news.events:
            if event.kind == "put":
                self._see(event.kv.key)
            else:
                self._forget(self._keyspace.parse_active(event.kv.key))
        self._wake.set()

    def _heed_members(self, news: Snapshot | WatchBatch) -> None:
        if isinstance(news, Snapshot) or any(event.kind == "delete" for event in news.events):
            self._doubt()

    def _heed_pauses(self, news: Snapshot | WatchBatch) -> None:
        """What is held is not taken; runs under way hear of it from the watch over them."""
        self._pauses.apply(news)
        self._doubt()

    def _see(self, key: bytes) -> None:
        try:
            operation = self._keyspace.parse_active(key)
        except CorruptRecord as error:
            log.warning("active_key_unknown", extra={"error": str(error)})
            return
        if self._options.only not in (None, operation):
            return
        if self._types.get(operation.type) is None:
            if operation.type not in self._strange:
                self._strange.add(operation.type)
                log.info("type_not_served", extra={"type": operation.type})
        elif operation not in self._known:
            self._known[operation] = self._unchecked[operation] = None

    def _forget(self, operation: OperationId) -> None:
        for table in (self._known, self._unchecked, self._resting):
            table.pop(operation, None)
        if operation not in self._working.values():
            self._mine.pop(operation, None)

    def _doubt(self) -> None:
        """Whatever was known about who runs what may have changed."""
        now = time.monotonic()
        self._resting = {operation: until for operation, until in self._resting.items() if until > now}
        for operation in self._known:
            if operation not in self._mine and operation not in self._resting:
                self._unchecked[operation] = None
        self._wake.set()

    # -- what to do ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Take operations; ends when nothing can be launched any more."""
        while self._broken is None:
            self._wake.clear()
            try:
                await self._take_what_fits()
            except DistopError as error:
                log.warning("runner_cannot_take", extra={"member": self.member, "error": str(error)})
                await asyncio.sleep(_RETRY_S)
                self._doubt()
            # All that fits is taken. Whatever changes that wakes us: news, a resync, a run that ended.
            await self._wake.wait()

    async def _take_what_fits(self) -> None:
        while self._unchecked and self._session.alive:
            free = self._options.max_operations - len(self._working)
            if free <= 0:
                return
            waiting = list(itertools.islice(self._unchecked, _READ_AT_ONCE))
            if len(waiting) > free:
                waiting = await self._without_runner(waiting)
            if waiting:
                await self._take(self._fairest(waiting))

    def _fairest(self, waiting: list[OperationId]) -> OperationId:
        """Of the table that has the fewest running here, the one that waits longest."""
        busy = Counter(operation.table for operation in self._working.values())
        return min(waiting, key=lambda operation: busy[operation.table])

    async def _without_runner(self, operations: list[OperationId]) -> list[OperationId]:
        """Those that nobody runs: read at once, rather than by trying to take each."""
        keys = [self._keyspace.operation(operation) for operation in operations]
        reads = [Get(key) for op in keys for key in (op.state, op.runner)]
        result = await settle(self._client, Txn(then=tuple(reads)), patience_s=PATIENCE_S)
        free = []
        for index, operation in enumerate(operations):
            state = result.one(2 * index, keys[index].state)
            if state.value == RUNNING and not result.got(2 * index + 1):
                free.append(operation)
            else:
                self._unchecked.pop(operation, None)
        return free

    async def _take(self, operation: OperationId) -> None:
        self._unchecked.pop(operation, None)
        kind = self._types.get(operation.type)
        if kind is None or operation in self._mine or self._pauses.holds(operation):
            return
        record = RunnerRecord(member=self.member, started_at=self._clock())
        keys = self._keyspace.operation(operation)
        try:
            taken = await take_runner(self._client, keys, record, self._session.lease_id)
        except CorruptRecord as error:
            log.error("operation_not_understood", extra={"operation": str(operation), "error": str(error)})
            self._rest(operation)
            return
        if taken is None:
            return
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
        self._mine[operation] = run
        task = asyncio.create_task(self._see_through(operation, run), name=f"run-{operation}")
        self._working[task] = operation
        task.add_done_callback(self._one_ended)

    async def _see_through(self, operation: OperationId, run: OperationRun) -> None:
        try:
            end = await run.finish()
        except LauncherBroken as error:
            self._broken = error
            return
        except Exception:
            log.exception("run_failed", extra={"operation": str(operation)})
            end = End.LEFT
        log.info("run_ended", extra={"operation": str(operation), "end": end.value, "reason": run.over})
        if end is End.LEFT or run.over == PAUSED or run.taken.arg.stages_files:
            # Nothing runs here any more. Staged files are swept once this key is gone, and not before.
            await self._release(run)
        if end is End.SETTLED and operation in self._known:
            return  # still ours: there is nothing to take again, until the operation is over
        self._mine.pop(operation, None)
        if end is End.LEFT:
            self._rest(operation)
        elif run.over in (RUNNER_GONE, PAUSED) and operation in self._known:
            self._unchecked[operation] = None

    async def _release(self, run: OperationRun) -> None:
        try:
            await release_runner(self._client, run.run)
        except DistopError as error:
            # The key goes with our lease, or with the operation.
            operation = str(run.run.keys.operation)
            log.warning("runner_not_released", extra={"operation": operation, "error": str(error)})

    def _one_ended(self, task: asyncio.Task[None]) -> None:
        del self._working[task]
        self._wake.set()

    def _rest(self, operation: OperationId) -> None:
        self._resting[operation] = time.monotonic() + self._options.rest_s
