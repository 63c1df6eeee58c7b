"""The audit trail records the outcome of an operation, next to its starter and its argument."""

from distop.client import AsyncClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import AuditRecord
from distop.metastore.tables.audit import operation_puts
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.services.coordinators import config_of, running
from support.tables.nowhere import nowhere


async def test_entries_of_operations_say_how_they_ended(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """U2: one entry for each, whether it succeeded, failed or was cancelled."""
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, identity="jane") as sdk,
    ):
        await sdk.create_table("t", nowhere())
        told = {}
        for what in ("success", "failed", "cancelled"):
            begun = await sdk.start("t", "noop", {"partitions": 1})
            standing = await anext(sdk.audit("t"))
            assert (standing.target, standing.outcome) == (begun.name, "")
            if what == "cancelled":
                await begun.cancel()
            else:
                error = "full" if what == "failed" else ""
                await mark(client, OperationId.parse(begun.name), "0", error=error)
            ended = await begun.wait()
            told[begun.name] = (what, ended.error.code if ended.error else "")
        starts = [entry async for entry in sdk.audit("t") if entry.action == "start"]
        assert {entry.target: (entry.outcome, entry.error_code) for entry in starts} == told
        assert len(starts) == 3
        assert {(entry.by, entry.argument["partitions"]) for entry in starts} == {("jane", 1)}


async def test_operations_of_a_series_push_nobody_out_of_the_trail(client: LossyClient) -> None:
    """U2: they are counted in the line of history; one that fails has an entry."""
    keys = client.keyspace.table("t")
    arg = OperationArg(table="t", type="ingest", instance=7, series="stream", started_by="jane")
    assert operation_puts(keys, arg) == ()
    facts = {"rows": 3, "bytes": 9}
    assert operation_puts(keys, arg, HistoryRecord(outcome="success", facts=facts)) == ()
    (put,) = operation_puts(keys, arg, HistoryRecord(outcome="failed", error_code="FULL", facts=facts))
    entry = decode(put.value, AuditRecord)
    assert (entry.target, entry.outcome, entry.error_code) == ("t/ingest/7", "failed", "FULL")
    assert (entry.by, entry.rows, entry.bytes) == ("jane", 3, 9)


async def test_an_unreadable_entry_hides_no_others(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """U2: it is shown in its place."""
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        await sdk.create_table("t", nowhere())
        await client.put(client.keyspace.table("t").audit_prefix + b"1700000000000-x", b"damaged")
        for after in ("", "0"):
            made, damaged = [entry async for entry in sdk.audit("t", after=after)]
            assert (made.action, damaged.action) == ("create-table", "unreadable")
            assert damaged.at is not None
            assert damaged.at.year == 2023
            assert "1700000000000-x" in damaged.reason
