"""Decisions about a backlog take effect once, and the reply is true, whichever message is lost."""

import asyncio

import pytest

from distop.errors import BatchLate, PreconditionFailed
from distop.metastore.backlog import queue as deciding
from distop.metastore.backlog.batches import BatchBlock, OrderingRecord
from distop.metastore.backlog.queue import Queued
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.retention import FORGET_BITE, forget_batches
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import encode
from distop.metastore.tables.audit import audit_put, read_audit
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import make_table
from support.refusals import refused
from support.services.backlogs import (
    applied,
    configure,
    drained,
    has_applied,
    is_blocked_by,
    nothing_left,
    open_gate,
    ordering,
    put,
    rested,
    unblock,
)
from support.services.coordinators import Service
from support.waiting import eventually


async def decide(client: LossyClient, action: str, batch: str, request: str) -> OrderingRecord:
    keys = client.keyspace.table("t")
    also = (audit_put(keys, action, by="me", target=batch, at=1.0, run=request),)
    match action:
        case "open":
            return await deciding.open_gate(client, keys, request=request, also=also)
        case "approve":
            return await deciding.approve(client, keys, batch, request=request, also=also)
        case "set":
            return await deciding.set_ordering(client, keys, {"together": 7}, request=request, also=also)
        case _:
            skip = action == "skip"
            return await deciding.unblock(client, keys, batch, skip=skip, now=1.0, request=request, also=also)


async def trail(client: LossyClient) -> list[str]:
    entries, _ = await read_audit(client, client.keyspace.table("t").audit_prefix, limit=100)
    return [entry.record.action for entry in entries if entry.record.by == "me"]


async def stand(client: LossyClient, record: OrderingRecord) -> None:
    await client.put(client.keyspace.table("t").ordering, encode(record))


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.FULL_YET_DONE])
@pytest.mark.parametrize("action", ["open", "approve", "set", "retry", "skip"])
async def test_a_decision_is_made_and_told_once(client: LossyClient, action: str, fault: Fault) -> None:
    """U2: also when its reply is lost, and when the caller repeats it after things have gone on."""
    await make_table(client)
    keys = client.keyspace.table("t")
    before = OrderingRecord(gate="closed", awaiting="a", blocked=BatchBlock(batch="b", code="X"), last="a")
    await stand(client, before)
    client.fail(fault, when=puts(keys.ordering))
    meant = "a" if action == "approve" else "b"
    after = await decide(client, action, meant, "r1")
    assert client.spent
    done = {
        "open": after.gate == "open",
        "approve": after.awaiting == "",
        "set": after.together == 7,
        "retry": after.blocked is None,
        "skip": after.blocked is None and after.last == "b",
    }
    assert done[action]
    # Others have decided since, and the next batch waits for the same kind of decision.
    next_one = OrderingRecord(
        gate="closed", awaiting="c", blocked=BatchBlock(batch="d", code="X"), decided=[*after.decided, "r2"]
    )
    await stand(client, next_one)
    repeated = await decide(client, action, meant, "r1")
    assert repeated == next_one == await ordering(client)
    assert await trail(client) == [action]
    if action in ("approve", "retry", "skip"):
        with pytest.raises(PreconditionFailed):
            await decide(client, action, meant, "r3")


async def test_a_batch_that_comes_while_a_later_one_is_applied_is_late(
    client: LossyClient, service: Service
) -> None:
    """B3, B4: nothing is applied after what should follow it, unless somebody says so."""
    await put(client, "b", partitions=1)
    operation = OperationId("t", "noop", 1)
    state = client.keyspace.operation(operation).state
    await eventually(lambda: client.get(state), holds=lambda kv: kv.exists)
    assert not (await put(client, "a")).late  # as far as one could tell
    assert await mark(client, operation, "0")
    assert await eventually(lambda: is_blocked_by(client, "a", "BATCH_LATE"))
    assert await applied(client) == ["b"]
    await unblock(client, client.keyspace.table("t"), "a", skip=False)
    assert await eventually(lambda: has_applied(client, ["b", "a"]))


