"""The processes of a deletion die or lose its reply, while others append."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import CoordinatorProcess, config_of, running
from support.services.executing import Child, runner
from support.services.leases import TTL_S
from support.services.whole import Whole, coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills or halts a process while another program writes, and waits for its lease"),
]


@pytest.mark.parametrize("crash", ["snapshot.after=die", "finish.after=lost"])
async def test_the_rows_go_once_whatever_happens_in_the_commit(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, crash: str
) -> None:
    """C4, P8: another program appends all the while; nothing else goes, and no file is left over."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(runner(client))
        async with coordinated(etcd_config, tmp_path, client) as service:
            for number in range(2):
                ended = await service.ingest(write_csv(tmp_path / f"s{number}", "1.csv", 10 * number, 10))
                ended.raise_for_outcome()
            await service.at_rest()

        struck = await stack.enter_async_context(CoordinatorProcess(etcd_config, tmp_path, crash=crash))
        await struck.member(client)
        sdk = await stack.enter_async_context(AsyncClient(struck.address, timeout_s=60))
        operation = await sdk.start("t", "delete", {"where": "id in (3, 4, 15) or kind = 'k1'"})
        command = ("-m", "support.tables.foreign_appender", "default.t", "3", "1000")
        appender = stack.enter_context(Child(etcd_config, tmp_path, *command))
        if crash.endswith("die"):
            assert await struck.exit_code(40) == -signal.SIGKILL
        else:
            await sdk.wait(operation.name, timeout_s=90)
            struck.kill()
        other = await stack.enter_async_context(running(config_of(etcd_config)))
        sdk = await stack.enter_async_context(AsyncClient(other.address, timeout_s=60))
        ended = (await sdk.wait(operation.name, timeout_s=180)).raise_for_outcome()
        assert (ended.facts["removedRows"], ended.facts["droppedFiles"]) == (9, 2)
        assert await appender.exit_code(60) == 0, appender.log.read_text()
        service = Whole(etcd_config, client, sdk, tmp_path)
        await service.at_rest()
        left = [n for n in range(20) if n % 3 != 1 and n not in (3, 15)]
        assert await asyncio.to_thread(service.ids) == [*left, 1000, 1001, 1002]
        await service.forget_the_past()
        assert await service.only_published()


EXECUTOR = ("-m", "distop.cli", "executor", "--master", "none", "--slots", "1", "--lease-ttl", f"{TTL_S}")
FILES = 300
"""More than one job reads."""


@pytest.mark.parametrize("crash", ["job.file.middle=die@2", f"job.file.before=sleep:{4 * TTL_S}"])
async def test_the_rows_go_once_whatever_happens_to_the_runner(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, crash: str
) -> None:
    """O9, O10, P2: it is killed while a job runs, or sleeps past its lease and then goes on; another runner
    ends the deletion, and what the first one has written is removed."""
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(coordinated(etcd_config, tmp_path, client))
        async with runner(client):
            source = write_csv(tmp_path / "source", "1.csv", 0, 2 * FILES, kinds=FILES)
            (await service.ingest(source)).raise_for_outcome()
            await service.at_rest()
        operation = await service.client.start("t", "delete", {"where": f"id < {FILES}"})
        assert operation.jobs.total > 1
        command = ("-m", "support.tables.foreign_appender", "default.t", "3", "1000")
        appender = stack.enter_context(Child(etcd_config, tmp_path, *command))
        struck = stack.enter_context(
            Child(
                etcd_config, tmp_path, *EXECUTOR, DISTOP_CRASH_POINTS=crash, DISTOP_CRASH_ONCE=str(tmp_path)
            )
        )
        if crash.partition("=")[2].startswith("die"):
            assert await struck.exit_code(60) == -signal.SIGKILL, struck.log.read_text()
        else:
            await eventually(lambda: (tmp_path / crash).exists(), 180)
        await stack.enter_async_context(runner(client))
        ended = (await service.client.wait(operation.name, timeout_s=180)).raise_for_outcome()
        assert (ended.facts["removedRows"], ended.facts["droppedFiles"]) == (FILES, 0)
        assert await appender.exit_code(60) == 0, appender.log.read_text()
        assert await asyncio.to_thread(service.ids) == [*range(FILES, 2 * FILES), 1000, 1001, 1002]
        await service.forget_the_past()
        published = await asyncio.to_thread(service.published_files)
        # One that slept writes on when it wakes, and removes it when it hears that it has lost.
        await eventually(lambda: service.data_files() == published, 90)
        assert await service.findings("t", deep=True) == []
