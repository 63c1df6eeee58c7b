"""A batch has one name: it is applied once, whether it is published in order, without one, or both ways."""

import asyncio
from functools import partial
from typing import Any

import pytest

from distop.errors import BatchDiffers, BatchLate
from distop.metastore.backlog.batches import OrderingRecord
from distop.metastore.backlog.queue import Queued, enqueue, take_back
from distop.metastore.operations.pausing import pause_table, resume_table
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import PauseRecord
from distop.metastore.records.record import encode
from distop.metastore.tables.audit import audit_put
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient, puts
from support.refusals import refused
from support.services.backlogs import is_blocked_by, nothing_left, ordering, places, put, record_of
from support.services.coordinators import Service
from support.waiting import eventually

pytestmark = pytest.mark.parametrize("ordered", [True, False], ids=["in order first", "without order first"])


async def has_ended(client: LossyClient, *keys: str) -> bool:
    return await places(client) == sorted(keys) and await nothing_left(client)


async def operations(client: LossyClient) -> int:
    """How many were started for batches of the table."""
    kv = await client.get(client.keyspace.table("t").next_instance("noop"))
    return int(kv.value or b"1") - 1


async def has_started(client: LossyClient, count: int) -> bool:
    return await operations(client) == count


async def pause(client: LossyClient) -> None:
    keys = client.keyspace.table("t")
    audit = audit_put(keys, "pause", by="me", target="t", at=1.0)
    await pause_table(client, keys, PauseRecord(by="me", reason="", at=1.0), audit)


async def resume(client: LossyClient) -> None:
    keys = client.keyspace.table("t")
    await resume_table(client, keys, audit_put(keys, "resume", by="me", target="t", at=2.0))


def key_of_end(ordered: bool) -> str:
    return "applied.a" if ordered else "unordered.done.a"


async def test_a_batch_applied_in_one_way_is_known_in_the_other(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, B13: whatever its content is now; published on purpose it is applied again."""
    await put(client, "a", ordered=ordered)
    assert await eventually(lambda: has_ended(client, key_of_end(ordered)))
    for content in (0, 1):
        answer = await put(client, "a", ordered=not ordered, partitions=content)
        assert (answer.became, answer.operation) == (Queued.ALREADY_APPLIED, "t/noop/1")
    assert (await put(client, "a", ordered=not ordered, republish=True)).became is Queued.QUEUED
    assert await eventually(lambda: has_ended(client, "applied.a", "unordered.done.a"))
    for way in (True, False):
        answer = await put(client, "a", ordered=way)
        assert (answer.became, answer.operation) == (Queued.ALREADY_APPLIED, "t/noop/2")
    assert await operations(client) == 2


async def test_a_batch_that_waits_in_one_way_is_known_in_the_other(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, U3: it is replaced on purpose only, and then waits the way it was published last."""
    await pause(client)
    await put(client, "a", ordered=ordered, partitions=-1)
    assert (await put(client, "a", ordered=not ordered, partitions=-1)).became is Queued.ALREADY_QUEUED
    with refused(error=BatchDiffers, operation=""):
        await put(client, "a", ordered=not ordered, partitions=0)
    answer = await put(client, "a", ordered=not ordered, partitions=0, republish=True)
    assert answer.became is Queued.QUEUED
    assert await places(client) == ["unordered.waiting.a" if ordered else "backlog.a"]
    await resume(client)
    assert await eventually(lambda: has_ended(client, key_of_end(not ordered)))
    assert await operations(client) == 1


async def test_a_batch_that_is_being_applied_in_one_way_is_known_in_the_other(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, B2."""
    await put(client, "a", ordered=ordered, partitions=1)
    operation = OperationId("t", "noop", 1)
    state = client.keyspace.operation(operation).state
    await eventually(lambda: client.get(state), holds=lambda kv: kv.exists)
    answer = await put(client, "a", ordered=not ordered, partitions=1)
    assert (answer.became, answer.operation) == (Queued.ALREADY_QUEUED, "t/noop/1")
    for republish in (False, True):
        with refused(error=BatchDiffers, operation=operation):
            await put(client, "a", ordered=not ordered, partitions=0, republish=republish)
    assert await mark(client, operation, "0")
    assert await eventually(lambda: has_ended(client, key_of_end(ordered)))
    assert await operations(client) == 1


async def test_a_batch_that_has_failed_in_one_way_is_known_in_the_other(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, B8: what is published instead needs no decision about the one before."""

    async def has_failed() -> bool:
        if ordered:
            return await is_blocked_by(client, "a", "INVALID_ARGUMENT")
        return [block.batch for block in (await ordering(client)).failed] == ["a"]

    await put(client, "a", ordered=ordered, partitions=-1)
    assert await eventually(has_failed)
    same = await put(client, "a", ordered=not ordered, partitions=-1)
    assert same.became is (Queued.ALREADY_QUEUED if ordered else Queued.FAILED)
    if ordered:
        with pytest.raises(BatchDiffers):
            await put(client, "a", ordered=False, partitions=0)
    # Without an order other content is a new attempt, as it is the same way.
    answer = await put(client, "a", ordered=not ordered, partitions=0, republish=ordered)
    assert answer.became is Queued.QUEUED
    assert await eventually(lambda: has_ended(client, key_of_end(not ordered)))
    now = await ordering(client)
    assert (now.failed, now.blocked) == ([], None)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.FULL_YET_DONE])
