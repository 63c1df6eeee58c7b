"""One run of an operation, from taking it to the end of its last job; of a dynamic plan its DataFrame is
computed as a whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial

from distop.errors import DistopError, InvalidArgument, JobFailed, LauncherBroken, LaunchFailed, NeedsSpark
from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import Launch, LaunchedFrame, LaunchedTasks, TaskLauncher
from distop.executor.ledger.ledger import Ledger
from distop.executor.task.task import FrameResult, TaskTime, TaskWork, longest
from distop.metastore.crashpoints import reached
from distop.metastore.operations.jobs import Mark, Outcome, Tried, Verdict, failure_record, read_tries
from distop.metastore.operations.runs import DynamicRun, Run, Taken, why_over, without_result
from distop.operations import DistributedOperation
from distop.process.loop import cancel_all, kept_running
from distop.process.tracing import Span

log = logging.getLogger(__name__)

MAX_LAUNCHES = 4
"""Consecutive launches without a finished job, after which the remaining jobs are marked failed."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Pauses in seconds before unfinished jobs are launched again: doubled each time, then shortened at
random."""

MARKS_AT_ONCE = 1000
"""How many jobs are marked failed in one request."""

MAX_RUNS = 20
"""Runs that may start to compute a DataFrame and end with their process. A computation that needs more memory
than there is kills its process, which then can count nothing. So each run is counted when it starts, and
the count is taken back however it ends, unless its process or its Spark has died."""

NOTE_EVERY_S = 2.0
"""How often Spark's progress is recorded, if it has changed."""


class End(Enum):
    """How a run ended for this runner."""

    SETTLED = "settled"
    """All jobs have a result."""
    OVER = "over"
    """The run was taken away, or the runner was asked to stop."""
    LEFT = "left"
    """It could not be finished here; other executors may try."""


