"""Runs: what a repeat gets, what is started again, and when a run is forgotten."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from distop.client import AsyncClient, Operation, OperationState
from distop.errors import RunReused
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations import starting
from distop.metastore.operations.starting import BRIEFLY_S, FENCE_S, REMEMBER_S, forget_requests
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RequestRecord
from distop.metastore.records.record import decode
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table
from support.services.coordinators import Service, config_of, running
from support.tables.nowhere import nowhere


@pytest_asyncio.fixture
async def address(etcd_config: EtcdConfig) -> AsyncIterator[str]:
    """Of a coordinator in this process."""
    async with running(config_of(etcd_config)) as coordinator:
        yield coordinator.address


@pytest_asyncio.fixture
async def sdk(address: str) -> AsyncIterator[AsyncClient]:
    """A client of it, and a table ``t``."""
    async with AsyncClient(address, timeout_s=60) as client:
        await client.create_table("t", nowhere())
        yield client


async def failed(sdk: AsyncClient, client: LossyClient, run: str = "r") -> Operation:
    """An operation that has failed."""
    started = await sdk.start("t", "noop", {"partitions": 1}, run=run)
    await mark(client, OperationId.parse(started.name), "0", error="no room")
    ended = await started.wait()
    assert ended.state is OperationState.FAILED
    return ended


async def request_of(client: LossyClient, run: str) -> RequestRecord:
    kv = await client.get(client.keyspace.table("t").request(run))
    return decode(kv.value, RequestRecord, kv.key)


async def expiries(client: LossyClient) -> int:
    listing = await client.scan(client.keyspace.table("t").request_expiry_prefix, keys_only=True)
    return len(listing.kvs)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_request_that_failed_starts_a_new_instance_of_its_run(
    sdk: AsyncClient, client: LossyClient, cancelled: bool
) -> None:
    """O7: a new instance, and the reply names the failed one; a success stays the answer."""
    if cancelled:
        started = await sdk.start("t", "noop", {"partitions": 1}, run="r")
        first = await started.cancel()
        assert (await started.wait()).state is OperationState.CANCELLED
    else:
        first = await failed(sdk, client)
    again = await sdk.start("t", "noop", {"partitions": 1}, run="r")
    assert (again.name, again.started.retry_of, again.started.found) == ("t/noop/2", first.name, False)
    running_ = await sdk.start("t", "noop", {"partitions": 1}, run="r")
    assert (running_.name, running_.started.found) == (again.name, True)
    await mark(client, OperationId.parse(again.name), "0")
    ended = await again.wait()
    assert (ended.state, ended.retry_of) == (OperationState.SUCCEEDED, first.name)
    found = await sdk.start("t", "noop", {"partitions": 1}, run="r")
    assert (found.name, found.started.state, found.started.found) == (
        again.name,
        OperationState.SUCCEEDED,
        True,
    )
    trail = [(entry.target, entry.reason) async for entry in sdk.audit("t") if entry.action == "start"]
    assert trail == [(again.name, f"again: {first.name}"), (first.name, "")]
    assert await expiries(client) == 1


async def test_a_request_that_failed_may_be_corrected_in_its_run(
    sdk: AsyncClient, client: LossyClient
) -> None:
    """O7: while it runs, and once it has succeeded, another body is an error."""
    first = await failed(sdk, client)
    again = await sdk.start("t", "noop", {"partitions": 2}, run="r")
    assert again.started.retry_of == first.name
    with pytest.raises(RunReused):
        await sdk.start("t", "noop", {"partitions": 1}, run="r")
    for partition in ("0", "1"):
        await mark(client, OperationId.parse(again.name), partition)
    await again.wait()
    with pytest.raises(RunReused):
        await sdk.start("t", "noop", {"partitions": 1}, run="r")


async def test_repeats_of_one_call_have_one_answer(sdk: AsyncClient, address: str) -> None:
    """O7: a copy that comes late starts nothing again; nor does one of a call without a name."""
    async with Service(address) as service:

        async def send(run: str, call: str) -> pb.Operation:
            named: dict[str, Any] = {"table": "t", "type": "noop", "run": run, "call_id": call}
            request = pb.StartOperationRequest(argument_json='{"partitions": 1}', **named)
            answer: pb.Operation = await service.operations.StartOperation(request, timeout=10)
            return answer

        for run, call, found in (("x", "c", False), ("y", "", True)):
            first = await send(run, call)
            await sdk.operation(first.name).cancel()
            await sdk.operation(first.name).wait()
            late = await send(run, call)
            assert (late.name, late.state, late.found) == (first.name, pb.CANCELLED, found)


async def test_a_run_that_is_to_be_used_once_stays_used(sdk: AsyncClient) -> None:
    """P8: who gives a write up counts on it."""
    started = await sdk.start("t", "noop", {"partitions": 1}, run="r", once=True)
    await started.cancel()
    await started.wait()
    again = await sdk.start("t", "noop", {"partitions": 1}, run="r", once=True)
    assert (again.name, again.started.found) == (started.name, True)
    with pytest.raises(RunReused):
        await sdk.start("t", "noop", {"partitions": 2}, run="r", once=True)


@pytest.mark.parametrize("firsts", [True, False])
async def test_once_holds_for_the_run_whoever_says_so(sdk: AsyncClient, firsts: bool) -> None:
    """O7: also if the call that was cancelled, or the one that comes after it, has not said it."""
    started = await sdk.start("t", "noop", {"partitions": 1}, run="r", once=firsts)
    await started.cancel()
    await started.wait()
    again = await sdk.start("t", "noop", {"partitions": 1}, run="r", once=not firsts)
    assert (again.name, again.started.found, again.started.state) == (
        started.name,
        True,
        OperationState.CANCELLED,
    )


async def test_an_answer_outlives_the_history(sdk: AsyncClient, client: LossyClient) -> None:
    """O7: requests are remembered apart from it."""
    started = await sdk.start("t", "noop", {"partitions": 0}, run="r")
    await started.wait()
    await client.delete(client.keyspace.table("t").history(OperationId.parse(started.name)))
    found = await sdk.start("t", "noop", {"partitions": 0}, run="r")
    assert (found.name, found.started.state, found.started.found) == (
        started.name,
        OperationState.SUCCEEDED,
        True,
    )
    assert found.started.started_at is not None


async def test_many_who_start_it_again_start_one(sdk: AsyncClient, client: LossyClient) -> None:
    """O7: the first one starts it; the others find it."""
    first = await failed(sdk, client)
    starts = (sdk.start("t", "noop", {"partitions": 1}, run="r") for _ in range(10))
    answers = await asyncio.gather(*starts)
    assert {answer.name for answer in answers} == {"t/noop/2"}
    assert sorted(answer.started.found for answer in answers) == [False] + 9 * [True]
    assert {answer.started.retry_of for answer in answers} == {first.name}


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_lost_reply_starts_nothing_twice(sdk: AsyncClient, client: LossyClient, fault: Fault) -> None:
    """O7"""
    await failed(sdk, client)
    keys = client.keyspace.table("t")
    client.fail(fault, when=puts(keys.request("r")))
    operation = await begin(client, run="r", call="other", argument={"partitions": 1})
    assert operation == OperationId("t", "noop", 2)
    assert int((await client.get(keys.next_instance("noop"))).value) == 3


async def test_how_long_an_id_is_remembered(etcd_config: EtcdConfig, client: LossyClient) -> None:
    """As is configured if its caller has chosen it; one made for a call, as long as the call may last."""
    config = config_of(etcd_config, remember_runs_s=5000.0)
    async with running(config) as coordinator, AsyncClient(coordinator.address) as sdk:
        await sdk.create_table("t", nowhere())
        for number, (named, kept) in enumerate([("", BRIEFLY_S), ("r", 5000.0)]):
            started = await sdk.start("t", "noop", {"partitions": number}, run=named or None)
            record = await request_of(client, started.started.run)
            assert record.forget_at == pytest.approx(record.at + kept)
            await started.cancel()
            await started.wait()
        used = await sdk.start("t", "noop", {"partitions": 0}, run="once", once=True)
        record = await request_of(client, used.started.run)
        assert record.forget_at == pytest.approx(record.at + FENCE_S)
    assert BRIEFLY_S < FENCE_S < REMEMBER_S


async def test_ids_are_forgotten_after_a_time(client: LossyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """O7: the oldest first, so many at a time, without a look at those that are kept."""
    await make_table(client)
    keys = client.keyspace.table("t")
    for number in range(10):
        await begin(client, kind="noop", object=f"o{number}", run=f"a.b {number}", call="c")
    begun = await request_of(client, "a.b 0")
    assert await forget_requests(client, keys, begun.forget_at) == 0
    monkeypatch.setattr(starting, "FORGET_MOST", 4)
    monkeypatch.setattr(starting, "_BITE", 3)
    assert await expiries(client) == 10
    for left in (6, 2, 0):
        client.fail(Fault.LOST_REPLY)
        assert await forget_requests(client, keys, begun.forget_at + 1.0) == min(4, left + 4 if left else 2)
        assert await expiries(client) == left
        listing = await client.scan(keys.prefix + b"request.", keys_only=True)
        assert len(listing.kvs) == left
