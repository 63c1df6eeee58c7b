"""What the doctor looks at, however many tables there are."""

import pytest

from distop.coordinator.doctor.reading import PAGE, names_with_keys, read_tables
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode
from support.etcd.counting import Counting
from support.etcd.starts import begin, make_table


async def test_tables_with_keys_are_found_whether_they_are_listed_or_not(client: EtcdClient) -> None:
    """G3: wherever their keys lie between those of others."""
    names = ["A", "a", "a-b", "b", "flights", "z.z", "ä", "{"]
    for name in names:
        await make_table(client, name)
    for name in ("A", "a-b", "z.z", "ä"):
        await client.delete(client.keyspace.table(name).entry)
    found = await names_with_keys(client, await client.revision())
    assert sorted(found) == sorted(names)
    assert set(found[:4]) == {"A", "a-b", "z.z", "ä"}


@pytest.mark.parametrize("key", ["ä".encode(), b"\xff", b"%FF", b"b\x7f"])
async def test_keys_that_no_table_can_have_end_no_search(client: EtcdClient, key: bytes) -> None:
    """U1: written by hand, or by another program, below the same prefix."""
    await make_table(client, "a")
    await make_table(client, "z")
    await client.delete(client.keyspace.table("z").entry)
    await client.put(client.keyspace.prefix + key + b".note", b"x")
    assert sorted(await names_with_keys(client, await client.revision())) == ["a", "z"]


async def test_many_tables_are_read_in_few_requests(client: EtcdClient, counting: Counting) -> None:
    """G3"""
    names = [f"t{number:03d}" for number in range(40)]
    for name in names:
        await make_table(client, name)
    operation = await begin(client, table="t001", partition_count=3)
    seen = await read_tables(counting, names)
    assert counting.requests <= 20
    assert [one.name for one in seen if one.table.exists] == names
    assert {one.name: list(one.operations) for one in seen if one.operations} == {"t001": [operation]}
    assert seen[1].operations[operation].state.value == b"running"
    assert all(len(one.claims[0]) == 1 for one in seen)


async def test_a_table_of_many_keys_is_read_to_its_end(client: EtcdClient) -> None:
    """U4"""
    await make_table(client)
    keys, count = client.keyspace.table("t"), PAGE + 120
    line = encode(HistoryRecord(outcome="success", finished_at=1.0))
    for first in range(1, count + 1, 120):
        numbers = range(first, min(first + 120, count + 1))
        await client.txn(Txn(then=tuple(Put(keys.history_prefix + b"noop.%d" % n, line) for n in numbers)))
    [seen] = await read_tables(client, ["t"])
    assert len(seen.history) == count
    assert seen.own_keys == count + 1
