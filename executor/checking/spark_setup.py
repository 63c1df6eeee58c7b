"""Asks the workers of a Spark cluster, by a small job that reaches each, and says what is wrong with them."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from distop.errors import DistopError, InvalidArgument, LauncherBroken
from distop.executor.checking import probe
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.settings import refuse_unusable
from distop.executor.launch.spark import make_session
from distop.executor.launch.spark_job import executors_of
from distop.executor.sidecar.client import dial
from distop.lake.storage.allowed import lists
from distop.lake.storage.storage import file_system
from distop.metastore.etcd.config import PASSWORD, PASSWORD_FILE, EtcdConfig
from distop.operations import Registry
from distop.operations.registry import VARIABLE
from distop.proto.identity import own_version

SKEW_S = 5.0
"""How far clocks may be apart: as of ``distop cluster doctor``."""

SEES = "see docs/deploying.md, Workers of Spark"

REMEDIES = {
    "NO_WORKERS": "see Spark's master: whether it has workers, and whether they have cores and memory left "
    "(spark.cores.max, spark.executor.memory); they must reach the driver (spark.driver.host)",
    "WORKERS_NOT_SEEN": "check again; an executor that never answers has no free slot, or cannot be reached",
    "WORKER_PYTHON_MISSING": f"install it there, or name another: --conf spark.pyspark.python; {SEES}",
    "WORKER_PYTHON_DIFFERS": "give driver and workers the same minor version of Python: --conf "
    f"spark.pyspark.python; {SEES}",
    "WORKER_FAILED": "see the executor's stderr in Spark's web page, or in its work folder",
    "WORKER_DISTOP_MISSING": f"install distop, with the same extras, for that Python; {SEES}",
    "WORKER_DISTOP_DIFFERS": "install the same version of distop on driver and workers",
    "WORKER_PYTHON_BARE": "a PEX and --py-files cannot start sidecars: use a virtual environment at one "
    f"path, or one that venv-pack has made; {SEES}",
    "WORKER_TYPES_DIFFER": "install the packages of these operation types there, or let the modules that "
    "DISTOP_OPERATIONS names be importable",
    "SIDECAR_UNREACHABLE": "run `distop sidecar` on that host as that user, with the same --etcd and "
    "--prefix, and give workers the same DISTOP_RUNTIME_DIR",
    "SIDECAR_WITHOUT_ETCD": "see the sidecar's log, and DISTOP_ETCD, the certificates and the user that it "
    "was started with",
    "STORE_UNREACHABLE": "give the workers what opens the store (AWS_ENDPOINT_URL, credentials, mounts), as "
    "the executor has it",
    "STORE_NOT_SHARED": "mount the same folder on all hosts, or use an object store",
    "CLOCK_SKEW": "synchronise the clocks: deadlines of operations and times in lists are off by as much; "
    "leases and fences are not",
}
"""Every code there is, and what to do."""

PATIENCE_S = 120.0
"""How long Spark may take to give this driver executors, and they to answer."""

ROUNDS = 3
MOST_TASKS = 2000
GROUP = "distop-check"


@dataclass(frozen=True)
class WorkerFinding:
    """Something that is wrong on some workers."""

    code: str
    """Stable; one of :data:`REMEDIES`."""
    sentence: str
    workers: tuple[str, ...] = ()
    """Their hosts; none: it concerns no single one."""

    @property
    def remedy(self) -> str:
        """What the operator should do about it."""
        return REMEDIES[self.code]


@dataclass(frozen=True)
class Driver:
    """What the workers are held against."""

    version: str
    types: frozenset[str]
    began: float
    ended: float
    """When the driver sent them the question, and when it had all answers; Unix time."""


def findings(answers: Iterable[Mapping[str, Any]], driver: Driver) -> list[WorkerFinding]:
    """What is wrong, each with the hosts that it is so on."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for answer in answers:
        for code, sentence in judged(answer, driver):
            hosts.setdefault((code, sentence), set()).add(answer["host"])
    return [WorkerFinding(*key, workers=tuple(sorted(where))) for key, where in hosts.items()]


