"""The audit trail as it is exported: every entry once, whatever happens to coordinators and histories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from distop.client import AsyncClient, AuditEntry
from distop.client.calls import PAGE_SIZE
from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Txn
from distop.metastore.tables.audit import audit_put, denial_put
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service, config_of, running
from support.waiting import eventually


@asynccontextmanager
async def following(client: AsyncClient, table: str = "", after: str = "") -> AsyncIterator[list[AuditEntry]]:
    """What is heard of the trail."""
    heard: list[AuditEntry] = []

    async def listen() -> None:
        async for entry in client.follow_audit(table, after=after, every_s=0.05):
            heard.append(entry)  # noqa: PERF401 - one by one, as they come

    listening = asyncio.create_task(listen())
    try:
        yield heard
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_the_trail_is_followed_from_any_entry_on_and_survives_its_coordinator(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """S6: with who it was by its own account, and from where."""
    config, start = config_of(etcd_config), str(await client.revision())
    async with running(config) as second:
        async with running(config) as first, Service(first.address) as service:
            sdk = AsyncClient(f"{first.address},{second.address}", timeout_s=60, identity="ana")
            await service.create_table("t", created_by="ana")
            async with sdk, following(sdk, "t", start) as heard, following(sdk, "t") as later:
                await eventually(lambda: len(heard) == 1)
                await sdk.pause_table("t", "because")
                await eventually(lambda: len(heard) == 2)
                made, paused = heard
                assert (made.action, made.table) == ("create-table", "t")
                assert (paused.action, paused.by, paused.address) == ("pause", "ana", "127.0.0.1")
                assert paused.outcome == "done"

                first.stop()
                await sdk.resume_table("t")
                await eventually(lambda: len(heard) == 3)
                await eventually(lambda: "resume" in {entry.action for entry in later})
                assert made.id not in {entry.id for entry in later}

        async with AsyncClient(second.address, timeout_s=60, identity="ana") as sdk:
            for number, entry in enumerate(heard, 1):
                rest = [one.id async for one in sdk.audit("t", after=entry.cursor)]
                assert rest == [one.id for one in reversed(heard[number:])]
            assert {entry.table async for entry in sdk.audit(after=start)} == {""}
            for wrong in ("x", "1.2", f"{10**17}"):
                with pytest.raises(InvalidArgument):
                    await anext(sdk.follow_audit(after=wrong))


async def test_entries_of_one_revision_are_told_apart(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """S6: an end and the start of what follows it."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        keys, start = client.keyspace.table("t"), str(await client.revision())
        puts = [audit_put(keys, f"act{number}", by="", target="t", at=time.time()) for number in range(3)]
        await client.txn(Txn(then=tuple(puts)))
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk:
            async with following(sdk, "t", start) as heard:
                await eventually(lambda: len(heard) == 3)
            async with following(sdk, "t", heard[0].cursor) as rest:
                await eventually(lambda: len(rest) == 2)
            assert [entry.id for entry in rest] == [entry.id for entry in heard[1:]]


async def test_pages_after_an_entry_that_is_left_out_are_listed_too(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """S6: of an older start that has ended since."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        keys = client.keyspace.table("t")
        puts = [audit_put(keys, f"act{number}", by="", target="t", at=1e9 + number) for number in range(4)]
        for put in (*puts, puts[0]):  # it is written again, as a start is
            await client.put(put.key, put.value)
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk:
            cursor = next(iter([one.cursor async for one in sdk.audit("t") if one.action == "act2"]))
            for size in (1, 2, 100):
                rest = [one.action async for one in sdk.audit("t", after=cursor, page_size=size)]
                assert rest == ["act3", "act0"]


async def test_a_start_comes_again_with_its_end(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """S6, U2: also behind more entries than are listed at a time."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": 1})
        keys = client.keyspace.table("t")
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk, following(sdk, "t", "0") as heard:
            for number in range(PAGE_SIZE + 5):
                put = audit_put(keys, f"act{number}", by="", target="t", at=time.time())
                await client.put(put.key, put.value)
            await mark(client, operation, "0")
            await eventually(lambda: "success" in {entry.outcome for entry in heard})
            await eventually(lambda: len(heard) >= PAGE_SIZE + 8)
    assert [one.outcome for one in heard if one.action == "start"] == ["", "success"]
    assert len(heard) == PAGE_SIZE + 8


async def test_what_etcd_has_compacted_is_in_the_trail(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """S6: of the installation, with refused calls."""
    async with running(config_of(etcd_config)) as coordinator:
        start = str(await client.revision())
        for number in range(3):
            put = audit_put(client.keyspace, f"act{number}", by="", target="t", at=time.time())
            await client.put(put.key, put.value)
        refused = denial_put(client.keyspace, "drain", by="", target="m", at=time.time(), reason="no right")
        await client.put(refused.key, refused.value)
        await client.compact(await client.revision())
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk, following(sdk, "", start) as heard:
            await eventually(lambda: len(heard) == 4)
            put = audit_put(client.keyspace, "act3", by="", target="t", at=time.time())
            await client.put(put.key, put.value)
            await eventually(lambda: len(heard) == 5)
    assert [entry.action for entry in heard] == ["act0", "act1", "act2", "drain", "act3"]
