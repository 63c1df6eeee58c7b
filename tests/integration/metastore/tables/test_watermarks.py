"""Watermarks that are set by hand."""

from __future__ import annotations

import pytest
import pytest_asyncio

from distop.client import AsyncClient
from distop.errors import IncompatibleOperation, InvalidArgument, NotFound, TableNotFound
from distop.metastore.etcd.txn import Txn
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import Effect, WatermarkMove
from distop.metastore.records.watermarks import Marks
from distop.metastore.tables.audit import audit_put, read_audit
from distop.metastore.tables.watermarks import Change, change_watermarks
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table
from support.refusals import refused
from support.tables.nowhere import nowhere


@pytest_asyncio.fixture
async def sdk(sdk: AsyncClient) -> AsyncClient:
    await sdk.create_table("t", nowhere())
    return sdk


def to(value: str) -> Change:
    async def change(before: Marks, table: object, head: object) -> tuple[Marks, Txn]:
        return before.then({"s": {"1": value}}), Txn()

    return change


async def test_setting_or_forgetting_a_watermark_leaves_an_audit_entry(sdk: AsyncClient) -> None:
    """U2: and what changes nothing leaves none."""
    assert await sdk.table("t").set_watermark("s", "1", "9", "renumbered") == {"s": {"1": "9"}}
    assert await sdk.table("t").set_watermark("s", "1", "9") == {"s": {"1": "9"}}
    await sdk.table("t").set_watermark("s", "2", "5")
    assert await sdk.table("t").set_watermark("other", "1", "2") == {"other": {"1": "2"}}
    assert await sdk.table("t").forget_watermarks("s", "1") == {"s": {"2": "5"}}
    assert await sdk.table("t").forget_watermarks("s") == {}
    assert await sdk.table("t").watermarks() == {"other": {"1": "2"}}
    told = [(entry.action, entry.target, entry.by, entry.reason) async for entry in sdk.audit("t")]
    assert told[::-1][1:] == [
        ("set-watermarks", "s/1 = 9", "jane", "renumbered"),
        ("set-watermarks", "s/2 = 5", "jane", ""),
        ("set-watermarks", "other/1 = 2", "jane", ""),
        ("forget-watermarks", "s/1", "jane", ""),
        ("forget-watermarks", "s", "jane", ""),
    ]


async def test_a_change_of_watermarks_that_makes_no_sense_is_refused_by_field(sdk: AsyncClient) -> None:
    """U3"""
    await sdk.table("t").set_watermark("s", "1", "9")
    with pytest.raises(InvalidArgument, match="needs a value"):
        await sdk.table("t").set_watermark("s", "1", "")
    with pytest.raises(NotFound, match="no watermark of source 'x'"):
        await sdk.table("t").forget_watermarks("x")
    with pytest.raises(NotFound, match="no watermark of partition '7' of source 's'"):
        await sdk.table("t").forget_watermarks("s", "7")
    with pytest.raises(TableNotFound):
        await sdk.table("nowhere").set_watermark("s", "1", "9")
    assert await sdk.table("t").watermarks() == {"s": {"1": "9"}}


async def test_watermarks_cannot_be_set_while_an_operation_moves_them(
    sdk: AsyncClient, client: LossyClient
) -> None:
    """C8: it started from their values. An operation that moves none is no obstacle."""
    await begin(client, kind="validate", effect=Effect.READS)
    await sdk.table("t").set_watermark("s", "1", "9")
    moves = {"s": {"1": WatermarkMove(before="9", after="10")}}
    moving = await begin(
        client, kind="ingest", effect=Effect.WRITES, watermarks=moves, compatible=lambda other: True
    )
    for change in (sdk.table("t").set_watermark("s", "1", "5"), sdk.table("t").forget_watermarks("s")):
        with refused(error=IncompatibleOperation, operation=moving):
            await change
    assert await sdk.table("t").watermarks() == {"s": {"1": "9"}}


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_change_whose_reply_is_lost_is_made_once(client: LossyClient, fault: Fault) -> None:
    await make_table(client)
    keys = client.keyspace.table("t")
    client.fail(fault, when=puts(keys.watermarks))
    audit = audit_put(keys, "set-watermarks", by="jane", target="s/1", at=1.0)
    await change_watermarks(client, keys, to("5"), audit)
    assert (await client.get(keys.watermarks)).value == b'{"s":{"1":"5"}}'
    entries, _ = await read_audit(client, keys.audit_prefix, limit=10)
    assert len(entries) == 1


async def test_an_operation_that_starts_meanwhile_is_seen(client: LossyClient) -> None:
    """Between what is read and what is written."""
    await make_table(client)
    keys = client.keyspace.table("t")
    started: list[OperationId] = []

    async def change(before: Marks, table: object, head: object) -> tuple[Marks, Txn]:
        if not started:
            moves = {"s": {"1": WatermarkMove(before=None, after="7")}}
            started.append(await begin(client, kind="ingest", effect=Effect.WRITES, watermarks=moves))
        return before.then({"s": {"1": "5"}}), Txn()

    audit = audit_put(keys, "set-watermarks", by="jane", target="s/1", at=1.0)
    with pytest.raises(IncompatibleOperation):
        await change_watermarks(client, keys, change, audit)
    assert not (await client.get(keys.watermarks)).exists


async def test_those_of_the_files_of_a_folder_become_one_of_the_folder(sdk: AsyncClient) -> None:
    """G4: the newest of them."""
    early, late = "2024-01-01T00:00:00.000000Z", "2024-02-01T00:00:00.000000Z"
    await sdk.table("t").set_watermark("s3://b/in/2024", "a.csv", early)
    await sdk.table("t").set_watermark("s3://b/in/2024", "b.csv", late)
    await sdk.table("t").set_watermark("s3://b/in/2024/x", "c.csv", early)
    assert await sdk.table("t").compact_watermarks("s3://b/in/2024") == {}
    left = {"s3://b/in": {"2024": late}, "s3://b/in/2024/x": {"c.csv": early}}
    assert await sdk.table("t").watermarks() == left
    await sdk.table("t").set_watermark("orders", "0", "17")
    for source in ("orders", "s3://b/in/2024"):
        with pytest.raises(InvalidArgument if source == "orders" else NotFound):
            await sdk.table("t").compact_watermarks(source)
    assert await sdk.table("t").watermarks() == {**left, "orders": {"0": "17"}}
