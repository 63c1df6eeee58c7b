"""The audit trail as it is exported: what was written after an entry, whatever happens to coordinators."""

import time

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


async def after(client: AsyncClient, cursor: str, table: str = "t", **how: int) -> list[AuditEntry]:
    return [entry async for entry in client.audit(table, after=cursor, **how)]


async def test_the_trail_goes_on_after_any_entry_at_any_coordinator(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """S6: with who it was by its own account, and from where."""
    config, start = config_of(etcd_config), str(await client.revision())
    async with running(config) as second:
        async with (
            running(config) as first,
            Service(first.address) as service,
            AsyncClient(first.address, timeout_s=60, identity="ana") as sdk,
        ):
            await service.create_table("t", created_by="ana")
            await sdk.table("t").pause("because")
            await sdk.table("t").resume()
            resumed, paused, made = await after(sdk, start)
        assert (made.action, made.table) == ("create-table", "t")
        assert (paused.action, paused.by, paused.address) == ("pause", "ana", "127.0.0.1")
        assert (resumed.action, paused.outcome) == ("resume", "done")
        async with AsyncClient(second.address, timeout_s=60) as sdk:
            assert await after(sdk, made.cursor) == [resumed, paused]
            assert await after(sdk, resumed.cursor) == []
            assert {entry.table for entry in await after(sdk, start, "")} == {""}
            for wrong in ("x", "1.2", f"{10**17}"):
                with pytest.raises(InvalidArgument):
                    await after(sdk, wrong)


async def test_entries_of_one_revision_are_told_apart(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """S6: an end and the start of what follows it."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        keys = client.keyspace.table("t")
        puts = [audit_put(keys, f"act{number}", by="", target="t", at=time.time()) for number in range(3)]
        await client.txn(Txn(then=tuple(puts)))
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk:
            *newer, oldest, _ = await after(sdk, "0")
            assert await after(sdk, oldest.cursor) == newer


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
            (cursor,) = [one.cursor for one in await after(sdk, "0") if one.action == "act2"]
            for size in (1, 2, 100):
                assert [one.action for one in await after(sdk, cursor, page_size=size)] == ["act3", "act0"]


async def test_a_start_comes_again_with_its_end(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """S6, U2: also behind more entries than are listed at a time."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": 1})
        keys = client.keyspace.table("t")
        puts = [audit_put(keys, "act", by="", target="t", at=time.time()) for _ in range(PAGE_SIZE + 5)]
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk:
            began = next(entry for entry in await after(sdk, "0") if entry.action == "start")
            for put in puts:
                await client.put(put.key, put.value)
            await mark(client, operation, "0")

            async def has_ended() -> bool:
                return (await after(sdk, began.cursor))[-1].action == "start"

            await eventually(has_ended)
            *acts, ended = await after(sdk, began.cursor)
    assert (began.outcome, ended.outcome, ended.id) == ("", "success", began.id)
    assert len(acts) == PAGE_SIZE + 5


async def test_the_audit_trail_has_changes_that_etcd_has_compacted(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """S6: of the installation, with refused calls."""
    async with running(config_of(etcd_config)) as coordinator:
        start = str(await client.revision())
        for number in range(3):
            put = audit_put(client.keyspace, f"act{number}", by="", target="t", at=time.time())
            await client.put(put.key, put.value)
        refused = denial_put(client.keyspace, "drain", by="", target="m", at=time.time(), reason="no right")
        await client.put(refused.key, refused.value)
        await client.compact(await client.revision())
        async with AsyncClient(coordinator.address, timeout_s=60) as sdk:
            kept = {entry.action for entry in await after(sdk, start, "")}
    assert kept == {"act0", "act1", "act2", "drain"}
