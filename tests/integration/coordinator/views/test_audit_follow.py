"""The audit trail as it is exported: every entry once, whatever happens to coordinators and histories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from distop.client import AsyncClient, AuditEntry
from distop.client.calls.cluster import AUDIT_SILENCE_S
from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.tables.audit import audit_put, denial_put
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service, config_of, running
from support.waiting import eventually


@asynccontextmanager
async def following(client: AsyncClient, table: str = "", after: str = "") -> AsyncIterator[list[AuditEntry]]:
    """What is heard of the trail."""
    heard: list[AuditEntry] = []

    async def listen() -> None:
        async for entry in client.follow_audit(table, after=after):
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
    """S6: of all tables and of the installation; with who it was by its own account, and from where."""
    config, start = config_of(etcd_config), str(await client.revision())
    async with running(config) as second:
        async with running(config) as first, Service(first.address) as service:
            sdk = AsyncClient(f"{first.address},{second.address}", timeout_s=60, identity="ana")
            async with sdk, following(sdk, after=start) as heard:
                await service.create_table("t", created_by="ana")
                await sdk.pause_table("t", "because")
                await eventually(lambda: len(heard) == 3)
                assert {one.action for one in heard[:2]} == {"create-table"}
                assert {one.table for one in heard[:2]} == {"", "t"}
                paused = heard[2]
                assert (paused.action, paused.by, paused.address) == ("pause", "ana", "127.0.0.1")
                assert paused.outcome == "done"

                first.stop()
                await sdk.resume_table("t")
                await eventually(lambda: len(heard) == 4, 4 * AUDIT_SILENCE_S)
                assert [entry.action for entry in heard[2:]] == ["pause", "resume"]

        async with AsyncClient(second.address, timeout_s=60, identity="ana") as sdk:
            # Two entries of one revision are told apart.
            async with following(sdk, after=heard[0].cursor) as again:
                await eventually(lambda: len(again) == 3)
            assert [entry.id for entry in again] == [entry.id for entry in heard[1:]]
            async with following(sdk, "t", after=start) as of_table:
                await eventually(lambda: len(of_table) == 3)
            assert {entry.table for entry in of_table} == {"t"}
            for wrong in ("x", "1.2", f"{10**17}"):
                with pytest.raises(InvalidArgument):
                    await anext(sdk.follow_audit(after=wrong))


async def test_what_was_compacted_is_read_from_trails(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """S6: also more entries than are read at a time."""
    keys = client.keyspace.table("t")
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        start = str(await client.revision())
        for number in range(3):
            put = audit_put(keys, f"act{number}", by="", target="t", at=time.time())
            await client.put(put.key, put.value)
        refused = denial_put(client.keyspace, "drain", by="", target="m", at=time.time(), reason="no right")
        await client.put(refused.key, refused.value)
        await client.compact(await client.revision())
        sdk = AsyncClient(coordinator.address, timeout_s=60)
        async with sdk, following(sdk, after=start) as heard:
            await eventually(lambda: len(heard) == 4)
            put = audit_put(keys, "act3", by="", target="t", at=time.time())
            await client.put(put.key, put.value)
            await eventually(lambda: len(heard) == 5)
    assert [entry.action for entry in heard] == ["drain", "act0", "act1", "act2", "act3"]


async def test_who_goes_on_in_the_middle_of_what_etcd_has_compacted_misses_nothing(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """S6: the trails are read one after the other, so that older entries may come after newer ones."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        sdk = AsyncClient(coordinator.address, timeout_s=60)
        async with sdk:
            for name in "abc":
                await service.create_table(name)
            await sdk.pause_table("a")
            await client.compact(await client.revision())
            async with following(sdk, after="0") as heard:
                await eventually(lambda: len(heard) == 7)
            for number, entry in enumerate(heard, 1):
                async with following(sdk, after=entry.cursor) as rest:
                    wanted = {one.id for one in heard[number:]}
                    await eventually(lambda: wanted <= {one.id for one in rest})  # noqa: B023 - at once
