"""Launching the jobs of an operation: the interface between a runner and Spark, or threads."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from traceback import format_exception_only
from typing import Any, Protocol, TypeVar

from distop.errors import DistopError, InvalidArgument, JobFailed, LaunchFailed, shortened
from distop.executor.ledger.ledger import Ledger, LocalPort
from distop.executor.task.task import FrameResult, TaskSummary, TaskWork, run_frame_job, run_task
from distop.metastore.operations.runs import Run
from distop.process.loop import Daemons, settle_from_thread

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_REASON = 400
"""Characters kept of why a launch failed."""

JOBS_PER_SMALL_TASK = 1000
"""Small jobs are packed, up to this many per task before another task is worth starting."""

TASKS_PER_SLOT = 500
"""Big jobs go one to a task, up to this many tasks per slot; beyond that they are packed evenly. A task costs
Spark some milliseconds, and its driver some kilobytes."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Some jobs of one run, to run once."""

    run: Run
    work: TaskWork
    arg_value: bytes
    """The operation's argument as stored in etcd."""
    partitions: Sequence[str]


class LaunchedTasks(Protocol):
    """Running tasks. Called on the runner's event loop."""

    def cancel(self, reason: str) -> None:
        """The tasks are no longer needed. Returns at once; :meth:`wait` returns when they have ended."""

    def held_up(self) -> str:
        """What keeps its tasks from going on, as far as is known; empty: nothing. Blocks."""

    async def wait(self) -> TaskSummary:
        """Wait until no task runs any more.

        Raises
        ------
        DistopError
            Some tasks could not be completed; some jobs may not be marked.
        LauncherBroken
            This launcher can run no tasks any more.
        """


class LaunchedFrame(Protocol):
    """A DataFrame being computed. Called on the runner's event loop."""

    def cancel(self, reason: str) -> None:
        """The computation is no longer needed. Returns at once; :meth:`wait` returns when it has ended."""

    def held_up(self) -> str:
        """As :meth:`LaunchedTasks.held_up` says."""

    async def progress(self) -> tuple[int, int]:
        """The number of tasks, as far as is known, and how many have ended."""

    async def wait(self) -> list[FrameResult]:
        """The result of each partition of one computation, in order.

        Raises
        ------
        LaunchFailed
            It could not be completed, or not as one computation.
        LauncherBroken
            This launcher can run nothing any more.
        InvalidArgument, JobFailed
            There is no such DataFrame; a retry would fail, too.
        """


class TaskLauncher(Protocol):
    """Runs the jobs of operations. Called on the runner's event loop."""

    async def start(self) -> None:
        """Start what launches need, such as a session of Spark."""

    def launch(self, launch: Launch) -> LaunchedTasks:
        """Start tasks for these jobs; returns at once."""

    def launch_frame(self, launch: Launch) -> LaunchedFrame:
        """Begin to compute the DataFrame of a dynamic plan; returns at once."""

    def held_up(self) -> str:
        """What keeps all that it launches from going on as fast as it should; empty: nothing. Blocks."""

    async def close(self) -> None:
        """Free its resources; nothing runs any more."""


