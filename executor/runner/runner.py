"""The runner: takes running operations of the types it serves, and runs their jobs.

Level-triggered: the work follows from the index of operations that wait for an executor, and from what this
one holds (see ``waiting.py``); events, lost or not, only trigger another look. A runner owns nothing but the
lease of its ``.runner`` keys. Whatever becomes of a take or a release, the next look gives back what is held
and does not run.
When it dies, the keys vanish, other runners return its operations to the index, and the one that takes an
operation continues with the jobs that have no result yet.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable

from distop.errors import CorruptRecord, DistopError, LauncherBroken, shortened
from distop.executor.launch.launch import TaskLauncher, last_line
from distop.executor.ledger.ledger import Ledger
from distop.executor.runner.operation_run import DynamicOperationRun, End, OperationRun
from distop.executor.runner.options import RunnerOptions, ServedTypes, Tally
from distop.executor.runner.waiting import WaitingOperations
from distop.metastore.crashpoints import reached
from distop.metastore.members import registration
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.runs import PAUSED, Run, Taken, give_back, release_runner, take_operation
from distop.metastore.records.member import HeldUp
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RunnerRecord
from distop.operations import DistributedOperation
from distop.process.loop import cancel_all, kept_running, log_failure
from distop.process.tracing import Tracer

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_LAST_MARKS_S = 0.5

REPORT_EVERY_S, MAX_REPORTED, MAX_WORDS = 2.0, 20, 300
"""How often, for how many operations, and in how many characters a runner says what holds them up."""


class Runner:
    """One incarnation of a runner: one lease, one member id, from its registration to its end."""

    def __init__(
        self,
        ledger: Ledger,
        launcher: TaskLauncher,
        types: ServedTypes,
        options: RunnerOptions,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        tally: Tally | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.member = registration.incarnation("runner")
        self._client, self._keyspace = ledger.client, ledger.client.keyspace
        self._ledger, self._launcher, self._types, self._options = ledger, launcher, types, options
        self._clock, self._rng = clock, rng or random.Random()
        self._tally, self._tracer = tally or Tally(), tracer or Tracer()
        self._session = LeaseSession(self._client, options.lease_ttl_s)
        self._working: dict[OperationId, asyncio.Task[bool]] = {}
        """Operations that are being taken, and those that run here."""
        self._runs: dict[OperationId, OperationRun] = {}
        """Operations that run here."""
        self._settled: set[tuple[bytes, int]] = set()
        """Keys of runs that have a result for each job. Their operations are held until they end."""
        self._waiting = WaitingOperations(
            self._client, self.member, types, options, self._working, self._give_back, self._rng
        )
        self._broken: LauncherBroken | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Run operations until ``stop`` or until the lease is lost; then release them all.

        Raises
        ------
        LauncherBroken
            Nothing can be launched here any more. All operations have been released.
        DistopError
            It could not register as a member.
        """
        record = registration.own_record(
            self.member, "executor", types=self._types.names, only=str(self._options.only or "")
        )
        entry = registration.registered(
            self._client,
            self._session,
            record,
            missed=not self._options.only,  # a user's program ends when it likes
            replied=lambda: reached("runner.register.after"),
        )
        async with self._session, entry:
            log.info("runner_registered", extra={"member": self.member, "types": self._types.names})
            self._ledger.desk.begin(self.member, self._session)
            helpers = [*self._waiting.follow(), asyncio.create_task(kept_running("report", self._report))]
            ends = [
                asyncio.create_task(self._work()),
                asyncio.create_task(stop.wait()),
                asyncio.create_task(self._session.lost.wait()),
            ]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_all(*helpers, *ends)
                await self._let_go("the runner stops" if stop.is_set() else "the runner's lease is lost")
        # The lease is revoked: other runners continue. Running tasks can mark nothing, but may clean up.
        await self._until_tasks_end(self._options.stop_s)
        if self._broken is not None:
            raise self._broken

    async def _report(self) -> None:
        """Keep what holds this member and its operations up in its record."""
        known: list[HeldUp] = []
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            everything = [
                await asyncio.to_thread(self._launcher.held_up),
                registration.slow_etcd(self._session.trips),
            ]
            words = {"": shortened("; ".join(filter(None, everything)), MAX_WORDS)}
            for operation, run in list(self._runs.items())[:MAX_REPORTED]:
                words[str(operation)] = shortened(await run.held_up(), MAX_WORDS)
            for operation, why in list(self._waiting.resting.items())[:MAX_REPORTED]:
                words.setdefault(
                    str(operation), shortened(f"left to other executors after: {why}", MAX_WORDS)
                )
            current = registration.held_up_now(known, words)
            if current == known:
                continue
            try:
                await registration.change_own_record(
                    self._client, self._keyspace.executor(self.member), held_up=current
                )
                known = current
            except DistopError as error:
                log_failure(log, "own_record_not_changed", error, member=self.member)

    async def _let_go(self, reason: str) -> None:
        """Cancel all tasks, and write their last marks, without a long delay for other runners."""
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
            await cancel_all(*self._working.values())

    # -- what to do ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Take operations; returns when nothing can be launched any more."""
        while self._broken is None:
            self._waiting.wake.clear()
            while (
                self._waiting.operations
                and self._waiting.has_room
                and self._session.alive
                and self._broken is None
            ):
                operation = self._waiting.pop()
                if self._waiting.is_candidate(operation):
                    task = asyncio.create_task(self._take(operation), name=f"run-{operation}")
                    self._working[operation] = task
                    task.add_done_callback(functools.partial(self._one_ended, operation))
            # All free slots are used, or nothing waits. An event, a listing or an ended run wakes this loop.
            await self._waiting.wake.wait()

    async def _take(self, operation: OperationId) -> bool:
        """Take an operation and run it to its end; returns whether it may still be held without reason."""
        kind = self._types.get(operation.type)
        assert kind is not None
        record = RunnerRecord(member=self.member, started_at=self._clock())
        keys = self._keyspace.operation(operation)
        try:
            taken = await take_operation(self._client, keys, record, self._session.lease_id)
            if taken is not None:
                with self._tracer.inside(taken.arg.trace):
                    await self._run(kind, taken)
            self._waiting.refused |= taken is None
            return False
        except CorruptRecord as error:
            log.error("operation_not_understood", extra={"operation": str(operation), "error": str(error)})
            self._waiting.rest(operation, error.message)  # a runner of another version may understand it
        except Exception as error:
            log_failure(log, "operation_in_doubt", error, operation=str(operation))
            await asyncio.sleep(_RETRY_S)
        return True

    async def _run(self, kind: DistributedOperation, taken: Taken) -> None:
        operation = taken.run.keys.operation
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
        self._tally.taken[operation.type] += 1
        self._tally.running += 1
        began = self._clock()
        try:
            await self._see_through(operation, run, began)
        finally:
            self._tally.running -= 1
            del self._runs[operation]

    async def _see_through(self, operation: OperationId, run: OperationRun, began: float) -> None:
        try:
            end = await run.finish()
        except LauncherBroken as error:
            self._broken = error
            self._tally.ended[operation.type, "broken"] += 1
            return
        except Exception as error:
            log.exception("run_failed", extra={"operation": str(operation)})
            end, run.left = End.LEFT, last_line(error)
        self._tally.ended[operation.type, end.value] += 1
        if self._tracer.on:
            self._tracer.send(*run.spans(self.member, began, end.value))
        log.info("run_ended", extra={"operation": str(operation), "end": end.value, "reason": run.over})
        again = end is End.LEFT or run.over == PAUSED
        if end is End.LEFT:
            self._waiting.rest(operation, run.left)
        if again or run.taken.arg.stages_files:
            # Nothing runs here any more. Staged files are removed only after this key is deleted.
            await release_runner(self._client, run.run, again=again)
        elif end is End.SETTLED:
            self._settled.add(run.run.key)

    async def _give_back(self) -> None:
        """Release the operations that are held under this runner's lease, and that it does not run."""
        settled = set(self._settled)
        held = await give_back(self._client, self._session.lease_id, self._keeps)
        self._settled -= settled.difference(run.key for run in held)

    def _keeps(self, run: Run) -> bool:
        """Whether it is being taken, runs here, or is left to its leader."""
        operation, key = run.keys.operation, run.key
        if operation in self._runs:
            return self._runs[operation].run.key == key
        return operation in self._working or key in self._settled

    def _one_ended(self, operation: OperationId, task: asyncio.Task[bool]) -> None:
        del self._working[operation]
        if task.cancelled() or task.result():
            self._waiting.due.set()
        self._waiting.wake.set()
