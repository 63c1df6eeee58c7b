"""The launcher of the simulation: jobs are coroutines that take their time, fail, or crash."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from distop.errors import DistopError, LaunchFailed
from distop.executor.launch.launch import Launch, LaunchedFrame
from distop.executor.ledger.ledger import Ledger
from distop.executor.task.task import TaskSummary
from distop.metastore.operations.jobs import (
    Claimed,
    Mark,
    Occupied,
    Outcome,
    Verdict,
    failure_record,
    success_record,
)
from distop.metastore.operations.runs import Run
from distop.metastore.records.names import OperationId
from simulate.chance import Chance
from simulate.sources import now

SLOTS = 3

Removed = Callable[[OperationId, str], None]
"""Called with an attempt that does not count, when it removes its files."""


class Launcher:
    """See the module."""

    def __init__(self, ledger: Ledger, chance: Chance, removed: Removed) -> None:
        self._ledger, self._chance, self._removed = ledger, chance, removed

    async def start(self) -> None:
        pass

    def launch(self, launch: Launch) -> Tasks:
        return Tasks(self._ledger, launch, self._chance, self._removed)

    def launch_frame(self, launch: Launch) -> LaunchedFrame:
        raise NotImplementedError("the simulation has no DataFrames")

    def held_up(self) -> str:
        return ""

    async def close(self) -> None:
        pass


class Tasks:
    """Some tasks, each of which takes the next job when it has done one."""

    def __init__(self, ledger: Ledger, launch: Launch, chance: Chance, removed: Removed) -> None:
        self._ledger, self._launch, self._chance, self._removed = ledger, launch, chance, removed
        self._waiting = deque(launch.partitions)
        self._over = ""
        tasks = range(min(SLOTS, len(launch.partitions)))
        self._tasks = [asyncio.create_task(_Task(self).run()) for _ in tasks]

    def cancel(self, reason: str) -> None:
        self._over = self._over or reason

    def held_up(self) -> str:
        return ""

    async def wait(self) -> TaskSummary:
        if self._tasks:
            await asyncio.wait(self._tasks)
        return TaskSummary.total([task.result() for task in self._tasks])


class _Task:
    """One of them: holds claims, and gets the verdicts about its marks."""

    def __init__(self, tasks: Tasks) -> None:
        self.closed = False
        self._tasks, self._run, self._work = tasks, tasks._launch.run, tasks._launch.work
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Verdict]] = {}
        self._lost: set[int] = set()

    async def run(self) -> TaskSummary:
        done, tasks = list[TaskSummary](), self._tasks
        try:
            while tasks._waiting and not tasks._over:
                done.append(await self._job(tasks._waiting.popleft()))
        finally:
            self.closed = True
            tasks._ledger.desk.claimant_gone(self)
        return TaskSummary.total(done)

    async def _job(self, partition: str) -> TaskSummary:
        tasks, chance = self._tasks, self._tasks._chance
        attempt, claim = f"{self._run.token}-{chance.word()}", 0
        if self._work.claims:
            answer: Any = Occupied
            while not isinstance(answer, Claimed):
                if tasks._over:
                    return TaskSummary(gone=1)
                answer = await tasks._ledger.desk.claim(self._run, self, partition, attempt)
                if isinstance(answer, Verdict):
                    return TaskSummary(gone=1) if answer.outcome is Outcome.GONE else TaskSummary(lost=1)
            claim = answer.claim
        await asyncio.sleep(chance.job_s())
        if chance.job_crashes():
            raise LaunchFailed("a task crashed")
        failed = partition in self._work.arg.argument.get("fail", ())
        value = (
            failure_record(attempt, "JOB_FAILED", "it fails, as its argument says", now())
            if failed
            else success_record(attempt, {}, now())
        )
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        mark = Mark(partition, attempt, value, claim=claim)
        tasks._ledger.batcher.submit(self._run, self, [(number, mark)])
        verdict = await asked
        if claim:
            tasks._ledger.desk.forget(self._run, partition, claim)
        outcome = verdict.outcome
        if outcome in (Outcome.LOST, Outcome.GONE):
            tasks._removed(self._run.keys.operation, attempt)
        return TaskSummary(
            won=outcome is Outcome.WON,
            lost=outcome is Outcome.LOST,
            gone=outcome is Outcome.GONE,
            unknown=outcome is Outcome.UNKNOWN,
            failed=failed,
        )

    # -- as the ledger calls it ------------------------------------------------------------------------

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        for number, _, verdict in answers:
            self._asked.pop(number).set_result(verdict)

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        for number in numbers:
            self._asked.pop(number).set_exception(error)

    def claim_lost(self, run: Run, partition: str, claim: int, reason: str) -> None:
        self._lost.add(claim)
