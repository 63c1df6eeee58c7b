"""What is asked often ranges over about as many keys as it shows, however many wait or were done with."""

from collections.abc import Sequence

import pytest_asyncio

from distop.coordinator.api.backlog import BacklogService
from distop.coordinator.views.tables import read_table_message, read_table_messages
from distop.metastore.backlog.batches import AppliedRecord, OrderingRecord
from distop.metastore.etcd.client import LONG, EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Op, Put, Txn
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.retention import SLACK, forget_batches
from distop.metastore.operations.runs import take_operation
from distop.metastore.records.operation import JobCountsRecord, RunnerRecord
from distop.metastore.records.record import encode
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from support.etcd.counting import Counting
from support.etcd.jobs import mark_all
from support.etcd.starts import begin, make_table
from support.services.backlogs import ordering, record_of

WAITING = 3000


@pytest_asyncio.fixture(autouse=True)
async def table(counting: Counting) -> None:
    await make_table(counting)


async def write(client: EtcdClient, ops: Sequence[Op]) -> None:
    for start in range(0, len(ops), 120):
        await client.txn(Txn(then=tuple(ops[start : start + 120])))


async def publish(client: EtcdClient, names: Sequence[str]) -> list[bytes]:
    keys, entry = client.keyspace.table("t"), encode(record_of())
    await write(client, [Put(keys.backlog(name), entry) for name in names])
    return [keys.backlog(name) for name in names]


async def test_the_next_batch_of_a_table_costs_the_same_however_many_wait(counting: Counting) -> None:
    """B1, G3: also when batches go, and when late ones come."""
    names = [f"batch-{number:06d}" for number in range(WAITING)]
    keys = await publish(counting, names)
    before = counting.keys
    assert (await read_table_message(counting, "t")).next_batch == names[0]
    assert counting.keys - before >= WAITING  # the first look finds a window

    async def look(expected: str) -> None:
        before = counting.keys
        assert (await read_table_message(counting, "t")).next_batch == expected
        [listed] = await read_table_messages(counting, ["t"], await counting.revision())
        assert listed.next_batch == expected
        assert counting.keys - before < 2 * LONG

    for gone in range(0, 500, 125):
        await write(counting, [DeleteRange(key) for key in keys[gone : gone + 125]])
        if gone < 375:
            await look(names[gone + 125])
    for _ in range(2):  # another window is found
        assert (await read_table_message(counting, "t")).next_batch == names[500]
    await look(names[500])
    await publish(counting, ["a-late"])
    await look("a-late")
    await write(
        counting, [DeleteRange(counting.keyspace.table("t").backlog(name)) for name in [*names, "a-late"]]
    )
    for _ in range(2):
        assert (await read_table_message(counting, "t")).next_batch == ""


async def test_listing_a_backlog_costs_as_much_as_it_shows(counting: Counting) -> None:
    """B1, G3: every batch once, in order; after one look the first page costs no more than others."""
    names = [f"batch-{number:06d}" for number in range(WAITING)]
    await publish(counting, names)
    service = BacklogService(counting, Registry())
    request, found, costs = pb.ListBacklogRequest(table="t", page_size=100), list[str](), list[int]()
    while True:
        before = counting.keys
        page = await service.ListBacklog(request, None)  # type: ignore[arg-type]
        costs.append(counting.keys - before)
        found += [batch.name for batch in page.batches]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == names
    assert sum(costs) < 15 * WAITING  # and twice as many if each page ranged over all that come behind it
    request.page_token, before = "", counting.keys
    await service.ListBacklog(request, None)  # type: ignore[arg-type]
    assert counting.keys - before < LONG


async def test_remembered_batches_are_not_listed_for_each_batch(counting: Counting) -> None:
    """B1: never more than an eighth beyond what is wanted, nor less."""
    keys, keep = counting.keyspace.table("t"), 800
    done = encode(AppliedRecord(outcome="applied"))
    record, number = OrderingRecord(remember=keep), 0

    async def apply(count: int) -> None:
        nonlocal record, number
        names = [f"{number + one:06d}" for one in range(count)]
        number += count
        record = (await ordering(counting) if number > count else record).done_with(*names)
        await write(counting, [*(Put(keys.applied(name), done) for name in names)])
        await counting.put(keys.ordering, encode(record))

    await apply(keep)
    assert await forget_batches(counting, keys) == 0
    costs = list[int]()
    for _ in range(40):
        await apply(10)
        before = counting.keys
        await forget_batches(counting, keys)
        costs.append(counting.keys - before)
        left = len((await counting.scan(keys.applied_prefix, keys_only=True)).kvs)
        assert keep <= left <= keep + keep // SLACK
    assert sum(cost > 10 for cost in costs) == 40 * 10 // (keep // SLACK)


async def test_taking_an_operation_with_many_results_holds_up_no_other_use_of_etcd(
    counting: Counting,
) -> None:
    """G1: they are read outside of the transaction, once a leader has said that there are many."""
    operation = await begin(counting, partition_count=1600)
    keys = counting.keyspace.operation(operation)
    await mark_all(counting, operation, [str(number) for number in range(1500)])
    async with LeaseSession(counting, 10) as session:
        await counting.put(keys.job_counts, encode(JobCountsRecord(succeeded=1500)))
        before = counting.in_txns
        taken = await take_operation(counting, keys, RunnerRecord(member="m"), session.lease_id)
        assert counting.in_txns - before < 10
    assert taken is not None
    assert taken.unfinished == [str(number) for number in range(1500, 1600)]