async def test_a_late_batch_that_blocks_is_applied_once_late_ones_are(
    client: LossyClient, service: Service
) -> None:
    """B4: the policy is asked for; nobody need decide about the batch besides."""
    await put(client, "m")
    assert await eventually(lambda: drained(client))
    await put(client, "k")
    assert await eventually(lambda: is_blocked_by(client, "k", "BATCH_LATE"))
    await configure(client, late="reject")
    assert await is_blocked_by(client, "k", "BATCH_LATE")
    await configure(client, late="apply")
    assert await eventually(lambda: has_applied(client, ["m", "k"]))


async def test_a_batch_that_fails_stays_blocked_whatever_becomes_of_late_ones(
    client: LossyClient, service: Service
) -> None:
    """B4, B8."""
    await put(client, "a", partitions=-1)
    assert await eventually(lambda: is_blocked_by(client, "a", "INVALID_ARGUMENT"))
    await configure(client, late="apply")
    assert await is_blocked_by(client, "a", "INVALID_ARGUMENT")


async def test_a_batch_is_late_after_a_skipped_one_too(client: LossyClient, service: Service) -> None:
    """B4: and it says so, without calling that one applied."""
    keys = client.keyspace.table("t")
    await put(client, "m", partitions=-1)
    assert await eventually(lambda: is_blocked_by(client, "m", "INVALID_ARGUMENT"))
    await unblock(client, keys, "m", skip=True)
    await put(client, "k")
    assert await eventually(lambda: is_blocked_by(client, "k", "BATCH_LATE"))
    block = (await ordering(client)).blocked
    assert block is not None
    assert block.error == "it sorts before 'm', which was already applied or skipped"
    await configure(client, late="reject")
    with refused(error=BatchLate, batch="j", last="m"):
        await put(client, "j")


async def test_a_batch_published_on_purpose_is_not_late(client: LossyClient, service: Service) -> None:
    """B1: neither what was applied before, nor what was skipped."""
    await put(client, "m")
    await put(client, "n")
    assert await eventually(lambda: drained(client))
    await put(client, "b")
    await unblock(client, client.keyspace.table("t"), "b", skip=True)
    assert (await put(client, "b")).became is Queued.SKIPPED
    for name in ("m", "b"):
        assert (await put(client, name, republish=True)).became is Queued.QUEUED
        assert await eventually(lambda: drained(client))
    assert (await applied(client))[-2:] == ["m", "b"]
    assert (await ordering(client)).blocked is None


async def test_the_memory_of_what_is_done_with_is_bounded(client: LossyClient, service: Service) -> None:
    """B1, B4: what is forgotten is late when it comes again, and not applied twice whatever the policy."""
    keys = client.keyspace.table("t")
    names = [f"{number:02d}" for number in range(30)]
    await configure(client, gate="closed", together=10, late="apply", remember=10)
    await asyncio.gather(*(put(client, name) for name in names))
    await open_gate(client, keys)
    assert await eventually(lambda: has_applied(client, names))
    assert await forget_batches(client, keys) == 20
    assert await applied(client) == names[20:]
    assert (await ordering(client)).forgotten == "19"
    assert (await put(client, "20")).became is Queued.ALREADY_APPLIED
    again = await put(client, "19")
    assert (again.became, again.late) == (Queued.QUEUED, True)
    assert await eventually(lambda: is_blocked_by(client, "19", "BATCH_LATE"))
    await unblock(client, keys, "19", skip=True)
    # One that certainly was not applied is, as the policy has it.
    assert not (await put(client, "20a")).late
    assert await eventually(lambda: drained(client))
    assert (await applied(client))[-1] == "20a"
    assert await forget_batches(client, keys) == 2
    assert await eventually(lambda: rested(client))


async def test_memory_is_forgotten_in_bites_and_by_the_leader(client: LossyClient, service: Service) -> None:
    """No transaction grows with what there is."""
    keys = client.keyspace.table("t")
    old = [Put(keys.applied(f"{number:05d}"), b'{"outcome":"applied"}') for number in range(FORGET_BITE + 64)]
    for first in range(0, len(old), 100):
        await client.txn(Txn(then=tuple(old[first : first + 100])))
    await configure(client, remember=1, last=f"{len(old) - 1:05d}")
    # Each 64th operation of a table has its past cut.
    await client.put(keys.next_instance("noop"), b"64")
    await put(client, "a")
    assert await eventually(lambda: has_applied(client, ["a"]))
    assert (await ordering(client)).forgotten == f"{len(old) - 1:05d}"
    assert await eventually(lambda: nothing_left(client))
