"""One run of an operation with a dynamic plan: its DataFrame is computed as a whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial

from distop.errors import DistopError, InvalidArgument, JobFailed
from distop.executor.launch.launch import Launch, LaunchedFrame, LauncherBroken, LaunchFailed, NeedsSpark
from distop.executor.runner.operation_run import MARKS_AT_ONCE, End, OperationRun
from distop.executor.task.frame_task import FrameResult
from distop.metastore.crashpoints import reached
from distop.metastore.operations.dynamic_runs import DynamicRun
from distop.metastore.operations.jobs import Mark, Outcome, Verdict, failure_record
from distop.metastore.operations.runs import why_over
from distop.process.followers import kept_running

log = logging.getLogger(__name__)

MAX_RUNS = 20
"""Runs that may start to compute a DataFrame and end with their process. A computation that needs more memory
than there is kills its process, which then can count nothing. So each run is counted when it starts, and
the count is taken back however it ends, unless its process or its Spark has died."""

NOTE_EVERY_S = 2.0
"""How often Spark's progress is recorded, if it has changed."""


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
        """See :meth:`OperationRun.finish`."""
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
        if counted.begun > MAX_RUNS and self._work.operation.can_fail:
            return await self._fail(
                LaunchFailed.code,
                f"it was started {MAX_RUNS} times and its executor died each time: it may need more memory "
                "than an executor has",
            )
        options, reason, tries = self.taken.arg.options, "", 0
        most = options.max_job_attempts if self._work.operation.can_fail else math.inf
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
            reached("compute.after")
            return results
        except LaunchFailed as error:
            if not self._ended.is_set():
                fields = {"operation": str(self.run.keys.operation), "error": str(error)}
                log.warning("launch_failed", extra=fields)
            raise
        finally:
            self._launched = None
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)

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
        """See :class:`~distop.executor.ledger.batcher.Submitter`."""
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
