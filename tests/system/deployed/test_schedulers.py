"""The task of docs/schedulers.md: killed, retried and cleared at will."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from distop.client import OperationState
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.repository import ROOT
from support.services.executing import runner
from support.services.whole import HEADER, Whole, coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("runs the command line again and again, as a scheduler does"),
]


class Task:
    """The task as the document has it, in a process of its own."""

    def __init__(self, service: Whole) -> None:
        found = re.search(
            r"<!-- task:begin -->\n```sh\n(.*?)```", (ROOT / "docs/schedulers.md").read_text(), re.DOTALL
        )
        assert found
        self._script = service.folder / "task.sh"
        self._script.write_text(found[1])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "DISTOP_ADDRESS": service.address}

    async def begin(self, source: Path, run: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "sh", str(self._script), "t", str(source), run, env=self._environment
        )

    async def __call__(self, source: Path, run: str) -> int:
        return await (await self.begin(source, run)).wait()


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    async with coordinated(etcd_config, tmp_path, client) as standing:
        yield standing


async def test_a_task_that_is_killed_retried_and_cleared_ingests_once(service: Whole) -> None:
    """O7, P16: the next try goes on; cleared, it finds what was done; so does another run of the files."""
    source, task = write_csv(service.folder / "day", "1.csv", 0, 50), Task(service)
    killed = await task.begin(source, "run-1")
    await eventually(service.operations)
    killed.kill()
    await killed.wait()
    again = await task.begin(source, "run-1")
    async with runner(service.store):
        assert await again.wait() == 0
        assert await task(source, "run-1") == 0
        assert await task(source, "run-2") == 0
    assert await asyncio.to_thread(service.ids) == list(range(50))
    assert [one.name for one in await service.operations()] == ["t/ingest/1"]


async def test_a_task_that_failed_is_started_again_once_what_was_wrong_is_put_right(service: Whole) -> None:
    """O7: under the same id, as a new operation."""
    source, task = write_csv(service.folder / "day", "1.csv", 0, 50), Task(service)
    async with runner(service.store):
        assert await task(write_csv(service.folder / "before", "1.csv", 100, 5), "run-0") == 0
        good = (source / "1.csv").read_text()
        (source / "1.csv").write_text(HEADER + "1,k1,2013-01-01\n" * 5 + "x,k1,2013-01-01\n")
        assert await task(source, "run-1") == 20
        (source / "1.csv").write_text(good)
        assert await task(source, "run-1") == 0
    newest, before, *_ = await service.operations()
    assert (newest.state, newest.retry_of) == (OperationState.SUCCEEDED, before.name)
    assert before.state is OperationState.FAILED
    assert await asyncio.to_thread(service.ids) == [*range(50), *range(100, 105)]
