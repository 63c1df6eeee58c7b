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

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KILLED_AT = (5, 12, 18)
"""Numbers of the letters after whose batches the leader is killed."""


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
        killed = 0

        async def kill_leader() -> None:
            nonlocal killed
            member = await eventually(lambda: leader_of(client, "t"))
            one = next(one for one in pair if f"-{one.pid}-" in member)
            os.kill(one.pid, signal.SIGKILL)
            killed += await one.exit_code() == -signal.SIGKILL
            one.start()
            await one.member(client)

        async with asyncio.TaskGroup() as tasks:
            killing = None
            for number, letter in enumerate(LETTERS):
                if number in KILLED_AT and killing is not None:
                    await killing
                for _ in range(1 + number % 2):
                    await sdk.table("t").enqueue(f"{number:02d}", "letters", {"letters": letter})
                if number in KILLED_AT:  # at once: a table that rests has no leader
                    killing = tasks.create_task(kill_leader())
                # Some wait for what came before to be applied, others come in a row.
                if number % 3 == 0:
                    await eventually(lambda number=number: applied_up_to(client, number), 90)
        assert await eventually(lambda: drained(client), 90)
        assert await eventually(lambda: nothing_left(client))
    assert killed == len(KILLED_AT)
    assert await applied(client) == [f"{number:02d}" for number in range(len(LETTERS))]
    kv = await client.get(client.keyspace.table("t").watermarks)
    assert decode_watermarks(kv.value)["letters"]["string"] == LETTERS


async def applied_up_to(client: LossyClient, number: int) -> bool:
    with contextlib.suppress(IndexError):
        return (await applied(client))[-1] >= f"{number:02d}"
    return False
