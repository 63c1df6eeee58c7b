"""Ingest of a topic while runner and leader are killed."""

import asyncio
import signal
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import CoordinatorProcess
from support.services.executing import executor_process, runner
from support.services.whole import Whole
from support.sources.kafka import Brokers

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills a runner and a leader, and waits for their leases"),
]


async def test_every_record_is_there_once_whoever_is_killed(
    etcd_config: EtcdConfig,
    client: EtcdClient,
    tmp_path: Path,
    brokers: Brokers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C4, C8, P2: kill -9 of the runner within a job, of the leader right before it publishes."""
    topic = brokers.topic()
    topic.ids(0, 3000)
    argument = {"kafka": topic.argument(records_per_job=200)}
    with monkeypatch.context() as armed:
        armed.setenv("DISTOP_CRASH_POINTS", "finish.before=die")
        doomed = CoordinatorProcess(etcd_config, tmp_path)
        doomed.start()
    try:
        await doomed.member(client)
        async with AsyncClient(doomed.address, timeout_s=60) as sdk:
            await sdk.create_table("t", str(tmp_path / "table"))
            operation = await sdk.start("t", "ingest", argument)
        # What is produced now belongs to the next operation, whoever plays the rest of this one.
        topic.ids(3000, 300)
        plan = {"DISTOP_CRASH_POINTS": "job.file.middle=die@4"}
        with executor_process(etcd_config, tmp_path, **plan) as dying:
            assert await dying.exit_code() == -signal.SIGKILL
        async with runner(client):
            assert await doomed.exit_code() == -signal.SIGKILL
    finally:
        doomed.kill()
    other = CoordinatorProcess(etcd_config, tmp_path)
    async with AsyncClient(other.address, timeout_s=60, connect_timeout_s=30) as sdk, other, runner(client):
        await sdk.operation(operation.name).result(timeout_s=180)
        seen = Whole(etcd_config, client, sdk, tmp_path)
        assert await asyncio.to_thread(seen.ids) == list(range(3000))
        operation = await sdk.start("t", "ingest", argument)
        await operation.result(timeout_s=180)
        assert await asyncio.to_thread(seen.ids) == list(range(3300))
        (marks,) = (await sdk.table("t").watermarks()).values()
        assert marks.pop("topic-id")
        assert marks == {"0": "1100", "1": "1100", "2": "1100"}
        await seen.at_rest()
        assert await seen.only_published()
