"""One launch on Spark: a job group, a thread that waits for it, and its cancellation."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from distop.errors import DistopError, InvalidArgument, JobFailed, LauncherBroken, LaunchFailed
from distop.executor.launch.launch import MAX_REASON, Launch, last_line, settling

if TYPE_CHECKING:
    from pyspark import SparkContext, SparkStageInfo
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
T = TypeVar("T")

CANCEL_AFTER_S = 0.3
"""Tasks are cancelled by push and end themselves; those that have not ended by then are cancelled in Spark as
well."""

ENDS_WITHIN_S = 120.0
"""How long Spark may take to end cancelled tasks. It does not end a task within a row; after a minute it
kills the task's worker, unless that is the driver itself (``local``)."""

_LONGEST_CANCEL_S = 2.0
_LOOK_S = 0.1
_NOISE = ("SQLSTATE:", "Driver stacktrace:")


class SparkJob(ABC, Generic[T]):
    """What one launch runs on Spark, in a thread that waits for it.

    Parameters
    ----------
    owned:
        Whether the session is this executor's own, which is then given up with a task that cannot be ended. A
        user program's session is not: there the launch ends when the task does.
    """

    def __init__(
        self, session: SparkSession, launch: Launch, *, name: str, pool: str, owned: bool = False
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._session, self._context = session, session.sparkContext
        self._launch, self._name, self._pool, self._owned = launch, name, pool, owned
        self._ended: asyncio.Future[T] = self._loop.create_future()
        self._cancelling: asyncio.Task[None] | None = None
        # Each Python thread has its own thread in the JVM, and so a job group of its own. Nothing is asked of
        # the JVM before: it may be gone, which the thread finds out.
        threading.Thread(target=settling(self._ended, self._run), name=name, daemon=True).start()

    def cancel(self, reason: str) -> None:
        if self._cancelling is None and not self._ended.done():
            log.info("spark_cancelling", extra={"group": self._name, "reason": reason})
            self._cancelling = asyncio.create_task(self._cancel())

    def held_up(self) -> str:
        """See :class:`~distop.executor.launch.launch.LaunchedTasks`. Asks Spark's own state."""
        with suppress(Exception):  # the driver is gone: the waiting thread sees that, too
            if not executors_of(self._context) and not self._context._jsc.sc().isLocal():
                return "Spark has no executors"
            for stage in self._stages_at_work():
                if stage.numFailedTasks and (reason := _last_failure(self._context, stage)):
                    return f"tasks of Spark fail and are tried again: {reason}"
        return ""

    def _stages_at_work(self) -> Iterator[SparkStageInfo]:
        """The stages of this launch that have tasks now."""
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._name):
            for number in getattr(tracker.getJobInfo(job), "stageIds", ()):
                info = tracker.getStageInfo(number)
                if info is not None and info.numActiveTasks:
                    yield info

    async def wait(self) -> T:
        try:
            return await asyncio.shield(self._ended)
        finally:
            if self._cancelling is not None:
                self._cancelling.cancel()

    async def _cancel(self) -> None:
        """Cancel until it has ended: a group without a job cannot be cancelled, and might get one later."""
        pause, begun = CANCEL_AFTER_S, self._loop.time()
        while not self._owned or self._loop.time() - begun < ENDS_WITHIN_S:
            await asyncio.sleep(pause)
            with suppress(Exception):  # the driver is gone: the waiting thread sees that too
                await asyncio.to_thread(self._context.cancelJobGroup, self._name)
            pause = min(2 * pause, _LONGEST_CANCEL_S)
        if not self._ended.done():
            log.error("spark_does_not_cancel", extra={"group": self._name})
            self._ended.set_exception(
                LauncherBroken(f"Spark has not ended {self._name} within {ENDS_WITHIN_S:.0f} s")
            )

    def _run(self) -> T:
        try:
            self._context.setJobGroup(self._name, self._name)
            self._context.setLocalProperty("spark.scheduler.pool", self._pool)
            return self._collect()
        except (InvalidArgument, JobFailed, LaunchFailed):
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _until_no_task_runs(self) -> None:
        """Spark gives a cancelled job up at once, and its tasks when they report their end."""
        with suppress(Exception):  # the driver is gone, and its tasks with it
            while not self._ended.done() and any(self._stages_at_work()):
                time.sleep(_LOOK_S)

    @abstractmethod
    def _collect(self) -> T:
        """Run it, in the thread that starts all its Spark jobs."""

    def _failure(self, error: BaseException) -> DistopError:
        if self._cancelling is not None:
            self._until_no_task_runs()
            return LaunchFailed("it was cancelled")
        if not _is_alive(self._context):
            return LauncherBroken(f"Spark has stopped: {last_line(error)}")
        reason = " ".join(str(error).split())[: 10 * MAX_REASON]
        log.warning("spark_job_failed", extra={"group": self._name, "error": reason})
        return LaunchFailed(f"Spark gave up: {_cause(str(error))}")


def _last_failure(context: SparkContext, stage: SparkStageInfo) -> str:
    """Why a task of this stage has failed, the one that ran longest; empty: Spark does not say."""
    states: Any = context._jvm
    v1 = states.org.apache.spark.status.api.v1
    failed = states.java.util.ArrayList()
    failed.add(v1.TaskStatus.FAILED)
    store, longest = context._jsc.sc().statusStore(), v1.TaskSorting.DECREASING_RUNTIME
    tasks = store.taskList(stage.stageId, stage.currentAttemptId, 0, 1, longest, failed)
    if tasks.isEmpty() or tasks.head().errorMessage().isEmpty():
        return ""
    return _cause(tasks.head().errorMessage().get())


def _cause(message: str) -> str:
    """The line of an error of Spark's that says what happened: the last one of Python's traceback, or of what
    comes before the stack of Java."""
    text, _, _ = message.partition("\n\tat ")
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith(_NOISE)), "")[:MAX_REASON]


def executors_of(context: Any) -> int:
    """How many executors Spark has for this driver now; 0 where the driver itself works (``local``)."""
    spark = context._jsc.sc()
    # Block managers are no measure: that of an executor that died before its first task stays for a minute.
    return 0 if spark.isLocal() else int(spark.getExecutorIds().size())


def last_removal(context: Any) -> tuple[int, str]:
    """When Spark last removed an executor, in milliseconds since 1970, and why; 0: it has removed none."""
    gone: list[tuple[int, str]] = []
    executors = context._jsc.sc().statusStore().executorList(False).iterator()
    while executors.hasNext():
        executor = executors.next()
        if not executor.isActive() and executor.removeReason().isDefined():
            reason = " ".join(executor.removeReason().get().split())[:MAX_REASON]
            gone.append((executor.removeTime().get().getTime(), reason))
    return max(gone, default=(0, ""))


def is_release(reason: str) -> bool:
    """Whether Spark has removed an executor since it was not needed any more."""
    return "killed by driver" in reason


def _is_alive(context: Any) -> bool:
    """Whether jobs can still be run: neither stopped nor without its JVM."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        return False
