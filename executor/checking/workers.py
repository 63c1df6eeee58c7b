"""Asking the workers of a Spark cluster, by a small job that reaches each of them."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distop.errors import DistopError, InvalidArgument
from distop.executor.checking import probe
from distop.executor.checking.findings import Driver, Finding, failure, findings
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import LauncherBroken
from distop.executor.launch.python import refuse_unusable
from distop.executor.launch.spark import make_session
from distop.executor.launch.spark_job import executors_of
from distop.executor.sidecar.dial import dial
from distop.lake.storage.allowed import lists
from distop.lake.storage.storage import file_system
from distop.metastore.etcd.config import PASSWORD, PASSWORD_FILE, EtcdConfig
from distop.operations import Registry
from distop.operations.registry import VARIABLE
from distop.proto.identity import own_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 120.0
"""How long Spark may take to give this driver executors, and they to answer."""

ROUNDS = 3
MOST_TASKS = 2000
GROUP = "distop-check"


@dataclass(frozen=True)
class Checked:
    """What was found."""

    workers: tuple[Mapping[str, Any], ...]
    """One for each executor of Spark that has answered: ``host``, ``python``, ``version``, ``socket``."""
    findings: tuple[Finding, ...]

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
    # The daemon of ours does not start where distop is missing, which is to be told as that.
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
    seen: dict[tuple[str, int], Mapping[str, Any]] = {}
    found: dict[tuple[str, str], set[str]] = {}
    deadline = time.monotonic() + PATIENCE_S
    expected = 1
    for _ in range(ROUNDS):
        began = time.time()
        try:
            answers = _round(session, asked, deadline)
        except Exception as error:
            within = PATIENCE_S if time.monotonic() >= deadline else 0.0
            return Checked(tuple(seen.values()), (failure(str(error), within),))
        driver = Driver(asked.version, types, began, time.time())
        seen |= {(one["host"], one["process"]): one for one in answers}
        for one in findings(answers, driver):
            found.setdefault((one.code, one.sentence), set()).update(one.workers)
        expected = max(1, executors_of(session.sparkContext))
        if len(seen) >= expected:
            break
    results = [Finding(*what, workers=tuple(sorted(hosts))) for what, hosts in found.items()]
    if len(seen) < expected:
        sentence = f"{len(seen)} of {expected} executors of Spark have answered"
        results.append(Finding("WORKERS_NOT_SEEN", sentence))
    return Checked(tuple(seen.values()), tuple(results))


def _round(session: SparkSession, asked: probe.Asked, deadline: float) -> list[dict[str, Any]]:
    """One task for each slot: Spark deals them out to all executors that are free."""
    from pyspark import cloudpickle

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
