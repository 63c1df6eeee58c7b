"""Tables that are fed from a backlog: in order, one batch at a time, each once."""

from functools import partial

import msgspec
import pytest

from distop.coordinator.backlog import pauses
from distop.coordinator.backlog.applying import share_of
from distop.coordinator.backlog.policy import BatchFailure
from distop.errors import BatchDiffers, BatchLate, PreconditionFailed
from distop.metastore.backlog.batches import DONE, WAITING, AppliedRecord, BatchRecord, OrderingRecord
from distop.metastore.backlog.queue import Queued
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.pausing import pause_table, resume_table
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg, PauseRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import audit_put
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.refusals import refused, traced
from support.services.backlogs import (
    applied,
    approve,
    configure,
    drained,
    has_applied,
    is_blocked_by,
    nothing_left,
    open_gate,
    ordering,
    put,
    record_of,
    rested,
    unblock,
    waiting,
)
from support.services.coordinators import Service, leader_of, serving
from support.waiting import eventually


async def test_batches_are_applied_in_byte_order_one_at_a_time(client: LossyClient, service: Service) -> None:
    """B2: "10" before "2"; and nothing is left of the draining (B15)."""
    await configure(client, gate="closed")
    names = ["2", "10", "a b", "é", "A", "2024/01/02.csv", "17.arg"]
    for name in names:
        assert (await put(client, name)).became is Queued.QUEUED
    await open_gate(client, client.keyspace.table("t"))
    assert await eventually(lambda: drained(client))
    assert await applied(client) == sorted(names, key=str.encode)
    assert await eventually(lambda: nothing_left(client))


async def test_a_double_publish_is_one_entry(client: LossyClient, service: Service) -> None:
    """B1: also after it was applied; an explicit one runs again."""
    assert (await put(client, "a")).became is Queued.QUEUED
    assert await eventually(lambda: drained(client))
    again = await put(client, "a")
    assert again.became is Queued.ALREADY_APPLIED
    assert again.operation == "t/noop/1"
    await put(client, "b")
    assert await eventually(lambda: drained(client))
    assert (await put(client, "a", republish=True)).became is Queued.QUEUED
    assert await eventually(lambda: drained(client))
    kv = await client.get(client.keyspace.table("t").applied("a"))
    assert decode(kv.value, AppliedRecord).operation == "t/noop/3"
    assert (await ordering(client)).blocked is None


@pytest.mark.parametrize("ordered", [True, False])
async def test_the_log_has_the_trace_of_what_the_plan_of_a_batch_raised(
    client: LossyClient, service: Service, caplog: pytest.LogCaptureFixture, ordered: bool
) -> None:
    """U3."""
    await put(client, "a", kind="clumsy", ordered=ordered)
    assert await eventually(lambda: traced(caplog, "batch_not_started") is ZeroDivisionError)


async def test_another_content_under_the_same_name_is_refused(client: LossyClient, service: Service) -> None:
    """B1, U3."""
    await configure(client, gate="closed")
    await put(client, "a", partitions=0)
    assert (await put(client, "a", partitions=0)).became is Queued.ALREADY_QUEUED
    with pytest.raises(BatchDiffers):
        await put(client, "a", partitions=1)
    assert (await put(client, "a", partitions=1, republish=True)).became is Queued.QUEUED


