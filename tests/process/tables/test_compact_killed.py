"""The processes of a compaction die, while others append."""

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
from support.services.whole import Whole, coordinated, write_csv

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills a leader and an executor while two other programs write"),
]

ROUNDS = 5


async def test_a_killed_leader_and_a_killed_runner_cost_time_and_no_row(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """C4, C13, P2, P7: two programs append all the while; every row is there once, no file is left over."""
    executor = ("-m", "distop.cli", "executor", "--master", "none", "--slots", "1", "--lease-ttl", "2")
    async with AsyncExitStack() as stack:
        async with coordinated(etcd_config, tmp_path, client) as service, runner(client):
            for number in range(4):
                ended = await service.ingest(write_csv(tmp_path / f"s{number}", "1.csv", 10 * number, 10))
                ended.raise_for_outcome()
            await service.at_rest()

        doomed = CoordinatorProcess(etcd_config, tmp_path, crash="snapshot.after=die")
        await stack.enter_async_context(doomed)
        await doomed.member(client)
        sdk = await stack.enter_async_context(AsyncClient(doomed.address, timeout_s=60))
        operation = await sdk.start("t", "compact", {"min_files": 2})
        command = ("-m", "support.tables.foreign_appender", "default.t", f"{ROUNDS}")
        appenders = [
            stack.enter_context(Child(etcd_config, tmp_path, *command, start)) for start in ("1000", "2000")
        ]
        dying = stack.enter_context(
            Child(etcd_config, tmp_path, *executor, DISTOP_CRASH_POINTS="job.file.middle=die@2")
        )
        assert await dying.exit_code(40) == -signal.SIGKILL, dying.log.read_text()
        await stack.enter_async_context(runner(client))
        assert await doomed.exit_code(40) == -signal.SIGKILL
        assert [await one.exit_code(60) for one in appenders] == [0, 0], appenders[0].log.read_text()

        other = await stack.enter_async_context(running(config_of(etcd_config)))
        sdk = await stack.enter_async_context(AsyncClient(other.address, timeout_s=60))
        service = Whole(etcd_config, client, sdk, tmp_path)
        ended = (await sdk.wait(operation.name, timeout_s=180)).raise_for_outcome()
        assert (ended.facts["filesBefore"], ended.facts["filesAfter"], ended.facts["rows"]) == (12, 3, 40)
        await service.at_rest()
        expected = [*range(40), *range(1000, 1000 + ROUNDS), *range(2000, 2000 + ROUNDS)]
        assert await asyncio.to_thread(service.ids) == expected
        await service.forget_the_past()
        assert await service.only_published()