class OperationRun:
    """Runs the jobs of one operation. Belongs to the runner's event loop."""

    def __init__(
        self,
        ledger: Ledger,
        launcher: TaskLauncher,
        operation: DistributedOperation,
        taken: Taken,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random,
    ) -> None:
        self.taken = taken
        self.run = taken.run
        self.over = ""
        """Why the run is over; empty while it is held."""
        self.left = ""
        """Why it could not be finished here, if it was :data:`End.LEFT`."""
        self._ledger, self._launcher = ledger, launcher
        config = ledger.client.config
        scratch = Scratch(SidecarFolder.of(config.endpoints, config.prefix))
        self._work = TaskWork(operation=operation, arg=taken.arg, run_token=taken.run.token, scratch=scratch)
        self._clock, self._rng = clock, rng
        self._ended = asyncio.Event()
        self._launched: LaunchedTasks | LaunchedFrame | None = None
        self._failed = ""
        """Why the last launch failed."""
        self._given_up: asyncio.Future[None] | None = None
        self._given_up_left = 0
        self.times: list[TaskTime] = []
        """Of the tasks that have ended, the longest."""

    def cancel(self, reason: str) -> None:
        """Cancel its tasks; :meth:`finish` returns once they have ended."""
        self.over = self.over or reason
        self._ended.set()
        if self._launched is not None:
            self._launched.cancel(reason)

    async def held_up(self) -> str:
        """What keeps its jobs from going on; empty: nothing that is known, or the run is over."""
        if self.over:
            return ""
        now = await asyncio.to_thread(self._launched.held_up) if self._launched is not None else ""
        return now or (f"its jobs are launched again after: {self._failed}" if self._failed else "")

    def spans(self, member: str, began: float, end: str) -> list[Span]:
        """The spans of this run, which has ended, of its tasks, and of slow and failed jobs."""
        token, trace = self.run.token, self.taken.arg.trace
        attributes = {"executor": member, "run": token, "end": end, "reason": self.over or self.left}
        now = self._clock()
        spans = [Span(trace, f"run/{token}", "run", began, now, attributes=attributes, error=self.left)]
        for number, task in enumerate(self.times):
            where = {"run": token, "task": task.name, "host": task.host}
            each = f"task/{token}/{number}"
            spans.append(Span(trace, each, "task", task.began, task.ended, attributes=where))
            for index, job in enumerate(task.jobs):
                part, of_job = f"{each}/{index}", {**where, "partition": job.partition}
                spans.append(
                    Span(trace, part, "job", job.began, job.ended, attributes=of_job, error=job.error)
                )
        return spans

    def run_over(self, run: Run, reason: str) -> None:
        """A call of :class:`~distop.executor.ledger.oversight.RunListener`."""
        log.info("run_over", extra={"operation": str(run.keys.operation), "reason": reason})
        self.cancel(reason)

    async def finish(self) -> End:
        """Launch the unfinished jobs, repeatedly if necessary, until all have a result.

        Raises
        ------
        LauncherBroken
            Nothing can be launched here any more.
        """
        claims = self._ledger.desk if self._work.claims else None
        self._ledger.oversight.attach(self.run, self, claims=claims, known_at=self.run.token)
        try:
            return await self._finish(list(self.taken.unfinished))
        except LauncherBroken:
            raise
        except DistopError as error:
            log.warning(
                "operation_left", extra={"operation": str(self.run.keys.operation), "error": str(error)}
            )
            self.left = error.message
            return End.LEFT
        finally:
            self._ledger.oversight.detach(self.run, self)

    async def _finish(self, unfinished: list[str]) -> End:
        fruitless = 0
        tried = await read_tries(self._ledger.client, self.run.keys, self.taken.job_keys)
        while unfinished and not self._ended.is_set():
            reason = await self._launch(unfinished, tried)
            if not reason:
                # Also if the leader has finished the operation before the last task has ended here.
                return End.SETTLED
            if self._ended.is_set():
                break
            client, keys = self._ledger.client, self.run.keys
            existing = (await client.scan(keys.prefix, keys_only=True)).kvs
            left = without_result(keys, self.taken.arg, existing)
            tried = await read_tries(client, keys, existing)
            fruitless = 0 if len(left) < len(unfinished) else fruitless + 1
            unfinished = left
            if unfinished and fruitless and (over := (await why_over(client, self.run))[0]):
                # Its tasks may see its end, or a pause, before this process does. The jobs did not fail.
                self.cancel(over)
                break
            self._failed = reason if fruitless else ""
            if unfinished and fruitless >= MAX_LAUNCHES and self._work.retry.attempts is not None:
                await self._give_up(unfinished, reason)
                break
            if unfinished:
                await self._pause(fruitless)
        return End.OVER if self._ended.is_set() else End.SETTLED

    async def _launch(self, partitions: list[str], tried: dict[str, Tried]) -> str:
        """Launch these jobs and wait for their end. Returns why some have no result; empty: all have one."""
        operation = str(self.run.keys.operation)
        log.debug("launching", extra={"operation": operation, "jobs": len(partitions)})
        launch = Launch(
            run=self.run,
            work=replace(self._work, tried={name: tried[name] for name in partitions if name in tried}),
            arg_value=self.taken.arg_value,
            partitions=partitions,
        )
        reached("launch.before")
        launched = self._launched = self._launcher.launch(launch)
        reached("launch.middle")
        if self.over:
            launched.cancel(self.over)
        try:
            summary = await launched.wait()
            reached("launch.after")
        except LauncherBroken:
            raise
        except DistopError as error:
            if not self._ended.is_set():
                log.warning("launch_failed", extra={"operation": operation, "error": str(error)})
            return error.message
        finally:
            self._launched = None
        self.times = longest([*self.times, *summary.times])
        left = len(partitions) - summary.finished
        return f"{left} of {len(partitions)} jobs were left without a result" if left > 0 else ""

    async def _pause(self, fruitless: int) -> None:
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(fruitless, 16))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest * self._rng.uniform(0.5, 1.0)):
                await self._ended.wait()

    # -- giving jobs up ------------------------------------------------------------------------------

    async def _give_up(self, partitions: list[str], reason: str) -> None:
        """Mark jobs failed that cannot be run. Leftovers of attempts are removed after the operation."""
        log.error(
            "jobs_given_up",
            extra={
                "operation": str(self.run.keys.operation),
                "jobs": len(partitions),
                "reason": reason,
            },
        )
        numbers, rest = itertools.count(1), iter(partitions)
        while marks := [
            (number, self._failure(number, partition, reason))
            for number, partition in zip(itertools.islice(numbers, MARKS_AT_ONCE), rest, strict=False)
        ]:
            self._given_up = asyncio.get_running_loop().create_future()
            self._given_up_left = len(marks)
            self._ledger.batcher.submit(self.run, self, marks)
            await self._given_up

    def _failure(self, number: int, partition: str, reason: str) -> Mark:
        attempt = f"{self.run.token}-runner-{self._rng.getrandbits(48):012x}-{number}"
        return Mark(partition, attempt, failure_record(attempt, LaunchFailed.code, reason, self._clock()))

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        """See ``Submitter``. The job has a result: this one, or that of another attempt."""
        self._given_up_left -= len(answers)
        if self._given_up is not None and self._given_up_left <= 0 and not self._given_up.done():
            self._given_up.set_result(None)

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """A call of :class:`~distop.executor.ledger.ledger.Submitter`."""
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_exception(error)