async def test_the_gate_collects_until_it_is_opened(client: LossyClient, service: Service) -> None:
    """B6."""
    await configure(client, gate="closed")
    for name in "cab":
        await put(client, name)
    assert await eventually(lambda: rested(client))
    assert await waiting(client) == ["a", "b", "c"]
    await open_gate(client, client.keyspace.table("t"))
    await open_gate(client, client.keyspace.table("t"))
    assert await eventually(lambda: drained(client))
    assert await applied(client) == ["a", "b", "c"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_batch_that_waits_for_its_next_attempt_keeps_others_waiting_no_longer(
    client: LossyClient, service: Service, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """B6, B9: nor do those end its back-off."""
    monkeypatch.setattr(pauses, "FIRST_PAUSE_S", 600.0)
    monkeypatch.setattr(pauses, "LONGEST_PAUSE_S", 600.0)
    keys = client.keyspace.table("t")
    key = keys.backlog("z") if ordered else keys.unordered(WAITING, "z")

    async def attempts() -> int:
        return decode((await client.get(key)).value, BatchRecord).attempts

    await put(client, "z", kind="clumsy", ordered=ordered)
    assert await eventually(attempts)
    for name in "ab":
        await configure(client, gate="closed" if not ordered else "open")
        await put(client, name, ordered=not ordered)
        await open_gate(client, keys)
        done = keys.unordered(DONE, name) if ordered else keys.applied(name)
        await eventually(partial(client.get, done), holds=lambda kv: kv.exists)
    assert await attempts() == 1


async def test_a_new_arrival_does_not_bypass_validation(client: LossyClient, service: Service) -> None:
    """B7."""
    keys = client.keyspace.table("t")
    await configure(client, validation=True)
    await put(client, "a")
    assert await eventually(lambda: drained(client))
    await put(client, "b")
    await put(client, "c")
    assert await eventually(lambda: rested(client))
    assert await applied(client) == ["a"]
    with refused(error=PreconditionFailed, match="not 'b'", batch="a"):
        await approve(client, keys, "b")
    await approve(client, keys, "a")
    assert await eventually(lambda: has_applied(client, ["a", "b"]))
    assert await eventually(lambda: rested(client))
    assert (await ordering(client)).awaiting == "b"
    await approve(client, keys, "")
    assert await eventually(lambda: has_applied(client, ["a", "b", "c"]))


async def test_late_batches_block_by_default(client: LossyClient, service: Service) -> None:
    """B4: until somebody decides to apply them, or to leave them out."""
    keys = client.keyspace.table("t")
    await put(client, "m")
    assert await eventually(lambda: drained(client))
    assert (await put(client, "k")).late
    await put(client, "z")
    assert await eventually(lambda: rested(client))
    assert await is_blocked_by(client, "k", "BATCH_LATE")
    assert await applied(client) == ["m"]
    await unblock(client, keys, "k", skip=False)
    assert await eventually(lambda: has_applied(client, ["m", "k", "z"]))
    await put(client, "b")
    await unblock(client, keys, "b", skip=True)
    assert await eventually(lambda: drained(client))
    kv = await client.get(keys.applied("b"))
    assert decode(kv.value, AppliedRecord).outcome == "skipped"
    assert (await ordering(client)).last == "z"


@pytest.mark.parametrize(("policy", "is_applied"), [("apply", True), ("reject", False)])
async def test_late_batches_go_by_the_policy(
    client: LossyClient, service: Service, policy: str, is_applied: bool
) -> None:
    """B4."""
    await configure(client, late=policy)
    await put(client, "m")
    assert await eventually(lambda: drained(client))
    if is_applied:
        await put(client, "k")
        assert await eventually(lambda: has_applied(client, ["m", "k"]))
    else:
        with pytest.raises(BatchLate):
            await put(client, "k")
        assert await waiting(client) == []


async def test_several_batches_go_together_where_the_table_allows_it(
    client: LossyClient, service: Service
) -> None:
    """B14."""
    await configure(client, gate="closed", together=3)
    for name in "abcde":
        await put(client, name)
    await open_gate(client, client.keyspace.table("t"))
    assert await eventually(lambda: drained(client))
    assert await applied(client) == list("abcde")
    kvs = [await client.get(client.keyspace.table("t").applied(name)) for name in "abcde"]
    operations = [decode(kv.value, AppliedRecord).operation for kv in kvs]
    assert operations == ["t/noop/1"] * 3 + ["t/noop/2"] * 2


@pytest.mark.parametrize("bad", ["!", "?"])
async def test_the_batch_to_blame_blocks_when_several_fail_together(
    etcd_config: EtcdConfig, client: LossyClient, bad: str
) -> None:
    """B8, B14: and no other, whether planning failed or publishing; what comes before it is applied."""
    async with serving(etcd_config, operations=("support.types.probes:Letters",)) as service:
        await service.create_table("t")
        await configure(client, gate="closed", together=5)
        keys = client.keyspace.table("t")
        for name in "abcde":
            letter = bad if name == "c" else name
            await put(client, name, kind="letters", letters=letter)
        await open_gate(client, keys)

        async def blocked() -> str:
            block = (await ordering(client)).blocked
            return block.batch if block is not None else ""

        assert await eventually(blocked) == "c"
        assert await applied(client) == ["a", "b"]
        await unblock(client, keys, "c", skip=True)
        assert await eventually(lambda: drained(client))
        assert await applied(client) == list("abcde")


async def test_several_that_may_be_in_the_table_are_not_tried_one_by_one(client: LossyClient) -> None:
    """B8, B14: whatever the error of their operation."""
    keys = client.keyspace.table("t")
    arg = OperationArg(table="t", type="noop", instance=1, batches=["a", "b"])
    running = msgspec.structs.replace(record_of(), operation=str(arg.id))
    puts = [Put(keys.backlog(name), encode(running)) for name in arg.batches]
    ordered = Put(keys.ordering, encode(OrderingRecord(running=str(arg.id))))
    await client.txn(Txn(then=(*puts, ordered)))
    failure = BatchFailure("HEAD_CONFLICT", "it has lost", in_doubt=True)
    await client.txn(await share_of(client, keys, arg, failure=failure, now=1.0))
    assert await is_blocked_by(client, "a", "HEAD_CONFLICT")


async def test_another_leader_goes_on(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """B10: nobody has to publish anything again."""
    async with serving(etcd_config) as service:
        await service.create_table("t")
        await configure(client, gate="closed")
        for name in "abc":
            await put(client, name)
        await open_gate(client, client.keyspace.table("t"))
    async with serving(etcd_config):
        assert await eventually(lambda: has_applied(client, ["a", "b", "c"]))
        assert await eventually(lambda: nothing_left(client))


async def test_a_failed_batch_keeps_its_place_and_blocks(client: LossyClient, service: Service) -> None:
    """B8, B9: an error that no attempt can pass counts at once."""
    await put(client, "a", partitions=1)
    await put(client, "b", partitions=1)
    await started_and_marked(client, 1, error="line 3 of x.csv", code="BAD_ROW")
    assert await eventually(lambda: is_blocked_by(client, "a", "JOB_FAILED"))
    assert await waiting(client) == ["a", "b"]
    await unblock(client, client.keyspace.table("t"), "a", skip=False)
    for number in (2, 3):
        await started_and_marked(client, number)
    assert await eventually(lambda: has_applied(client, ["a", "b"]))


async def test_a_batch_that_failed_retryably_is_tried_again_and_counted_across_leaders(
    client: LossyClient, etcd_config: EtcdConfig
) -> None:
    """B9."""
    for attempt in (1, 2, 3):
        async with serving(etcd_config) as service:
            if attempt == 1:
                await service.create_table("t")
                await put(client, "a", partitions=1)
            operation = await started_and_marked(client, attempt, error="no disk", code="JOB_CRASHED")
            if attempt < 3:
                history = client.keyspace.table("t").history(operation)
                await eventually(partial(client.get, history), holds=lambda kv: kv.exists)
            else:
                assert await eventually(lambda: is_blocked_by(client, "a", "JOB_FAILED"))


async def test_a_cancelled_batch_waits_for_a_decision(client: LossyClient, service: Service) -> None:
    """B8, O19."""
    await put(client, "a", partitions=1)
    operation = OperationId("t", "noop", 1)
    assert await eventually(lambda: started(client, operation))
    await service.cancel(operation, requested_by="me")
    assert await eventually(lambda: is_blocked_by(client, "a", "CANCELLED"))


async def test_a_paused_table_applies_nothing_until_it_is_resumed(
    client: LossyClient, service: Service
) -> None:
    """B11."""
    keys = client.keyspace.table("t")
    audit = audit_put(keys, "pause", by="me", target="t", at=1.0)
    await pause_table(client, keys, PauseRecord(by="me", reason="", at=1.0), audit)
    await put(client, "a")
    assert await eventually(lambda: rested(client))
    assert await applied(client) == []
    await resume_table(client, keys, audit_put(keys, "resume", by="me", target="t", at=2.0))
    assert await eventually(lambda: has_applied(client, ["a"]))


async def test_another_operation_in_the_way_is_waited_for(client: LossyClient, service: Service) -> None:
    operation = await service.start("t", argument={"partitions": 1})
    await put(client, "a")
    await put(client, "b")
    assert await applied(client) == []
    assert await mark(client, operation, "0")
    assert await eventually(lambda: has_applied(client, ["a", "b"]))


async def started(client: LossyClient, operation: OperationId) -> bool:
    return (await client.get(client.keyspace.operation(operation).state)).exists


async def started_and_marked(client: LossyClient, number: int, **mark_as: str) -> OperationId:
    operation = OperationId("t", "noop", number)
    assert await eventually(lambda: started(client, operation))
    assert await mark(client, operation, "0", **mark_as)
    return operation


@pytest.mark.parametrize("where", ["ordered", "unordered"])
async def test_a_batch_of_a_newer_version_holds_up_only_what_must_follow_it(
    client: LossyClient, service: Service, where: str
) -> None:
    """U1, B2: those before it are applied; nothing overtakes it; the next leader may know what it is."""
    keys = client.keyspace.table("t")
    await configure(client, gate="closed")
    for name in ("a", "c"):
        await put(client, name)
    unknown = keys.backlog("b") if where == "ordered" else keys.unordered(WAITING, "b")
    newer = Put(unknown, b'{"version": 99, "type": "noop"}')
    await client.txn(Txn((), (newer, Put(keys.backlog_index, b"{}"))))
    await open_gate(client, keys)
    expected = ["a"] if where == "ordered" else ["a", "c"]
    assert await eventually(lambda: has_applied(client, expected))
    assert await eventually(lambda: leader_of(client, "t"))
    assert (await client.get(unknown)).exists
    assert not await rested(client), "a leader is still wanted"
    if where == "ordered":
        await client.delete(unknown)
        await put(client, "d")
        assert await eventually(lambda: has_applied(client, ["a", "c", "d"]))