async def test_a_publish_without_a_reply_is_one(
    client: LossyClient, service: Service, ordered: bool, fault: Fault
) -> None:
    """B1."""
    client.fail(fault)
    assert (await put(client, "a", ordered=ordered)).became in (Queued.QUEUED, Queued.ALREADY_APPLIED)
    assert client.spent
    assert await eventually(lambda: has_ended(client, key_of_end(ordered)))
    assert (await put(client, "a", ordered=not ordered)).became is Queued.ALREADY_APPLIED


@pytest.mark.parametrize("republish", [False, True])
async def test_a_request_that_arrives_again_later_applies_nothing(
    client: LossyClient, service: Service, ordered: bool, republish: bool
) -> None:
    """B1: also one to apply it again, and after it was applied again the other way, and this way."""
    keys, record = client.keyspace.table("t"), record_of()

    async def arrives() -> Queued:
        answer = await enqueue(client, keys, "a", record, ordered=ordered, republish=republish)
        return answer.became

    await pause(client)
    assert [await arrives(), await arrives()] == [Queued.QUEUED] * 2
    await resume(client)
    assert await eventually(lambda: has_ended(client, key_of_end(ordered)))
    assert await arrives() is Queued.ALREADY_APPLIED
    for times, way in enumerate((not ordered, ordered), 2):
        await put(client, "a", ordered=way, republish=True)
        assert await eventually(partial(has_started, client, times))
        assert await eventually(lambda: has_ended(client, "applied.a", "unordered.done.a"))
        assert await arrives() is Queued.ALREADY_APPLIED
    assert await operations(client) == 3


@pytest.mark.parametrize("republish", [False, True])
async def test_a_request_that_arrives_again_later_brings_back_no_batch_that_was_taken_back(
    client: LossyClient, service: Service, ordered: bool, republish: bool
) -> None:
    """B1: neither the request nor its transaction; publishing the batch once more does."""
    keys, record = client.keyspace.table("t"), record_of()
    audit = audit_put(keys, "enqueue", by="me", target="a", at=1.0)
    given: dict[str, Any] = {"ordered": ordered, "republish": republish, "also": (audit,)}
    await pause(client)
    assert (await enqueue(client, keys, "a", record, **given)).became is Queued.QUEUED
    (copy,) = [txn for txn in client.sent if puts(audit.key)(txn)]
    await take_back(client, keys, "a", request="r")
    assert (await enqueue(client, keys, "a", record, **given)).became is Queued.QUEUED
    assert not (await client.txn(copy)).succeeded
    assert await places(client) == []
    assert (await put(client, "a", ordered=ordered)).became is Queued.QUEUED
    assert await places(client) == ["backlog.a" if ordered else "unordered.waiting.a"]


async def test_a_request_that_has_failed_is_not_tried_again_when_it_arrives_again(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, B8."""
    keys, record = client.keyspace.table("t"), record_of({"partitions": -1})

    async def arrives() -> Queued:
        return (await enqueue(client, keys, "a", record, ordered=ordered, republish=True)).became

    async def has_failed() -> bool:
        now = await ordering(client)
        return bool(now.blocked or now.failed)

    assert await arrives() is Queued.QUEUED
    assert await eventually(has_failed)
    assert await arrives() is (Queued.QUEUED if ordered else Queued.FAILED)
    assert await has_failed()


async def test_one_of_two_parallel_publishes_of_a_batch_queues_it(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, B2: whoever is first."""
    names = [f"{number:02d}" for number in range(10)]
    ways = (ordered, not ordered, ordered, not ordered)
    answers = await asyncio.gather(*(put(client, name, ordered=way) for name in names for way in ways))
    assert [answer.became for answer in answers].count(Queued.QUEUED) == len(names)
    assert await eventually(lambda: nothing_left(client))
    assert len(await places(client)) == len(names) == await operations(client)


async def test_a_batch_that_may_have_been_applied_is_refused_until_somebody_decides(
    client: LossyClient, service: Service, ordered: bool
) -> None:
    """B1, B4: names up to there are not remembered; in order, the table asks when its turn comes."""
    record = OrderingRecord(last="5", forgotten="3")
    await client.put(client.keyspace.table("t").ordering, encode(record))
    if ordered:
        assert (await put(client, "3")).late
        assert await eventually(lambda: is_blocked_by(client, "3", "BATCH_LATE"))
        return
    with refused(error=BatchLate, match="up to '3'", batch="3"):
        await put(client, "3", ordered=False)
    assert (await put(client, "4", ordered=False)).became is Queued.QUEUED
    assert (await put(client, "3", ordered=False, republish=True)).became is Queued.QUEUED
    assert await eventually(lambda: has_ended(client, "unordered.done.3", "unordered.done.4"))
