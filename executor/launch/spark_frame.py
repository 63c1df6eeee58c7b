"""Computes the DataFrame of a dynamic plan on Spark: one task per partition, all of one computation.

The results that Spark has accepted count, as with ``collect``: so a task that Spark retried, or ran twice,
counts once. That alone is not enough. When an executor is lost together with shuffle files, Spark computes
these again and repeats only the tasks that have not ended. It avoids that where it knows that the rows may
then be partitioned differently; but it does not know every such case (a column of random numbers, a
user-defined function). So a computation with any repeated stage is abandoned as a whole, and started again.
Under adaptive execution each shuffle is a job of its own, so all stages of all jobs of the launch count; and
what no stage shows is left to Spark's checksums of shuffles: a session without them is refused.
Cached or checkpointed DataFrames, and those without a shuffle, are not affected.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext

from distop.errors import DistopError, JobFailed, LaunchFailed, SourceIncomplete
from distop.executor.launch.launch import Launch
from distop.executor.launch.settings import refuse_unchecked
from distop.executor.launch.spark_job import SparkJob
from distop.executor.launch.spark_task import SparkTask, settle_worker
from distop.executor.task.task import FrameResult, run_frame_job
from distop.metastore.records.record import ready

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORTED_WITHIN_S = 30.0
"""How long Spark may take to report the stages of a job after its end."""

_RESULT = "result binary"
_UNDER_WAY = ("PENDING", "ACTIVE")
_PERMANENT = re.compile(
    r"^distop\.errors(?:\.\w+)*\.(InvalidArgument|JobFailed|BadRow|SourceUnreadable|SourceIncomplete): (.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class SparkFrameTask:
    """A function over the Arrow batches of one partition; yields one row, a :class:`FrameResult`."""

    task: SparkTask

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this runs only in tasks of Spark")
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
        self, session: SparkSession, launch: Launch, task: SparkTask, *, name: str, pool: str, owned: bool
    ) -> None:
        self._task = SparkFrameTask(task)
        self._known: dict[int, Any] = {}
        super().__init__(session, launch, name=name, pool=pool, owned=owned)

    async def progress(self) -> tuple[int, int]:
        return await asyncio.to_thread(self._progress)

    def _progress(self) -> tuple[int, int]:
        """Progress of the stage that is being computed. Those before it read and shuffle; which one is the
        last is unknown before it runs."""
        at_work = [stage for _, stage in sorted(self._look().items()) if stage.numActiveTasks()]
        return (at_work[-1].numTasks(), at_work[-1].numCompleteTasks()) if at_work else (0, 0)

    def _look(self) -> dict[int, Any]:
        """What Spark says of the last attempt at each stage of this launch. It is kept, since Spark forgets
        stages, and jobs, that have ended.

        Raises :class:`LaunchFailed` if it has forgotten one that had not ended when it was last seen.
        """
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()
        stages = dict(self._known)
        for job in tracker.getJobIdsForGroup(self._name):
            for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                if tracker.getStageInfo(stage) is not None:
                    stages[stage] = store.lastStageAttempt(stage)
                elif stage not in stages or str(stages[stage].status()) in _UNDER_WAY:
                    raise LaunchFailed(
                        "Spark has forgotten a stage already, so it is unknown whether it was repeated",
                        hint="let Spark keep more with spark.ui.retainedStages and spark.ui.retainedJobs",
                    )
        self._known = stages
        return stages

    def _collect(self) -> list[FrameResult]:
        work = self._launch.work
        frame = work.operation.frame(self._session, work.arg)
        refuse_unchecked(frame.sparkSession)
        rows = frame.mapInArrow(self._task, _RESULT).collect()
        results = [msgspec.msgpack.decode(row["result"], type=ready(FrameResult)) for row in rows]
        results.sort(key=lambda result: result.partition)
        if [result.partition for result in results] != list(range(len(results))):
            raise LaunchFailed("Spark gave the results of some partitions twice, or not at all")
        if results:
            self._check_computed_once({result.stage for result in results}, len(results))
        return results

    def _failure(self, error: BaseException) -> DistopError:
        """The permanent error of the function that makes the DataFrame, from a worker: an unreadable row, a
        changed file. Spark only has its text."""
        messages = _PERMANENT.findall(str(error))
        if not messages:
            return super()._failure(error)
        name, text = messages[-1]
        return (SourceIncomplete if name == SourceIncomplete.__name__ else JobFailed)(text.strip())

    def _check_computed_once(self, stages: set[int], tasks: int) -> None:
        """Raise :class:`LaunchFailed` unless no stage of this launch was repeated."""
        if len(stages) != 1:
            raise LaunchFailed(f"the results come from {len(stages)} stages")
        last = stages.pop()
        self._until_reported(last)
        known = self._look()
        if any(stage.attemptId() for stage in known.values()) or _ran_twice(known.values()):
            raise LaunchFailed("Spark has repeated a stage half-way, after it lost some of its output")
        result = known[last]
        if result.numTasks() != tasks:
            raise LaunchFailed(f"{tasks} of {result.numTasks()} tasks gave a result")
        if result.numFailedTasks() and self._context.getConf().get("spark.speculation", "false") == "true":
            # A twin of the failed task may have ended before the stage was repeated, on recomputed rows.
            raise LaunchFailed("a task failed while duplicates of it may have been running")

    def _until_reported(self, last: int) -> None:
        """Wait until Spark's own state knows that the job of this stage has ended, and so all before it: its
        listeners get everything in order, but late."""
        tracker, deadline = self._context.statusTracker(), time.monotonic() + REPORTED_WITHIN_S
        while True:
            for job in tracker.getJobIdsForGroup(self._name):
                info = tracker.getJobInfo(job)
                if info is not None and last in info.stageIds and info.status == "SUCCEEDED":
                    return
            if time.monotonic() > deadline:
                raise LaunchFailed("Spark does not report the stages of its job")
            time.sleep(0.02)


def _ran_twice(stages: Iterable[Any]) -> bool:
    """Whether Spark has computed a part of a shuffle again, for another job than the one that it was computed
    for: that is a stage with a number of its own, over the same RDDs."""
    wrote: dict[frozenset[int], list[bool]] = {}
    for stage in stages:
        if stage.submissionTime().isDefined():
            rdds = frozenset(map(int, stage.rddIds().mkString(" ").split()))
            wrote.setdefault(rdds, []).append(stage.shuffleWriteBytes() > 0)
    return any(len(runs) > 1 and any(runs) for runs in wrote.values())
