"""Operations of all tables: every one that is asked for, in few requests, however many tables have none."""

from collections import Counter

import pytest

from distop.coordinator.views import listing, operations
from distop.coordinator.views.listing import PEEKED, list_operations
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.retention import prune
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.registry import table_puts
from distop.proto import distop_pb2 as pb
from distop.proto.messages import timestamp
from support.etcd.counting import Counting
from support.etcd.starts import begin, make_table, make_tables

TABLES, ENDED = 400, PEEKED + 5


@pytest.mark.parametrize("page_size", [4, 100])
async def test_operations_of_few_tables_among_many(client: EtcdClient, page_size: int) -> None:
    """O22, G3: of one table that has ended many, one that has ended one, and one where one is running."""
    space = client.keyspace
    await make_tables(client, TABLES)
    past, once, runs = (space.table(f"t{n:04d}") for n in (120, 250, TABLES - 1))
    lines = [Put(past.history_prefix + b"noop.%d" % n, _line(n)) for n in range(1, ENDED + 1)]
    await client.txn(Txn(then=(*lines, Put(once.history_prefix + b"noop.1", _line(1)))))
    operation = await begin(client, table=runs.name, partition_count=1)
    ended = [f"{past.name}/noop/{n}" for n in range(ENDED, 0, -1)] + [f"{once.name}/noop/1"]

    counting = Counting(client.config)
    found, requests = await _listed(counting, page_size)
    assert found == [*ended, str(operation)]
    live, live_requests = await _listed(counting, page_size, pb.RUNNING, pb.COMMITTING)
    assert live == [str(operation)]
    assert (await _listed(counting, page_size, pb.FAILED))[0] == []
    await counting.close()
    if page_size == 100:
        assert requests < 40
        assert live_requests < 16


async def test_a_filter_that_hardly_matches_reads_so_many_tables_a_page(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: no page reads all tables, and no operation is missed or listed twice."""
    monkeypatch.setattr(listing, "LOOKED_TABLES", 40)
    monkeypatch.setattr(listing, "TOGETHER", 15)
    for number in range(100):
        keys = client.keyspace.table(f"t{number:03d}")
        record = TableRecord(name=keys.name, location=f"file:///x/{keys.name}")
        ended = Put(keys.history_prefix + b"noop.1", _line(1))
        matches = Put(keys.history_prefix + b"rare.1", _line(2))
        await client.txn(Txn(then=(*table_puts(keys, record), matches if number % 45 == 44 else ended)))
    request, pages = pb.ListOperationsRequest(type="rare"), list[list[str]]()
    while not pages or request.page_token:
        page = await list_operations(client, request)
        pages.append([one.table for one in page.operations])
        request.page_token = page.next_page_token
    assert pages == [[], ["t044"], ["t089"]]


async def test_a_page_by_time_takes_little_work(client: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: the newest of all tables, for little work."""
    space, newest, sorted_by = client.keyspace, listing._newest, Counter[str]()

    def counting(message: pb.Operation) -> tuple[int, str]:
        sorted_by[message.name] += 1
        return newest(message)

    monkeypatch.setattr(listing, "_newest", counting)
    monkeypatch.setattr(listing, "ROOM", 50)
    tables = [space.table(f"t{number:03d}") for number in range(100)]
    for keys in tables:
        record = TableRecord(name=keys.name, location=f"file:///x/{keys.name}")
        ended = Put(keys.history_prefix + b"noop.1", _line(int(keys.name[1:])))
        await client.txn(Txn(then=(*table_puts(keys, record), ended)))
    request, names = pb.ListOperationsRequest(page_size=3, since=timestamp(1.0)), list[str]()
    for _ in range(2):
        page = await list_operations(client, request)
        names += [one.table for one in page.operations]
        request.page_token = page.next_page_token
    assert names == [f"t{number:03d}" for number in range(99, 93, -1)]
    assert sorted_by.total() < 2 * 2 * len(tables)


async def test_a_list_decodes_each_ended_operation_once(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: a page reads hundreds of them. Of those that are not wanted no message is made."""
    await make_table(client)
    keys, decoded = client.keyspace.table("t"), Counter[bytes]()

    def counting(value: bytes, kind: type[HistoryRecord], key: bytes) -> HistoryRecord:
        decoded[key] += 1
        return decode(value, kind, key)

    monkeypatch.setattr(operations, "decode", counting)
    await client.txn(Txn(then=tuple(Put(keys.history_prefix + b"noop.%d" % n, _line(n)) for n in (1, 2))))
    for states, found in ([], 2), ([pb.FAILED], 0), ([pb.SUCCEEDED], 2):
        decoded.clear()
        listed = await list_operations(client, pb.ListOperationsRequest(states=states))
        assert (len(listed.operations), set(decoded.values())) == (found, {1}), states


async def test_an_unreadable_operation_is_listed_by_name_and_hides_no_others(client: EtcdClient) -> None:
    """C11, U3: in every list, since nobody knows what has become of it."""
    await make_table(client)
    keys = client.keyspace.table("t")
    lines = [Put(keys.history_prefix + b"noop.%d" % n, line) for n, line in ((7, _line(7)), (8, b"{"))]
    await client.txn(Txn(then=tuple(lines)))
    fine, broken = [await begin(client, object=name, partition_count=1) for name in ("fine", "broken")]
    await client.put(client.keyspace.operation(broken).arg, b"{")
    for request, wanted in (
        (pb.ListOperationsRequest(), {str(fine), str(broken), "t/noop/7", "t/noop/8"}),
        (pb.ListOperationsRequest(states=[pb.SUCCEEDED]), {str(broken), "t/noop/7", "t/noop/8"}),
        (pb.ListOperationsRequest(since=timestamp(8.0)), {str(fine), str(broken), "t/noop/8"}),
    ):
        listed = {one.name: one.error.code for one in (await list_operations(client, request)).operations}
        assert listed.keys() == wanted
        assert {name for name, code in listed.items() if code == "CORRUPT_RECORD"} == {
            str(broken),
            "t/noop/8",
        }


@pytest.mark.parametrize("odd", [b"odd", b"noop.%ff.1"])
async def test_keys_that_name_no_operation_hide_nothing(client: EtcdClient, odd: bytes) -> None:
    """C11, U3"""
    await make_table(client)
    space, keys = client.keyspace, client.keyspace.table("t")
    fine = await begin(client, object="fine", partition_count=1)
    await client.put(keys.history_prefix + b"noop.7", _line(7))
    for key in (space.active + b"t." + odd, keys.history_prefix + odd):
        await client.put(key, b"{}")
    listed = (await list_operations(client, pb.ListOperationsRequest())).operations
    assert {one.name for one in listed} == {str(fine), "t/noop/7"}
    assert await prune(client, keys, now=10.0, keep=0) == 1


def _line(number: int) -> bytes:
    return encode(HistoryRecord(outcome="success", started_at=float(number), finished_at=number + 0.5))


async def _listed(client: Counting, page_size: int, *states: int) -> tuple[list[str], int]:
    """Names, and how many requests it took."""
    request, names, before = pb.ListOperationsRequest(page_size=page_size), list[str](), client.requests
    request.states.extend(states)  # type: ignore[arg-type]
    while True:
        page = await list_operations(client, request)
        names += [one.name for one in page.operations]
        if not page.next_page_token:
            return names, client.requests - before
        request.page_token = page.next_page_token
