"""Running jobs on Spark: one job group for an operation's run, its partitions packed into tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from distop.errors import LauncherBroken
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import Launch, pack
from distop.executor.launch.settings import REAPED, SETTINGS, refuse_unchecked, refuse_unusable, with_retries
from distop.executor.launch.spark_frame import SparkFrame
from distop.executor.launch.spark_job import SparkJob, executors_of, is_release, last_removal
from distop.executor.launch.spark_task import SparkTask
from distop.executor.sidecar.client import SidecarUnavailable, dial
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.config import PASSWORD, PASSWORD_FILE, EtcdConfig
from distop.operations.registry import VARIABLE

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
