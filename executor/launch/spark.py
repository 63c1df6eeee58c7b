"""Running jobs on Spark: one job group for an operation's run, its partitions packed into tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from distop.errors import DistopError, InvalidArgument, JobFailed
from distop.executor.host.place import Place
from distop.executor.launch.launch import Launch, LaunchedFrame, LauncherBroken, LaunchFailed, pack
from distop.executor.launch.spark_task import SparkTask
from distop.executor.sidecar.dial import dial
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.config import PASSWORD, EtcdConfig
from distop.operations.registry import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
T = TypeVar("T")

SETTINGS = {
    # Without it every Python task waits 40 ms for Nagle's algorithm and delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Operations share the slots instead of queueing behind the first.
    "spark.scheduler.mode": "FAIR",
    # Workers are forked from a process that has loaded what jobs need.
    "spark.python.daemon.module": "distop.executor.launch.spark_daemon",
}
"""What a session needs to run many small Python tasks fast. The rest is Spark's default."""

TASK_FAILURES = 4
"""How often Spark tries a task; its own default, except that ``local[n]`` means once."""

POOLS = 8
"""Scheduler pools, each for one operation at a time."""

MAX_REASON = 400
"""Characters kept of what Spark says."""

CANCEL_AFTER_S = 0.3
"""Tasks are told by push and end by themselves; what has not ended by then is cancelled in Spark as well."""

_LONGEST_CANCEL_S = 2.0

# They warn of what is meant to be: pools that no file describes.
_TOO_LOUD = ("org.apache.spark.scheduler.FairSchedulableBuilder",)


