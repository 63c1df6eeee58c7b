"""Computing the DataFrame of a dynamic plan on Spark: one task a partition, all of one computation.

What counts is what Spark has accepted of the tasks' results, as with ``collect``: so a task that Spark tried
again and one that it let run twice count once. That alone is not enough. When an executor is lost together
with shuffle files, Spark computes these again and repeats only the tasks that have not ended. It does not do
so where it knows that the rows may then be cut in another way; but it does not know of every such case (a
column of random numbers, a function of the user's). So a computation any stage of which was repeated is given
up as a whole, and begun anew. Cached or checkpointed DataFrames, and those without a shuffle, are not
concerned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from distop.errors import DistopError, JobFailed
from distop.executor.launch.launch import Launch, LaunchFailed
from distop.executor.launch.spark_job import SparkJob
from distop.executor.launch.spark_task import SparkTask, settle_worker
from distop.executor.task.frame_task import FrameResult, run_frame_job
from distop.metastore.records.structs import ready

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

HEARD_WITHIN_S = 30.0
"""How long Spark may take to tell how the stages of a job went, once it has ended."""

_RESULT = "result binary"
_PERMANENT = re.compile(
    r"^distop\.errors(?:\.\w+)*\.(?:InvalidArgument|JobFailed|BadRow|SourceUnreadable): (.*)$", re.MULTILINE
)


@dataclass(frozen=True)
class SparkFrameTask:
    """A function over the Arrow batches of one partition; gives one row, a :class:`FrameResult`."""

    task: SparkTask

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this runs in tasks of Spark alone")
        port, work = self.task.begin()
        name = f"s{context.taskAttemptId()}"
        result = run_frame_job(port, work, context.partitionId(), batches, name, stage=context.stageId())
        for _ in batches:
            pass  # Spark does not reuse a worker that leaves its input unread
        settle_worker(os.getpid(), len(sys.modules))
        packed = pa.array([msgspec.msgpack.encode(result)], pa.binary())
        yield pa.RecordBatch.from_arrays([packed], names=["result"])


class SparkFrame(SparkJob[list[FrameResult]]):
    """One computation of a DataFrame."""

    def __init__(
        self, session: SparkSession, launch: Launch, task: SparkTask, *, name: str, pool: str, ours: bool
    ) -> None:
        self._task = SparkFrameTask(task)
        super().__init__(session, launch, name=name, pool=pool, ours=ours)

    async def progress(self) -> tuple[int, int]:
        return await asyncio.to_thread(self._progress)

    def _progress(self) -> tuple[int, int]:
        """Of the stage that is being computed. Those before it read and shuffle; which one is the last is not
        known before it runs."""
        tracker = self._context.statusTracker()
        for job in sorted(tracker.getJobIdsForGroup(self._name), reverse=True):
            seen = tracker.getJobInfo(job)
            for stage in sorted(seen.stageIds if seen is not None else (), reverse=True):
                info = tracker.getStageInfo(stage)
                if info is not None and info.numActiveTasks:
                    return info.numTasks, info.numCompletedTasks
        return 0, 0

    def _collect(self) -> list[FrameResult]:
        work = self._launch.work
        frame = work.operation.frame(self._session, work.arg)
        rows = frame.mapInArrow(self._task, _RESULT).collect()
        results = [msgspec.msgpack.decode(row["result"], type=ready(FrameResult)) for row in rows]
        results.sort(key=lambda result: result.partition)
        if [result.partition for result in results] != list(range(len(results))):
            raise LaunchFailed("Spark gave the results of some partitions twice, or not at all")
        if results:
            self._check_computed_once({result.stage for result in results}, len(results))
        return results

    def _failure(self, error: Exception) -> DistopError:
        """What the function that makes the DataFrame has said in a worker, if that is for good: a row that
        cannot be read, a file that has changed. Spark only has its text."""
        said = _PERMANENT.findall(str(error))
        return JobFailed(said[-1].strip()) if said else super()._failure(error)

    def _check_computed_once(self, stages: set[int], tasks: int) -> None:
        """Raise :class:`LaunchFailed` unless no stage of this job was repeated."""
        tracker = self._context.statusTracker()
        if len(stages) != 1:
            raise LaunchFailed(f"the results are of {len(stages)} stages")
        last = stages.pop()
        seen = [tracker.getStageInfo(stage) for stage in self._stages_beside(last)]
        infos = [info for info in seen if info is not None]
        if len(infos) < len(seen):
            raise LaunchFailed(
                "Spark has forgotten a stage already, so nobody can tell whether it was repeated",
                hint="let Spark keep more with spark.ui.retainedStages and spark.ui.retainedJobs",
            )
        if any(info.currentAttemptId for info in infos):
            raise LaunchFailed("Spark has repeated a stage half-way, after it had lost some of its output")
        result = next(info for info in infos if info.stageId == last)
        if result.numTasks != tasks:
            raise LaunchFailed(f"{tasks} of {result.numTasks} tasks gave a result")
        if result.numFailedTasks and self._context.getConf().get("spark.speculation", "false") == "true":
            # A twin of the failed one may have ended before the stage was repeated, on rows computed anew.
            raise LaunchFailed("a task failed while others of its kind may have run beside it")

    def _stages_beside(self, last: int) -> list[int]:
        """All stages of the job that ended with this one, once Spark's own books are up to date: its
        listeners hear of everything in order, but late."""
        tracker, deadline = self._context.statusTracker(), time.monotonic() + HEARD_WITHIN_S
        while True:
            for job in tracker.getJobIdsForGroup(self._name):
                info = tracker.getJobInfo(job)
                if info is not None and last in info.stageIds and info.status == "SUCCEEDED":
                    return list(info.stageIds)
            if time.monotonic() > deadline:
                raise LaunchFailed("Spark does not tell how the stages of its job went")
            time.sleep(0.02)
