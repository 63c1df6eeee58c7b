"""What every test may ask for: an etcd, and a place in it of its own."""

import asyncio
import functools
import gc
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest
import typer.main
import typer.testing
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from distop.lake.storage.allowed import ALL
from distop.metastore.etcd.embedded import EtcdProcess
from distop.process.loop import event_loop, settle_heap
from support import verdicts
from support.fixtures import client as client
from support.fixtures import etcd_config as etcd_config
from support.fixtures import logging_put_back as logging_put_back
from support.fixtures import parks_soon as parks_soon
from support.fixtures import proxy as proxy
from support.fixtures import victim as victim
from support.repository import TESTS
from support.sources.kafka import brokers as brokers
from support.sources.s3 import s3 as s3
from support.sources.s3 import s3_endpoint as s3_endpoint
from support.sources.s3 import s3_in_environment as s3_in_environment
from support.spark import jvm

LONGEST_FIRST = ("system/spark", "system", "integration", "unit")
"""Folders of tests, by how long a file of theirs takes."""

SPARK_TIMEOUT_S = 600
"""For each test that starts Spark, which takes its time where others want the processors, too."""

archiving = pytest.StashKey[subprocess.Popen[bytes]]()

# How long an example takes says how busy the machine is: that is for the benches.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "fuzz", hypothesis.settings.get_profile("untimed"), max_examples=2_000, print_blob=True
)
hypothesis.settings.load_profile("untimed")

# Of all services that tests start: their folders are made as they run.
os.environ.update(ALL)
# Of each etcd: a third of the processor time of small ones goes into Go's threads and garbage collection.
os.environ.update(GOMAXPROCS="1", GOGC="400")
jvm.hurry()
# Making the tree of all commands takes longer than most commands do.
vars(typer.testing)["_get_command"] = functools.cache(typer.main.get_command)


def pytest_addoption(parser: pytest.Parser) -> None:
    verdicts.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    verdicts.configure(config)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What services run in is what tests run in."""
    return {"product": event_loop}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the files: the long ones first, so that none is left over at the end."""
    for item in items:
        for slow in item.iter_markers("slow"):
            if not (slow.args and slow.args[0]):
                raise pytest.UsageError(f"{item.nodeid}: slow() says why: slow(reason)")
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    folder = path.relative_to(TESTS).parent.as_posix()
    ranks = (rank for rank, start in enumerate(LONGEST_FIRST) if folder.startswith(start))
    return next(ranks, len(LONGEST_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    return SparkByFolder(config, log)


class SparkByFolder(LoadFileScheduling):  # type: ignore[misc]
    """Files go to whichever process is free, but all of a folder of Spark's to one: those in ``system/spark``
    share a session, and those in ``system/executors`` are many processes each."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        folder = file.rpartition("/")[0]
        return folder if folder.endswith(("system/spark", "system/executors")) else file


def pytest_collection_finish(session: pytest.Session) -> None:
    """One process of the run has the archive made that all JVMs share from then on."""
    settle_heap()  # a seventh of the processor time of tests went into garbage collection
    alone = getattr(session.config, "workerinput", {"workerid": "gw0"})["workerid"] == "gw0"
    if alone and any(item.get_closest_marker("spark") for item in session.items):
        process = jvm.making()
        if process is not None:
            session.config.stash[archiving] = process


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # what is never collected DuckDB reports as leaked when the process ends
    process = config.stash.get(archiving, None)
    if process is not None:
        process.wait(jvm.PATIENCE_S)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for each process of the run. Tests share it, each below its own ``prefix``. None stops it, so
    nothing has to be on disk."""
    with EtcdProcess(tmp_path_factory.mktemp("etcd"), options=["--unsafe-no-fsync"]) as process:
        yield process


@pytest.fixture
def prefix() -> str:
    """A keyspace prefix that no other test uses, in place of ``distOp``."""
    return f"t{secrets.token_hex(6)}"
