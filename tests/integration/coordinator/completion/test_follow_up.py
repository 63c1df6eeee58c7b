"""What the finish of an operation starts: once, with its success, planned on what it leaves."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distop.client import AsyncClient, FollowUp, OperationState
from distop.coordinator.completion.follow_up import FollowUps
from distop.errors import InvalidArgument, RunReused, UnknownOperationType
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.runs import take_operation
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    FollowUpArg,
    HistoryRecord,
    OperationArg,
    OperationOptions,
    RunnerRecord,
    WatermarkMove,
)
from distop.metastore.records.record import decode
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table
from support.services.coordinators import leadership
from support.waiting import eventually


async def arg_of(client: LossyClient, name: str) -> OperationArg:
    kv = await client.get(client.keyspace.operation(OperationId.parse(name)).arg)
    return decode(kv.value, OperationArg, kv.key)


async def started(client: LossyClient, kind: str) -> int:
    """How many operations of a type were ever started on ``t``."""
    kv = await client.get(client.keyspace.table("t").next_instance(kind))
    return int(kv.value or b"1") - 1


async def test_a_success_starts_what_follows_and_so_on(sdk: AsyncClient, client: LossyClient) -> None:
    """O23: named in the facts, in the trail, and in what follows; options and partitions are its own."""
    last = FollowUp(type="noop", argument={"partitions": 0})
    second = FollowUp(type="seer", partitions=["x", "y"], options={"max_job_attempts": 7}, then=last)
    first = await sdk.start("t", "noop", {"partitions": 1}, then=second, run="r")
    again = await sdk.start("t", "noop", {"partitions": 1}, then=second, run="r")
    assert again.name == first.name
    with pytest.raises(RunReused):
        await sdk.start("t", "noop", {"partitions": 1}, then=last, run="r")
    assert await started(client, "seer") == 0
    await mark(client, OperationId.parse(first.name), "0")
    ended = await first.wait()
    assert (ended.state, ended.facts) == (OperationState.SUCCEEDED, {"followUp": "t/seer/1"})

    following = await sdk.operation("t/seer/1").get()
    assert (following.state, following.follows) == (OperationState.RUNNING, first.name)
    assert following.started_by == first.started.started_by
    arg = await arg_of(client, following.name)
    assert (arg.partitions, arg.options) == (["x", "y"], OperationOptions(max_job_attempts=7))
    assert (await sdk.table("t").get()).running == ("t/seer/1",)
    for name in ("x", "y"):
        await mark(client, OperationId("t", "seer", 1), name)
    assert (await sdk.operation("t/seer/1").wait()).facts == {"followUp": "t/noop/2"}
    assert (await sdk.operation("t/noop/2").wait()).follows == "t/seer/1"
    trail = [(entry.action, entry.target, entry.reason) async for entry in sdk.audit("t")]
    assert trail[:2] == [("start", "t/noop/2", "follows t/seer/1"), ("start", "t/seer/1", "follows t/noop/1")]


async def test_nothing_follows_a_failure_or_a_cancellation(sdk: AsyncClient, client: LossyClient) -> None:
    """O23"""
    then = FollowUp(type="noop")
    failed = await sdk.start("t", "friend", {"partitions": 1}, then=then)
    await mark(client, OperationId.parse(failed.name), "0", error="full")
    assert (await failed.wait()).state is OperationState.FAILED
    cancelled = await sdk.start("t", "friend", {"partitions": 1}, then=then)
    await cancelled.cancel()
    assert (await cancelled.wait()).state is OperationState.CANCELLED
    assert await started(client, "noop") == 0


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (FollowUp(type="seer", argument={"refuse": True}), "PRECONDITION_FAILED: it does not want to"),
        (FollowUp(type="clumsy"), "CRASHED: ZeroDivisionError: a defect of the operation type"),
        (FollowUp(type="seer", argument={"big": "x" * 1_400_000}), "ARGUMENT_TOO_LARGE: "),
    ],
)
async def test_a_follow_up_that_cannot_be_started_does_not_hold_up_the_first_operation(
    sdk: AsyncClient, client: LossyClient, then: FollowUp, said: str
) -> None:
    """O23: the facts say why; nothing of it is in etcd."""
    first = await sdk.start("t", "noop", {"partitions": 0}, then=then)
    ended = await first.wait()
    assert ended.state is OperationState.SUCCEEDED
    assert ended.facts["followUpError"].startswith(said)
    assert await started(client, then.type) == 0
    assert (await sdk.table("t").get()).running == ()


async def test_a_follow_up_on_a_table_paused_meanwhile_is_held(
    sdk: AsyncClient, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O21, O23: it is not lost, and goes on when the table is resumed."""
    prepare = FollowUps.prepare

    async def pauses(*given: Any) -> Any:
        if given[2].then is not None:
            await sdk.table("t").pause()
        return await prepare(*given)

    monkeypatch.setattr(FollowUps, "prepare", pauses)
    argument = {"partitions": 0, "log": str(tmp_path / "log")}
    first = await sdk.start("t", "hooked", argument, then=FollowUp(type="noop", partitions=["x"]))
    assert (await first.wait()).facts == {"followUp": "t/noop/1"}
    keys = client.keyspace.operation(OperationId.parse("t/noop/1"))
    async with LeaseSession(client, 10) as session:
        assert await take_operation(client, keys, RunnerRecord(member="m"), session.lease_id) is None
        await sdk.table("t").resume()
        assert await take_operation(client, keys, RunnerRecord(member="m"), session.lease_id) is not None