def pack(partitions: Sequence[str], *, slots: int, small: bool) -> list[list[str]]:
    """Distribute jobs over tasks, neighbours together, evenly.

    Parameters
    ----------
    slots:
        How many tasks can run at once.
    small:
        Whether a job is so small that starting a task costs more than the job.
    """
    jobs = len(partitions)
    tasks = min(slots, -(-jobs // JOBS_PER_SMALL_TASK)) if small else min(jobs, slots * TASKS_PER_SLOT)
    if not jobs:
        return []
    share, larger = divmod(jobs, tasks)
    packs, start = [], 0
    for index in range(tasks):
        end = start + share + (index < larger)
        packs.append(list(partitions[start:end]))
        start = end
    return packs


def settling(future: asyncio.Future[T], call: Callable[[], T]) -> Callable[[], None]:
    """What a thread of a launch runs: a call whose result, or error, becomes the future's.

    Whatever ends the thread becomes an error of the future: :class:`LaunchFailed`, unless it is one that says
    more to a runner. A future that is never settled looks like jobs that run.
    """

    def run() -> None:
        try:
            outcome: T | DistopError = call()
        except (LaunchFailed, InvalidArgument, JobFailed) as error:
            outcome = error
        except BaseException as error:
            log.warning("launch_crashed", exc_info=True)
            outcome = LaunchFailed(f"a task failed: {last_line(error)}")
        settle_from_thread(future, outcome)

    return run


def last_line(error: BaseException) -> str:
    """The last line of an error's traceback."""
    # Not str() of errors that are not ours: that of an error of Spark's JVM asks this JVM, which may be gone.
    lines = [str(error)] if isinstance(error, DistopError) else format_exception_only(error)
    return shortened(" ".join(lines[-1].split()), MAX_REASON)


class LocalLauncher:
    """Runs jobs in threads of this process, without Spark: for tests, benchmarks, small operations.

    Parameters
    ----------
    slots:
        Threads per launch. Jobs that wait (for a disk, a network) gain from more threads than processors.
    """

    def __init__(self, ledger: Ledger, *, slots: int = 0) -> None:
        self._ledger = ledger
        self._slots = slots or min(32, (os.cpu_count() or 1) + 4)
        self._threads = Daemons()

    async def start(self) -> None:
        """Do nothing: threads are made when they are needed."""

    def launch(self, launch: Launch) -> LocalTasks:
        return LocalTasks(self._ledger, launch, self._slots, self._threads)

    def launch_frame(self, launch: Launch) -> LocalFrame:
        return LocalFrame(self._ledger, launch, self._slots)

    def held_up(self) -> str:
        return ""

    async def close(self) -> None:
        """Threads that still run user code end with the process."""
        self._threads.close()


class LocalTasks:
    """The threads of one launch. The next free thread takes the next big job from a shared queue."""

    def __init__(self, ledger: Ledger, launch: Launch, slots: int, threads: Daemons) -> None:
        loop = asyncio.get_running_loop()
        self._port = LocalPort(loop, ledger, launch.run)
        packs = pack(launch.partitions, slots=slots, small=launch.work.operation.small_jobs)
        self._packs = deque(packs)
        self._tasks: list[asyncio.Future[TaskSummary]] = []
        for index in range(min(slots, len(packs))):
            task = functools.partial(run_task, self._port, launch.work, self._partitions(), f"t{index}")
            self._tasks.append(loop.create_future())
            threads.run(settling(self._tasks[-1], task))

    def cancel(self, reason: str) -> None:
        self._port.end(reason)

    def held_up(self) -> str:
        return ""

    async def wait(self) -> TaskSummary:
        return await summed(self._tasks)

    def _partitions(self) -> Iterator[str]:
        while True:
            try:
                partitions = self._packs.popleft()
            except IndexError:
                return
            yield from partitions


async def summed(tasks: Sequence[asyncio.Future[TaskSummary]]) -> TaskSummary:
    """What all tasks did, once all have ended; raises the error of the first one that failed."""
    if tasks:
        await asyncio.wait(tasks)
    return TaskSummary.total([task.result() for task in tasks])


class LocalFrame:
    """The partitions of a dynamic plan in threads of this process, for types that work without Spark."""

    def __init__(self, ledger: Ledger, launch: Launch, slots: int) -> None:
        loop = asyncio.get_running_loop()
        self._port = LocalPort(loop, ledger, launch.run)
        self._work, self._slots = launch.work, slots
        self._tasks = self._done = 0
        self._ended: asyncio.Future[list[FrameResult]] = loop.create_future()
        run = settling(self._ended, self._computed)
        threading.Thread(target=run, name="distop-frame", daemon=True).start()

    def cancel(self, reason: str) -> None:
        self._port.end(reason)

    def held_up(self) -> str:
        return ""

    async def progress(self) -> tuple[int, int]:
        return self._tasks, self._done

    async def wait(self) -> list[FrameResult]:
        return await asyncio.shield(self._ended)

    def _computed(self) -> list[FrameResult]:
        """All partitions, in daemon threads: hanging user code ends with the process."""
        frame: Sequence[Iterable[Any]] = self._work.operation.frame(None, self._work.arg)
        results, failures = dict[int, FrameResult](), list[Exception]()
        waiting = deque(enumerate(frame))
        self._tasks = len(waiting)

        def work() -> None:
            while not failures:
                try:
                    index, rows = waiting.popleft()
                except IndexError:
                    return
                try:
                    results[index] = run_frame_job(self._port, self._work, index, rows, f"t{index}")
                except Exception as error:
                    failures.append(error)
                self._done += 1

        names = [f"distop-partition-{number}" for number in range(min(self._slots, len(waiting)))]
        threads = [threading.Thread(target=work, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [results[index] for index in range(len(results))]
