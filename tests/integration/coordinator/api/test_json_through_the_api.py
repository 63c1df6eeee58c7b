"""JSON that callers send arrives as it was written, and comes back so."""

from __future__ import annotations

from typing import Any

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode, encode
from support.tables.nowhere import nowhere

NUMBERS = {"int": 2**53 + 1, "negative": -(2**63), "unsigned": 2**64 - 1, "float": 3.0, "list": [1, 2.5]}


async def test_large_integers_survive_to_every_reader(sdk: AsyncClient, client: EtcdClient) -> None:
    """O4: of arguments, of options, of a queued batch and of facts."""

    def same(value: Any) -> bool:
        # 3.0 == 3, but they are not the same.
        return repr(sorted(value.items())) == repr(sorted(NUMBERS.items()))

    await sdk.create_table("u", nowhere(), options={"storage": {"config_kwargs": {"s3": NUMBERS}}})
    assert same((await sdk.get_table("u")).options["storage"]["config_kwargs"]["s3"])
    started = await sdk.start("t", "friend", NUMBERS)
    kv = await client.get(client.keyspace.operation(OperationId.parse(started.name)).arg)
    assert same(decode(kv.value, OperationArg, kv.key).argument)
    # What was asked for is shown as it was written, its keys in their order.
    assert repr((await sdk.get(started.name)).argument) == repr(NUMBERS)
    again = await sdk.start("t", "friend", NUMBERS, request_id=started.request_id)
    assert again.name == started.name
    await sdk.set_ordering("t", gate="closed")
    await sdk.enqueue("t", "b", "noop", NUMBERS)
    assert [same(batch.argument) async for batch in sdk.backlog("t")] == [True]
    ended = OperationId("t", "friend", 7)
    record = HistoryRecord(outcome="success", facts=NUMBERS)
    await client.put(client.keyspace.table("t").history(ended), encode(record))
    assert same((await sdk.get(str(ended))).facts)
