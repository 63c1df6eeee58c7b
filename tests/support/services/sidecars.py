"""Fixtures and helpers of tests that reach etcd through a sidecar, as the tasks of a worker do."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.sidecar.client import SidecarClient
from distop.executor.task.task import TaskSummary, TaskWork, run_task
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.runs import Taken
from distop.metastore.records.operation import ClaimRecord, JobRecord, OperationArg
from distop.metastore.records.record import decode
from distop.operations import Registry
from support.etcd.lossy import LossyClient
from support.services.executing import (
    Child,
    job_records,
    place_in,
    short_folder,
    sidecar_process,
    start_operation,
    take,
)
from support.types.work_types import WORK_TYPES, traces

REGISTRY = Registry(WORK_TYPES.split(","))


@pytest.fixture
def sidecar_folder(etcd_config: EtcdConfig) -> Iterator[SidecarFolder]:
    """The folder in which sidecars of this test serve."""
    with short_folder() as folder:
        yield place_in(folder, etcd_config)


@pytest_asyncio.fixture
async def session(client: LossyClient) -> AsyncIterator[LeaseSession]:
    """The lease of the runner that the test plays."""
    async with LeaseSession(client, 10) as session:
        yield session


def program(pid: int) -> str:
    """The path by which a process was started."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]


@contextmanager
def connected(sidecar_folder: SidecarFolder, etcd: EtcdConfig) -> Iterator[SidecarClient]:
    """A worker's connection, as of a process of its own."""
    client = SidecarClient(sidecar_folder, etcd.to_env())
    try:
        yield client
    finally:
        client.close()


def work_of(taken: Taken, sidecar_folder: SidecarFolder) -> TaskWork:
    operation, scratch = REGISTRY.get(taken.arg.type), Scratch(sidecar_folder)
    return TaskWork(operation=operation, arg=taken.arg, run_token=taken.run.token, scratch=scratch)


def task(client: SidecarClient, taken: Taken, name: str = "a") -> asyncio.Future[TaskSummary]:
    """Run a task over all unfinished jobs, in a thread."""
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    return loop.run_in_executor(pool, run_task, client, work_of(taken, client.folder), taken.unfinished, name)


def worker_process(etcd: EtcdConfig, sidecar_folder: SidecarFolder, folder: Path, taken: Taken) -> Child:
    """A worker as a process of its own, which runs all jobs."""
    arg = folder / "arg.json"
    arg.write_bytes(taken.arg_value)
    given = [str(sidecar_folder.folder), str(arg), str(taken.run.token)]
    return Child(etcd, folder, "-m", "support.services.worker_main", *given)


@dataclass
class Runs:
    """Operations whose runner the test plays."""

    client: LossyClient
    session: LeaseSession

    async def take(self, type_name: str = "noop", argument: Any = None, **options: Any) -> Taken:
        """Start an operation and become its runner."""
        return await self.take_over(await start_operation(self.client, type_name, argument, **options))

    async def take_over(self, arg: OperationArg) -> Taken:
        """Become the runner of an operation that has none."""
        return await take(self.client, arg, self.session)

    async def records(self, taken: Taken) -> dict[str, JobRecord]:
        return await job_records(self.client, taken.arg)


@pytest.fixture
def runs(client: LossyClient, session: LeaseSession) -> Runs:
    return Runs(client, session)


@dataclass
class Host(Runs):
    """A host of workers, whose jobs work in ``folder``."""

    etcd: EtcdConfig
    sidecar_folder: SidecarFolder
    folder: Path

    def connected(self) -> AbstractContextManager[SidecarClient]:
        return connected(self.sidecar_folder, self.etcd)

    def sidecar(self, **options: Any) -> AbstractAsyncContextManager[Child]:
        return sidecar_process(self.etcd, self.sidecar_folder, self.folder, **options)

    def worker(self, taken: Taken) -> Child:
        return worker_process(self.etcd, self.sidecar_folder, self.folder, taken)

    def traces(self, event: str = "") -> list[list[str]]:
        return traces(self.folder, event)

    def release(self) -> None:
        """Let the jobs go on that hold."""
        (self.folder / "release").touch()

    async def owner(self, taken: Taken) -> str:
        """The attempt that has claimed the first job; empty: none."""
        kv = await self.client.get(taken.run.keys.claim("0"))
        return decode(kv.value, ClaimRecord, kv.key).attempt if kv.exists else ""

    async def is_free(self, taken: Taken) -> bool:
        """Whether nobody has claimed the first job."""
        return not await self.owner(taken)


@pytest.fixture
def host(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    sidecar_folder: SidecarFolder,
    tmp_path: Path,
) -> Host:
    return Host(client, session, etcd_config, sidecar_folder, tmp_path)
