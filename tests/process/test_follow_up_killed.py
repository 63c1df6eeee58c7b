"""A coordinator is killed around the finish that starts another operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.options import FollowUp
from support.etcd.jobs import mark
from support.etcd.starts import begin, make_table
from support.services.coordinators import CoordinatorProcess
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("kills a coordinator, and waits for its lease")]


@pytest.mark.parametrize("point", ["finish.before", "finish.after"])
async def test_the_next_leader_finds_it_started_or_starts_it(
    client: EtcdClient, etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """O23: exactly once, whether the finish had happened or not."""
    await make_table(client)
    table = client.keyspace.table("t")
    monkeypatch.setenv("DISTOP_CRASH_POINTS", f"{point}=die")
    async with CoordinatorProcess(etcd_config, tmp_path) as first:
        await first.member(client)
        operation = await begin(client, partition_count=1, then=FollowUp(type="noop"))
        await mark(client, operation, "0")
        assert await first.exit_code() == -9
        assert (await client.get(table.history(operation))).exists == (point == "finish.after")
    monkeypatch.delenv("DISTOP_CRASH_POINTS")
    following = OperationId("t", "noop", 2)
    async with CoordinatorProcess(etcd_config, tmp_path):

        async def over() -> bool:
            return (await client.get(table.history(following))).exists

        await eventually(lambda: _stands(client, table.operation(following).state))
        await mark(client, following, "0")
        await eventually(over)
    assert (await client.get(table.next_instance("noop"))).value == b"3"
    assert not (await client.get(table.run_ops)).exists


async def _stands(client: EtcdClient, key: bytes) -> bool:
    return (await client.get(key)).exists
