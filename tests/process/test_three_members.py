"""An etcd of three members, one of which is paused, cut off, or lost, while operations publish rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from distop.client import AsyncClient, Operation
from distop.errors import DistopError
from distop.metastore.client import EtcdClient
from distop.metastore.config import EtcdConfig
from support.clusters import NAMES, Cluster, LocalCluster
from support.containers import ContainerCluster
from support.coordinators import CoordinatorProcess
from support.executing import executor_process
from support.waiting import eventually
from support.whole import Whole, write_csv

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

ROWS = 20
RESUMES_S = 40.0
"""Within so many seconds an operation that was started after the fault must have published its rows."""


@dataclass
class Feeding:
    """Publishes one small file after the other, come what may; each under a request id of its own."""

    client: AsyncClient
    folder: Path
    published: int = 0
    stopping: bool = False
    errors: list[str] = field(default_factory=list)

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            source = write_csv(self.folder / f"source{number}", "a.csv", number * ROWS, ROWS)
            (await self._until_it_is_over(source, f"r{number}")).raise_for_outcome()
            number += 1
            self.published = number

    async def _until_it_is_over(self, source: Path, request_id: str) -> Operation:
        """As a caller does who repeats what may be repeated."""
        while True:
            try:
                argument = {"paths": [str(source)]}
                operation = await self.client.start("t", "ingest", argument, request_id=request_id)
                return await self.client.wait(operation.name, timeout_s=60)
            except DistopError as error:
                if not error.retryable:
                    raise
                self.errors.append(error.code)

    async def go_on(self, count: int = 2) -> None:
        """Operations that start from now on publish, too."""
        goal = self.published + 1 + count
        assert await eventually(lambda: self.published >= goal, RESUMES_S)


@dataclass
class Stage:
    """A cluster, a coordinator and an executor as processes, and somebody who feeds them."""

    cluster: Cluster
    whole: Whole
    feeding: Feeding
    task: asyncio.Task[None]

    async def whole_and_once(self) -> None:
        """The last operation ends; every row that was published is there once; nothing is left or wrong."""
        self.feeding.stopping = True
        async with asyncio.timeout(RESUMES_S):
            await self.task
        ids = await asyncio.to_thread(self.whole.ids)
        assert ids == list(range(self.feeding.published * ROWS)), self.feeding.errors
        keys = await self.whole.at_rest()
        assert not [key for key in keys if key.endswith((".state", ".arg", ".runner", "runOps"))]
        diagnosis = await self.whole.client.diagnose(deep=True)
        assert [one for one in diagnosis.findings if one.code != "ETCD_MEMBER_AWAY"] == []


@asynccontextmanager
async def staged(cluster: Cluster, prefix: str, folder: Path) -> AsyncIterator[Stage]:
    config: EtcdConfig = cluster.config(prefix)
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(CoordinatorProcess(config, folder))
        stack.enter_context(executor_process(config, folder))
        store = EtcdClient(config)
        stack.push_async_callback(store.close)
        await coordinator.member(store)
        client = await stack.enter_async_context(AsyncClient(coordinator.address, timeout_s=20))
        await client.create_table("t", str(folder / "table"))
        feeding = Feeding(client, folder)
        task = asyncio.create_task(feeding.run())
        try:
            await feeding.go_on()
            yield Stage(cluster, Whole(config, store, client, folder), feeding, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest_asyncio.fixture(params=["processes", "containers"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = LocalCluster(tmp_path / "etcd") if request.param == "processes" else ContainerCluster()
    async with made:
        yield made


@pytest_asyncio.fixture
async def stage(cluster: Cluster, prefix: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(cluster, prefix, tmp_path) as made:
        yield made


async def test_a_leading_member_that_stands_still_is_done_without(stage: Stage) -> None:
    """O27: etcd's leader is paused; another member leads, writes resume, nothing is lost or doubled."""
    leader = await stage.cluster.leader()
    await stage.cluster.pause(leader)
    await stage.cluster.leader(but=leader)
    await stage.feeding.go_on()
    await stage.cluster.resume(leader)
    await stage.feeding.go_on()
    await stage.whole_and_once()


async def test_a_leading_member_that_is_cut_off_is_done_without(stage: Stage) -> None:
    """O27: it still takes connections, and can answer nothing."""
    leader = await stage.cluster.leader()
    await stage.cluster.cut(leader)
    await stage.cluster.leader(but=leader)
    await stage.feeding.go_on()
    await stage.cluster.heal(leader)
    await stage.feeding.go_on()
    await stage.whole_and_once()


async def test_the_member_that_clients_use_may_be_cut_off(stage: Stage) -> None:
    """O27, U4: they notice the silence and use another one, whoever leads."""
    await stage.cluster.cut(NAMES[0])
    await stage.feeding.go_on()
    await stage.cluster.heal(NAMES[0])
    await stage.feeding.go_on()
    await stage.whole_and_once()


async def test_a_member_that_is_lost_is_replaced(stage: Stage) -> None:
    """O27: killed, its data gone; a new one takes its place while operations go on."""
    victim = await stage.cluster.leader()
    await stage.cluster.kill(victim)
    await stage.feeding.go_on()
    await stage.cluster.replace(victim)
    await stage.feeding.go_on()
    another = next(name for name in NAMES if name != victim)
    await stage.cluster.kill(another)  # only with the new member there is a majority now
    await stage.feeding.go_on()
    await stage.whole_and_once()
