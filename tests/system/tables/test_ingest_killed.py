"""An ingest under ``kill -9``, on the road that most rows take: its leader dies, or its executor."""

import asyncio
import signal
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.metastore.crashpoints import VARIABLE
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import CoordinatorProcess, config_of, running
from support.services.executing import executor_process, runner
from support.services.whole import Whole, coordinated, write_csv

pytestmark = pytest.mark.process

ROWS = 600
IN_JOBS = {"split_bytes": 4096}
"""Several of them."""


async def test_rows_are_published_once_though_the_leader_is_killed_before_it_publishes_them(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """C4, C13, P8: when it has written the snapshot; the next leader publishes one."""
    source = write_csv(tmp_path / "src", "1.csv", 0, ROWS)
    async with CoordinatorProcess(etcd_config, tmp_path, crash="snapshot.after=die") as doomed:
        await doomed.member(client)
        async with AsyncClient(doomed.address, timeout_s=60) as sdk:
            await sdk.create_table("t", str(tmp_path / "table"))
            operation = await sdk.start("t", "ingest", {"paths": [str(source)], **IN_JOBS})
        async with runner(client):
            assert await doomed.exit_code() == -signal.SIGKILL
    async with running(config_of(etcd_config)) as other, AsyncClient(other.address, timeout_s=60) as sdk:
        await whole_and_once(Whole(etcd_config, client, sdk, tmp_path), operation.name)
        assert await sdk.table("t").watermarks()


async def test_rows_are_published_once_though_an_executor_is_killed_while_it_writes_them(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """O13, P1, P2: with a file half written; another executor does its jobs, and the file is removed."""
    source = write_csv(tmp_path / "src", "1.csv", 0, ROWS)
    async with coordinated(etcd_config, tmp_path, client) as service:
        operation = await service.client.start("t", "ingest", {"paths": [str(source)], **IN_JOBS})
        assert operation.started.jobs.total > 1
        with executor_process(etcd_config, tmp_path, **{VARIABLE: "job.file.middle=die@2"}) as doomed:
            assert await doomed.exit_code() == -signal.SIGKILL
        async with runner(client):
            await whole_and_once(service, operation.name)


async def whole_and_once(service: Whole, operation: str) -> None:
    """The operation succeeds; each row is there once, and no file and no key besides what is published."""
    await service.client.operation(operation).result(timeout_s=60)
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == list(range(ROWS))
    assert await service.only_published()
    assert await service.findings("t", deep=True) == []
