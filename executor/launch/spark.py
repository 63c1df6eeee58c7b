"""Running jobs on Spark: one job group for an operation's run, its partitions packed into tasks.

The DataFrame of a dynamic plan is computed by one task per partition, all of one computation. The results
that Spark has accepted count, as with ``collect``: so a task that Spark retried, or ran twice, counts once.
That alone is not enough. When an executor is lost together with shuffle files, Spark computes these again and
repeats only the tasks that have not ended. It avoids that where it knows that the rows may then be
partitioned differently; but it does not know every such case (a column of random numbers, a user-defined
function). So a computation with any repeated stage is abandoned as a whole, and started again. Under adaptive
execution each shuffle is a job of its own, so all stages of all jobs of the launch count; and what no stage
shows is left to Spark's checksums of shuffles: a session without them is refused. Cached or checkpointed
DataFrames, and those without a shuffle, are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession

from distop.errors import DistopError, JobFailed, LauncherBroken, LaunchFailed, SourceIncomplete
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import Launch, pack
from distop.executor.launch.settings import REAPED, SETTINGS, refuse_unchecked, refuse_unusable, with_retries
from distop.executor.launch.spark_job import SparkJob, executors_of, is_release, last_removal
from distop.executor.launch.spark_task import SparkTask, settle_worker
from distop.executor.sidecar.client import SidecarUnavailable, dial
from distop.executor.task.task import FrameResult, TaskSummary, run_frame_job
from distop.metastore.etcd.config import PASSWORD, PASSWORD_FILE, EtcdConfig
from distop.metastore.records.record import ready
from distop.operations.registry import VARIABLE

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


log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Back-off before a sidecar that could not start is started again."""

_STANDALONE = "spark://"
MASTER_S = 2.0
"""How long a master may take to accept a connection, in seconds."""

LOST_S = 600.0
"""How long an executor of Spark that was lost, and not replaced, is missed, in seconds."""

POOLS = 8
"""Scheduler pools, each for one operation at a time."""

# Spark warns about pools that no file describes; ours are such on purpose.
_TOO_LOUD = ("org.apache.spark.scheduler.FairSchedulableBuilder",)