async def test_a_follow_up_is_given_the_other_active_operations(
    sdk: AsyncClient, client: LossyClient
) -> None:
    """O23, P13: an operation that removes files must know those that write some."""
    other = await sdk.start("t", "appending", {"partitions": 1})
    first = await sdk.start("t", "reading", {"partitions": 0}, then=FollowUp(type="onlooker"))
    assert (await first.wait()).facts == {"followUp": "t/onlooker/1"}
    assert other.name in (await arg_of(client, "t/onlooker/1")).argument["active"]


async def test_an_operation_in_the_way_is_named(sdk: AsyncClient) -> None:
    """O2, O23: an operation that is compatible with the first one may be incompatible with its follow-up."""
    await sdk.start("t", "friendly", {"partitions": 1})
    first = await sdk.start("t", "friend", {"partitions": 0}, then=FollowUp(type="seer"))
    error = (await first.wait()).facts["followUpError"]
    assert error.startswith("INCOMPATIBLE_OPERATION: seer cannot start while t/friendly/1 is running")


async def test_a_follow_up_is_checked_when_the_first_operation_starts(sdk: AsyncClient) -> None:
    """O4, O23"""
    with pytest.raises(UnknownOperationType) as unknown:
        await sdk.start("t", "noop", then=FollowUp(type="nothing"))
    assert unknown.value.details["field"] == "then.type"
    with pytest.raises(InvalidArgument, match="name one"):
        await sdk.start("t", "noop", then=FollowUp(type="per_object"))
    deep: FollowUp | None = None
    for _ in range(9):
        deep = FollowUp(type="noop", then=deep)
    with pytest.raises(InvalidArgument, match="nested more than 8 deep"):
        await sdk.start("t", "noop", then=deep)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_a_finish_whose_reply_is_lost_starts_one_that_saw_what_it_published(
    client: LossyClient, fault: Fault
) -> None:
    """O23, O7: and a finish that loses a race for the table plans it again."""
    await make_table(client)
    table = client.keyspace.table("t")
    async with leadership(client):
        for number in range(1, 4):
            history = table.history(OperationId("t", "noop", number))
            client.fail(fault, fault, when=puts(history))
            operation = await begin(
                client,
                partition_count=1,
                watermarks={"s": {str(number): WatermarkMove(after="1")}},
                then=FollowUpArg(type="seer"),
            )
            await mark(client, operation, "0")
            following = OperationId("t", "seer", number)
            state = table.operation(following).state
            await eventually(partial(client.get, state), holds=lambda kv: kv.exists)
            await eventually(lambda: client.spent)
            record = decode((await client.get(history)).value, HistoryRecord)
            assert record.facts == {"followUp": str(following)}
            arg = await arg_of(client, str(following))
            assert arg.argument["watermarks"] == {"s": {str(seen): "1" for seen in range(1, number + 1)}}
            assert await started(client, "seer") == number
            await mark(client, following, "0")
            ended = table.history(following)
            await eventually(partial(client.get, ended), holds=lambda kv: kv.exists)
    assert not (await client.get(table.run_ops)).exists