def judged(worker: Mapping[str, Any], driver: Driver) -> Iterator[tuple[str, str]]:
    """Code and sentence of what is wrong with one worker."""
    yield from _clock(worker, driver)
    if worker["missing"]:
        yield "WORKER_DISTOP_MISSING", f"{worker['python']} does not load distop: {worker['missing']}"
        return
    if worker["version"] != driver.version:
        versions = f"distop {worker['version']}, the driver {driver.version}"
        yield "WORKER_DISTOP_DIFFERS", f"{worker['python']} has {versions}"
        return
    if worker["bare"]:
        sentence = f"{worker['python']} does not find distop in a process of its own: {worker['bare']}"
        yield "WORKER_PYTHON_BARE", sentence
    if missing := sorted(driver.types - set(worker["types"])):
        yield "WORKER_TYPES_DIFFER", f"operation types are not known there: {', '.join(missing)}"
    if worker["sidecar"]:
        yield "SIDECAR_UNREACHABLE", f"as {worker['user']}: {worker['sidecar']}"
    elif worker["etcd"]:
        yield "SIDECAR_WITHOUT_ETCD", f"the sidecar at {worker['socket']}: {worker['etcd']}"
    for url, answer in worker["stores"].items():
        if answer["error"]:
            yield "STORE_UNREACHABLE", f"{url} cannot be read and written: {answer['error']}"
        elif not answer["shared"]:
            yield (
                "STORE_NOT_SHARED",
                f"{url} is another folder there: what the driver has written is not in it",
            )


def _clock(worker: Mapping[str, Any], driver: Driver) -> Iterator[tuple[str, str]]:
    """The worker answered between question and answer, if its clock is right."""
    behind, ahead = driver.began - worker["ended"], worker["began"] - driver.ended
    for off, word in ((behind, "behind"), (ahead, "ahead of")):
        if off > SKEW_S:
            yield "CLOCK_SKEW", f"the clock of {worker['host']} is {off:.0f} s or more {word} the driver's"


def failure(message: str, within_s: float = 0.0) -> WorkerFinding:
    """What it means that Spark could not run tasks that fail for nothing of their own.

    Parameters
    ----------
    said:
        By Spark.
    within_s:
        After so many seconds the tasks were given up; 0: they have failed.
    """
    if within_s:
        return WorkerFinding("NO_WORKERS", f"no executor of Spark has answered within {within_s:.0f} s")
    message = " ".join(message.split())
    for words, code in (
        ("Cannot run program", "WORKER_PYTHON_MISSING"),
        ("PYTHON_VERSION_MISMATCH", "WORKER_PYTHON_DIFFERS"),
        ("No module named 'pyspark'", "WORKER_DISTOP_MISSING"),
    ):
        if words in message:
            return WorkerFinding(code, message[message.index(words) :][:300])
    # What Python has said, if anything; the frames of the JVM behind it say nothing.
    python = message.partition("Error from python worker: ")[2].partition(" PYTHONPATH was:")[0]
    return WorkerFinding("WORKER_FAILED", f"Spark gave up: {(python or message)[-400:]}")


@dataclass(frozen=True)
class Checked:
    """The findings of one check of the workers."""

    workers: tuple[Mapping[str, Any], ...]
    """One for each executor of Spark that has answered: ``host``, ``python``, ``version``, ``socket``."""
    findings: tuple[WorkerFinding, ...]

    @property
    def wrong(self) -> bool:
        return bool(self.findings)


def check(etcd: EtcdConfig, master: str, settings: Mapping[str, str], stores: Sequence[str] = ()) -> Checked:
    """Look at the workers that this master gives a driver with these settings.

    Parameters
    ----------
    stores:
        Folders or URLs that workers must be able to read and write.

    Raises
    ------
    LauncherBroken
        There is no session with this master.
    PythonUnusable
        The workers' Python cannot work.
    NotAllowed
        Tables may not lie in one of the stores.
    """
    refuse_unusable(master, settings, os.environ)
    environment = etcd.to_env()
    for name in (PASSWORD, PASSWORD_FILE):
        os.environ.pop(name, None)  # as in an executor: Spark hands the environment on
    # distop's own daemon does not start where distop is missing, and the finding has to say that.
    given = {**settings, "spark.python.daemon.module": "pyspark.daemon"}
    with (
        _written(stores) as shared,
        _session(master, given) as session,
        _sidecar_here(session, etcd, environment),
    ):
        asked = probe.Asked(
            version=own_version(),
            etcd=etcd.to_public_env(),
            types=os.environ.get(VARIABLE, ""),
            allowed=lists(),
            stores=shared,
        )
        return ask(session, asked)