class SparkLauncher:
    """Runs jobs with a Spark session of its own, or a given one.

    Parameters
    ----------
    session:
        A session that stays its owner's; otherwise one is made with ``master`` and ``settings``.
    """

    def __init__(
        self,
        etcd: EtcdConfig,
        *,
        master: str = "local[*]",
        settings: Mapping[str, str] | None = None,
        session: SparkSession | None = None,
    ) -> None:
        self._etcd, self._master, self._settings = etcd, master, dict(settings or {})
        self._session, self._owned = session, session is None
        self._sidecar: socket.socket | None = None
        self._closed = threading.Event()
        self._launches = 0
        self._executors = 0
        """How many Spark had at the last look."""
        self._removed_at = 0
        """When Spark removed the last of those that are known to be gone, in its milliseconds."""
        self._lost = "", 0, 0.0
        """The last loss of one, how many there were before, and when it was seen."""

    async def start(self) -> None:
        """Make the session. If its workers are on this host, have their sidecar ready too.

        Raises
        ------
        LauncherBroken
            Spark cannot be started.
        PythonUnusable
            The workers' Python cannot work.
        ShufflesUnchecked
            The session may lose rows of DataFrames, or double them.
        SparkTooOld
            This version of Spark lacks what distop needs.
        SidecarUnavailable
            The sidecar of this host does not start.
        """
        given = dict(self._session.sparkContext.getConf().getAll()) if self._session else self._settings
        master = given.get("spark.master", self._master) if self._session else self._master
        await asyncio.to_thread(refuse_unusable, master, given, os.environ)
        if self._session is None:
            # Spark passes its environment to workers on this host, and tasks must not get a password.
            for name in (PASSWORD, PASSWORD_FILE):
                os.environ.pop(name, None)
            try:
                self._session = await asyncio.to_thread(make_session, self._master, self._settings)
            except Exception as error:
                raise LauncherBroken(
                    f"Spark cannot be started with master {self._master!r}: {error}",
                    hint="it needs Java 17 or newer, and a master that can be reached",
                ) from error
        await asyncio.to_thread(refuse_unchecked, self._session)
        context = self._session.sparkContext
        if context.getConf().get(unix := "spark.python.unix.domain.socket.enabled", "false") != "true":
            log.warning("spark_tasks_are_slow", extra={"hint": f"make the session with {unix}=true"})
        if (context.master or "").startswith("local"):
            folder = SidecarFolder.of(self._etcd.endpoints, self._etcd.prefix)
            self._sidecar = await asyncio.to_thread(dial, folder, self._etcd.to_env())
            threading.Thread(target=self._keep_sidecar, args=(folder,), name="sidecar", daemon=True).start()

    def _keep_sidecar(self, folder: SidecarFolder) -> None:
        """Keep a sidecar on this host while this runs: tasks could not start one."""
        while not self._closed.is_set():
            try:
                if self._sidecar is None:
                    self._sidecar = dial(folder, self._etcd.to_env())
                while self._sidecar.recv(4096):
                    pass  # its messages do not matter, only its end
            except (SidecarUnavailable, OSError) as error:
                log.warning("sidecar_away", extra={"error": str(error)})
                self._closed.wait(RETRY_S)
            self._sidecar = None

    def launch(self, launch: Launch) -> SparkTasks:
        session, task = self._ready(), self._task(launch)
        return SparkTasks(session, launch, task, owned=self._owned, **self._named(launch))

    def launch_frame(self, launch: Launch) -> SparkFrame:
        session, task = self._ready(), self._task(launch)
        return SparkFrame(session, launch, task, owned=self._owned, **self._named(launch))

    def held_up(self) -> str:
        """See :class:`TaskLauncher`. Spark has lost an executor, or its master."""
        with suppress(Exception):  # the driver is gone, which its launches notice
            context = self._ready().sparkContext
            return "; ".join(filter(None, (master_away(context.master or ""), self._loss(context))))
        return ""

    def _loss(self, context: Any) -> str:
        """Which executor was lost and not replaced, in the last :data:`LOST_S`; empty: none."""
        there = executors_of(context)
        reason_held, before, at = self._lost
        if there >= before or time.monotonic() - at >= LOST_S:
            reason_held, before = "", 0
        removed_at, reason = last_removal(context) if there < self._executors else (0, "")
        if removed_at > self._removed_at and not is_release(reason):
            reason_held, before, at = (
                f"an executor of Spark was lost: {reason}",
                self._executors,
                time.monotonic(),
            )
        if there >= self._executors or removed_at > self._removed_at:  # else Spark's record of it comes later
            self._executors = there
        self._removed_at, self._lost = max(self._removed_at, removed_at), (reason_held, before, at)
        return reason_held

    def _ready(self) -> SparkSession:
        if self._session is None:
            raise LauncherBroken("Spark was not started")
        return self._session

    def _task(self, launch: Launch) -> SparkTask:
        return SparkTask(
            arg_value=launch.arg_value,
            run_token=launch.run.token,
            tried=launch.work.tried,
            types=os.environ.get(VARIABLE, ""),
            etcd=self._etcd.to_public_env(),
        )

    def _named(self, launch: Launch) -> dict[str, str]:
        """The job group, and the pool of the launch."""
        self._launches += 1
        name = f"distop {launch.work.arg.id} run {launch.run.token} launch {self._launches}"
        return {"name": name, "pool": f"distop-{self._launches % POOLS}"}

    async def close(self) -> None:
        """Stop the session, if it is ours."""
        self._closed.set()
        if (sidecar := self._sidecar) is not None:
            with suppress(OSError):
                sidecar.shutdown(socket.SHUT_RDWR)  # which ends the thread's reading
            sidecar.close()
        if self._owned and self._session is not None:
            with suppress(Exception):  # a driver that died cannot be stopped any more
                await asyncio.to_thread(self._session.stop)


class SparkTasks(SparkJob[TaskSummary]):
    """Jobs of a frozen plan, packed into tasks."""

    def __init__(
        self, session: SparkSession, launch: Launch, task: SparkTask, *, name: str, pool: str, owned: bool
    ) -> None:
        self._task = task
        super().__init__(session, launch, name=name, pool=pool, owned=owned)

    def _collect(self) -> TaskSummary:
        slots = max(1, self._context.defaultParallelism)
        packs = pack(self._launch.partitions, slots=slots, small=self._launch.work.operation.small_jobs)
        ended: list[TaskSummary] = (
            self._context.parallelize(packs, max(1, len(packs))).mapPartitions(self._task).collect()
        )
        return TaskSummary.total(ended)


def master_away(master: str) -> str:
    """What to say if no master of a standalone cluster answers; empty: one does, or it is no such cluster."""
    if not master.startswith(_STANDALONE):
        return ""
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), MASTER_S).close()
            return ""
    return f"the master of Spark, {master}, does not answer: no executor that is lost will be replaced"


def make_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session for many small Python tasks. The environment must be right before the JVM starts, which
    inherits it."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(with_retries(master)).appName("distop")
    for name, value in {**SETTINGS, **REAPED, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    jvm: Any = session.sparkContext._jvm
    for name in _TOO_LOUD:
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    return session