class SparkLauncher:
    """Runs jobs with a Spark session of its own, or one that it is given.

    Parameters
    ----------
    session:
        A session that stays its owner's; else one is made with ``master`` and ``settings``.
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
        self._launches = 0

    async def start(self) -> None:
        """Make the session. If its workers are on this host, have their sidecar ready too."""
        if self._session is None:
            if self._etcd.password and not self._etcd.password_file:
                # Of workers on this host: Spark hands its own environment on to them, and shows it to nobody.
                os.environ[PASSWORD] = self._etcd.password
            try:
                self._session = await asyncio.to_thread(make_session, self._master, self._settings)
            except Exception as error:
                raise LauncherBroken(
                    f"Spark cannot be started with master {self._master!r}: {error}",
                    hint="it needs Java 17 or newer, and a master that can be reached",
                ) from error
        context = self._session.sparkContext
        if context.getConf().get(unix := "spark.python.unix.domain.socket.enabled", "false") != "true":
            log.warning("spark_tasks_are_slow", extra={"hint": f"make the session with {unix}=true"})
        if (context.master or "").startswith("local"):
            place = Place.of(self._etcd.endpoints, self._etcd.prefix)
            self._sidecar = await asyncio.to_thread(dial, place, self._etcd.to_env())

    def launch(self, launch: Launch) -> SparkTasks:
        session, task = self._ready(), self._task(launch)
        return SparkTasks(session, launch, task, **self._named(launch))

    def launch_frame(self, launch: Launch) -> LaunchedFrame:
        from distop.executor.launch.spark_frame import SparkFrame

        session, task = self._ready(), self._task(launch)
        return SparkFrame(session, launch, task, **self._named(launch))

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
        """The job group, and the pool that the launch runs in."""
        self._launches += 1
        name = f"distop {launch.work.arg.id} run {launch.run.token} launch {self._launches}"
        return {"name": name, "pool": f"distop-{self._launches % POOLS}"}

    async def close(self) -> None:
        """Stop the session, if it is ours."""
        if self._sidecar is not None:
            self._sidecar.close()
        if self._owned and self._session is not None:
            with suppress(Exception):  # a driver that died cannot be stopped any more
                await asyncio.to_thread(self._session.stop)


class SparkJob(ABC, Generic[T]):
    """What one launch has Spark do, in a thread that waits for it."""

    def __init__(self, session: SparkSession, launch: Launch, *, name: str, pool: str) -> None:
        from pyspark import InheritableThread

        self._loop = asyncio.get_running_loop()
        self._session, self._context = session, session.sparkContext
        self._launch, self._name, self._pool = launch, name, pool
        self._ended: asyncio.Future[T] = self._loop.create_future()
        self._cancelling: asyncio.Task[None] | None = None
        # Each Python thread has its own thread in the JVM, and so a job group of its own; this class also
        # frees that one in the end.
        thread = InheritableThread(target=self._run, name=name, session=session)
        thread.daemon = True
        thread.start()

    def cancel(self, reason: str) -> None:
        if self._cancelling is None and not self._ended.done():
            log.info("spark_cancelling", extra={"group": self._name, "reason": reason})
            self._cancelling = asyncio.create_task(self._cancel())

    async def wait(self) -> T:
        try:
            return await asyncio.shield(self._ended)
        finally:
            if self._cancelling is not None:
                self._cancelling.cancel()

    async def _cancel(self) -> None:
        """Cancel until it has ended: a group without a job cannot be cancelled, and might get one later."""
        pause = CANCEL_AFTER_S
        while True:
            await asyncio.sleep(pause)
            with suppress(Exception):  # the driver is gone: the waiting thread sees that too
                await asyncio.to_thread(self._context.cancelJobGroup, self._name)
            pause = min(2 * pause, _LONGEST_CANCEL_S)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._name, self._name)
            self._context.setLocalProperty("spark.scheduler.pool", self._pool)
            result = self._collect()
        except (InvalidArgument, JobFailed, LaunchFailed) as error:
            self._tell(None, error)
        except Exception as error:
            self._tell(None, self._failure(error))
        else:
            self._tell(result)

    @abstractmethod
    def _collect(self) -> T:
        """Do it, in the thread that all its Spark jobs are started from."""

    def _failure(self, error: Exception) -> DistopError:
        if self._cancelling is not None:
            return LaunchFailed("it was cancelled")
        reason = " ".join(str(error).split())
        if not _is_alive(self._context):
            return LauncherBroken(f"Spark has stopped: {reason[:MAX_REASON]}")
        # What a task raised stands behind the words below; before them, only where it ran.
        _, _, cause = reason.partition("Traceback (most recent call last):")
        log.warning("spark_job_failed", extra={"group": self._name, "error": reason[: 10 * MAX_REASON]})
        return LaunchFailed(f"Spark gave up: {(cause or reason)[-MAX_REASON:]}")

    def _tell(self, result: T | None, error: DistopError | None = None) -> None:
        def settle() -> None:
            if self._ended.done():
                return
            if error is not None:
                self._ended.set_exception(error)
                self._ended.exception()  # whether or not anybody waits
            elif result is not None:
                self._ended.set_result(result)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(settle)


class SparkTasks(SparkJob[TaskSummary]):
    """Jobs of a frozen plan, packed into tasks."""

    def __init__(
        self, session: SparkSession, launch: Launch, task: SparkTask, *, name: str, pool: str
    ) -> None:
        self._task = task
        super().__init__(session, launch, name=name, pool=pool)

    def _collect(self) -> TaskSummary:
        slots = max(1, self._context.defaultParallelism)
        packs = pack(self._launch.partitions, slots=slots, small=self._launch.work.operation.small_jobs)
        ended: list[TaskSummary] = (
            self._context.parallelize(packs, max(1, len(packs))).mapPartitions(self._task).collect()
        )
        return sum(ended, TaskSummary())


def _is_alive(context: Any) -> bool:
    """Whether jobs can still be run: neither stopped nor without its JVM."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        return False


def make_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session for many small Python tasks. The environment must be right before the JVM starts, which it is
    handed to."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(with_retries(master)).appName("distop")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    jvm: Any = session.sparkContext._jvm
    for name in _TOO_LOUD:
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    return session


def with_retries(master: str) -> str:
    """``local[2]`` tries a task once; ``local[2,4]`` four times, as clusters do."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    found = re.fullmatch(r"local\[\s*(\d+|\*)\s*\]", master)
    return f"local[{found[1]},{TASK_FAILURES}]" if found else master