class DynamicOperationRun(OperationRun):
    """Runs one operation with a dynamic plan. Belongs to the runner's event loop.

    Nothing is marked before Spark has ended. Then the results that Spark has accepted, of one computation,
    are marked, and their count is sealed. After a failure before that, the next attempt starts from nothing:
    in the same run, if it has marked nothing yet; else in another run, which removes the marks first.
    """

    _counted: DynamicRun | None = None
    """The counter of runs, once this run is counted."""
    _giving_back: asyncio.Task[None] | None = None

    def cancel(self, reason: str) -> None:
        """See :meth:`OperationRun.cancel`. The count is taken back at once: tasks may take long to end."""
        super().cancel(reason)
        self._give_back()

    def _give_back(self) -> None:
        if self._counted is not None and self._giving_back is None:
            self._giving_back = asyncio.create_task(_given_back(self._counted), name="give-back")

    async def _finish(self, unfinished: list[str]) -> End:
        """As :meth:`OperationRun.finish`, of a dynamic plan."""
        counted = DynamicRun(self._ledger.client, self.run)
        if not await counted.begin():
            return await self._until_over()
        self._counted = counted
        broken = False
        try:
            return await self._through(counted)
        except LauncherBroken:
            broken = True  # perhaps of this computation: Spark's process ends as this one would
            raise
        finally:
            if not broken:
                self._give_back()
            if self._giving_back is not None:
                await self._giving_back

    async def _through(self, counted: DynamicRun) -> End:
        """Compute, mark and seal, until it succeeds or the attempts are used up."""
        if counted.count is not None:
            return End.SETTLED  # sealed by an earlier run, which then ended
        if counted.begun > MAX_RUNS and self._work.retry.attempts is not None:
            return await self._fail(
                LaunchFailed.code,
                f"it was started {MAX_RUNS} times and its executor died each time: it may need more memory "
                "than an executor has",
            )
        reason, tries, most = "", 0, self._work.retry.most_attempts
        while tries < most and not self._ended.is_set():
            if tries:
                await self._pause(tries)
            tries += 1
            try:
                results = await self._computed(counted)
            except (LauncherBroken, NeedsSpark):
                raise
            except (InvalidArgument, JobFailed) as error:
                return await self._fail(error.code, error.message)
            except LaunchFailed as error:
                reason = error.message
                if not self._ended.is_set() and (over := (await why_over(self._ledger.client, self.run))[0]):
                    self.cancel(over)
                self._failed = reason
                continue
            if self._ended.is_set():
                break
            if await self._mark(results) and await counted.seal(len(results)):
                log.info(
                    "count_sealed",
                    extra={"operation": str(self.run.keys.operation), "jobs": len(results)},
                )
                return End.SETTLED
            return await self._until_over()
        if self._ended.is_set():
            return End.OVER
        return await self._fail(LaunchFailed.code, reason)

    async def _until_over(self) -> End:
        """Wait until the run is over, since its operation has ended or is being aborted.

        The run is not released before: another run would remove a failure that the leader has not seen yet.
        """
        await self._ended.wait()
        return End.OVER

    async def _computed(self, counted: DynamicRun) -> list[FrameResult]:
        """The results of one computation of the DataFrame."""
        launch = Launch(run=self.run, work=self._work, arg_value=self.taken.arg_value, partitions=())
        log.info("computing", extra={"operation": str(self.run.keys.operation)})
        reached("compute.before")
        launched = self._launched = self._launcher.launch_frame(launch)
        if self.over:
            launched.cancel(self.over)
        noting = asyncio.create_task(kept_running("progress", partial(self._note, counted, launched)))
        try:
            results = await self._in_time(launched)
            self.times = longest(result.time for result in results if result.time is not None)
            reached("compute.after")
            return results
        except LaunchFailed as error:
            if not self._ended.is_set():
                fields = {"operation": str(self.run.keys.operation), "error": str(error)}
                log.warning("launch_failed", extra=fields)
            raise
        finally:
            self._launched = None
            await cancel_all(noting)

    async def _in_time(self, launched: LaunchedFrame) -> list[FrameResult]:
        """The results, unless the computation takes too long: then the operation fails."""
        limit_s = self._work.operation.frame_limit_s(self.taken.arg)
        try:
            async with asyncio.timeout(limit_s):
                return await launched.wait()
        except TimeoutError:
            # Marked before it is cancelled: if cancelling fails, this executor ends, and no other retries.
            await self._fail(JobFailed.code, f"its query has not ended within {limit_s:,.0f} s")
        launched.cancel("it takes too long")
        return await launched.wait()

    async def _note(self, counted: DynamicRun, launched: LaunchedFrame) -> None:
        while True:
            await asyncio.sleep(NOTE_EVERY_S)
            tasks, done = await launched.progress()
            await counted.note(tasks, done)

    # -- marks ---------------------------------------------------------------------------------------

    async def _mark(self, results: list[FrameResult]) -> bool:
        """Mark all of them; returns whether each mark was the first one of its job."""
        if any(not result.value for result in results):
            return False  # a task has marked its job failed
        marks = [Mark(str(result.partition), result.attempt, result.value) for result in results]
        for start in range(0, len(marks), MARKS_AT_ONCE):
            some = marks[start : start + MARKS_AT_ONCE]
            if not all(verdict.outcome is Outcome.WON for verdict in await self._submit(some)):
                return False
        return True

    async def _submit(self, marks: list[Mark]) -> list[Verdict]:
        self._verdicts: list[Verdict] = []
        self._given_up = asyncio.get_running_loop().create_future()
        self._given_up_left = len(marks)
        self._ledger.batcher.submit(self.run, self, list(enumerate(marks)))
        await self._given_up
        return self._verdicts

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        """A call of :class:`~distop.executor.ledger.ledger.Submitter`."""
        self._verdicts += [verdict for _, _, verdict in answers]
        super().answered(answers)

    async def _fail(self, code: str, message: str) -> End:
        """Mark a job failed, no matter which one, and wait until the operation is aborted."""
        operation = str(self.run.keys.operation)
        log.error("frame_failed", extra={"operation": operation, "code": code, "error": message})
        attempt = f"{self.run.token}-runner-{self._rng.getrandbits(48):012x}-1"
        record = failure_record(attempt, code, message, self._clock(), run=self.run.token)
        await self._submit([Mark("0", attempt, record)])
        return await self._until_over()


async def _given_back(counted: DynamicRun) -> None:
    """Take the count back. If that fails, this run only stays counted."""
    try:
        await counted.give_back()
    except DistopError as error:
        log.info("run_stays_counted", extra={"error": str(error)})
