"""Operations that publish rows one after the other, while a test does something to etcd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from distop.client import AsyncClient, Operation
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import CoordinatorProcess
from support.services.executing import executor_process
from support.services.whole import Whole, write_csv
from support.waiting import eventually

ROWS = 20
PAUSE_S = 0.1
"""Between two operations: without it most of them would be published where nothing is tested."""
RESUMES_S = 40.0
"""Within so many seconds an operation that was started after the fault must have published its rows."""


@dataclass
class Feeding:
    """Publishes one small file after the other, come what may; each a run of its own."""

    client: AsyncClient
    folder: Path
    published: int = 0
    stopping: bool = False
    errors: list[str] = field(default_factory=list)
    task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self.stopping:
            source = write_csv(self.folder / f"source{number}", "a.csv", number * ROWS, ROWS)
            (await self._until_it_is_over(source, f"r{number}")).raise_for_outcome()
            number += 1
            self.published = number
            await asyncio.sleep(PAUSE_S)

    async def _until_it_is_over(self, source: Path, run: str) -> Operation:
        """As a caller does who repeats what may be repeated."""
        while True:
            try:
                argument = {"paths": [str(source)]}
                operation = await self.client.start("t", "ingest", argument, run=run)
                return await operation.wait(timeout_s=180)
            except DistopError as error:
                if not error.retryable:
                    raise
                self.errors.append(error.code)

    async def go_on(self, count: int = 1) -> None:
        """At least so many operations that start from now on publish, too."""
        goal = self.published + 1 + count

        def gone_on() -> bool:
            if self.task.done():
                self.task.result()
            return self.published >= goal

        await eventually(gone_on, RESUMES_S)


@dataclass
class Stage:
    """A coordinator and an executor as processes, and somebody who feeds them."""

    whole: Whole
    feeding: Feeding

    async def whole_and_once(self) -> None:
        """The last operation ends; every row that was published is there once; nothing is left or wrong."""
        self.feeding.stopping = True
        async with asyncio.timeout(RESUMES_S):
            await self.feeding.task
        ids = await asyncio.to_thread(self.whole.ids)
        assert ids == list(range(self.feeding.published * ROWS)), self.feeding.errors
        keys = await self.whole.at_rest()
        assert not [key for key in keys if key.endswith((".state", ".arg", ".runner", "runOps"))]
        diagnosis = await self.whole.client.diagnose(deep=True)
        assert [finding for finding in diagnosis.findings if not finding.code.startswith("ETCD_")] == []


@asynccontextmanager
async def staged(config: EtcdConfig, folder: Path) -> AsyncIterator[Stage]:
    """All of it on an etcd; two operations have published when it is entered."""
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(CoordinatorProcess(config, folder))
        stack.enter_context(executor_process(config, folder))
        store = EtcdClient(config)
        stack.push_async_callback(store.close)
        await coordinator.member(store)
        client = await stack.enter_async_context(AsyncClient(coordinator.address, timeout_s=60))
        await client.create_table("t", str(folder / "table"))
        feeding = Feeding(client, folder)
        try:
            await feeding.go_on()
            yield Stage(Whole(config, store, client, folder), feeding)
        finally:
            feeding.task.cancel()
            await asyncio.gather(feeding.task, return_exceptions=True)