@contextmanager
def _session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    try:
        session = make_session(master, settings)
    except Exception as error:
        raise LauncherBroken(
            f"Spark cannot be started with master {master!r}: {error}",
            hint="it needs Java 17 or newer, and a master that can be reached",
        ) from error
    try:
        yield session
    finally:
        with suppress(Exception):  # a driver that died cannot be stopped any more
            session.stop()


@contextmanager
def _sidecar_here(session: SparkSession, etcd: EtcdConfig, environment: Mapping[str, str]) -> Iterator[None]:
    """Where workers are on this host an executor has their sidecar ready; if it cannot, they say so."""
    connection = None
    if (session.sparkContext.master or "").startswith("local"):
        with suppress(DistopError, OSError):
            connection = dial(SidecarFolder.of(etcd.endpoints, etcd.prefix), environment)
    try:
        yield
    finally:
        if connection is not None:
            connection.close()


@contextmanager
def _written(stores: Iterable[str]) -> Iterator[dict[str, str]]:
    """A file in each store, by which workers see that theirs is the same."""
    name, written = f".distop-check-{secrets.token_hex(6)}", []
    try:
        for url in stores:
            files, path = file_system(url)
            file = f"{path.rstrip('/')}/{name}"
            try:
                files.pipe_file(file, name.encode())
            except Exception as error:  # of whatever library reaches it
                raise InvalidArgument(
                    f"{url} cannot be written to from here: {type(error).__name__}: {error}",
                    hint="name a folder or bucket that exists",
                    details={"field": "check_store"},
                ) from error
            written.append((files, file))
        yield dict.fromkeys(stores, name)
    finally:
        for files, file in written:
            with suppress(Exception):
                files.rm_file(file)


def ask(session: SparkSession, asked: probe.Asked) -> Checked:
    """Ask the workers of a session: rounds of tasks, until each executor of Spark has answered."""
    types = frozenset(Registry().names())
    executors: dict[tuple[str, int], Mapping[str, Any]] = {}
    hosts_of: dict[tuple[str, str], set[str]] = {}
    deadline = time.monotonic() + PATIENCE_S
    expected = 1
    for _ in range(ROUNDS):
        began = time.time()
        try:
            answers = _round(session, asked, deadline)
        except Exception as error:
            within = PATIENCE_S if time.monotonic() >= deadline else 0.0
            return Checked(tuple(executors.values()), (failure(str(error), within),))
        driver = Driver(asked.version, types, began, time.time())
        executors |= {(answer["host"], answer["process"]): answer for answer in answers}
        for finding in findings(answers, driver):
            hosts_of.setdefault((finding.code, finding.sentence), set()).update(finding.workers)
        expected = max(1, executors_of(session.sparkContext))
        if len(executors) >= expected:
            break
    results = [WorkerFinding(*key, workers=tuple(sorted(hosts))) for key, hosts in hosts_of.items()]
    if len(executors) < expected:
        sentence = f"{len(executors)} of {expected} executors of Spark have answered"
        results.append(WorkerFinding("WORKERS_NOT_SEEN", sentence))
    return Checked(tuple(executors.values()), tuple(results))


def _round(session: SparkSession, asked: probe.Asked, deadline: float) -> list[dict[str, Any]]:
    """One task for each slot: Spark deals them out to all executors that are free."""
    context = session.sparkContext
    tasks = min(MOST_TASKS, max(1, context.defaultParallelism, 2 * executors_of(context)))
    context.setJobGroup(GROUP, "distop executor --check", interruptOnCancel=True)
    over = threading.Timer(max(0.0, deadline - time.monotonic()), context.cancelJobGroup, [GROUP])
    over.daemon = True
    cloudpickle.register_pickle_by_value(probe)
    over.start()
    try:
        return context.parallelize(range(tasks), tasks).mapPartitions(asked).collect()
    finally:
        over.cancel()
        cloudpickle.unregister_pickle_by_value(probe)
