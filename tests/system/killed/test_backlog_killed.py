"""Batches in order while the leader of their table is killed, again and again."""

import asyncio
import contextlib
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.table import decode_watermarks
from support.etcd.lossy import LossyClient
from support.services.backlogs import applied, drained, nothing_left
from support.services.coordinators import CoordinatorProcess, leader_of
from support.tables.nowhere import nowhere
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills the leader three times, and waits for its lease each time"),
]

KILLS = 3
LETTERS = "abcdefghijklmnopqrstuvwxyz"


async def test_the_string_is_whole_and_in_order_whichever_leader_is_killed(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """B3, B5, B10: no batch needs to be published again; a batch that is published twice is applied once."""
    async with AsyncExitStack() as stack:
        pair = [await stack.enter_async_context(CoordinatorProcess(etcd_config, tmp_path)) for _ in range(2)]
        for one in pair:
            await one.member(client)
        addresses = ",".join(one.address for one in pair)
        sdk = await stack.enter_async_context(AsyncClient(addresses, timeout_s=40))
        await sdk.create_table("t", nowhere())
        published, killed = 0, 0

        async def publish() -> None:
            nonlocal published
            for number, letter in enumerate(LETTERS):
                for _ in range(1 + number % 2):
                    await sdk.table("t").enqueue(f"{number:02d}", "letters", {"letters": letter})
                published = number + 1
                # Some wait for what came before to be applied, others come in a row.
                if number % 3 == 0:
                    await eventually(lambda number=number: applied_up_to(client, number), 90)

        async def kill() -> None:
            nonlocal killed
            for count in range(1, KILLS + 1):
                await eventually(lambda count=count: published >= count * len(LETTERS) // (KILLS + 1), 180)
                member = await eventually(lambda: leader_of(client, "t"))
                for one in pair:
                    if f"-{one.pid}-" in member:
                        os.kill(one.pid, signal.SIGKILL)
                        killed += await one.exit_code() == -signal.SIGKILL
                        one.start()
                        await one.member(client)

        await asyncio.gather(publish(), kill())
        assert await eventually(lambda: drained(client), 90)
        assert await eventually(lambda: nothing_left(client))
    assert killed == KILLS
    assert await applied(client) == [f"{number:02d}" for number in range(len(LETTERS))]
    kv = await client.get(client.keyspace.table("t").watermarks)
    assert decode_watermarks(kv.value)["letters"]["string"] == LETTERS


async def applied_up_to(client: LossyClient, number: int) -> bool:
    with contextlib.suppress(IndexError):
        return (await applied(client))[-1] >= f"{number:02d}"
    return False
