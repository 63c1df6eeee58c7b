"""Batches without an order: applied at once, each once; one that fails is counted and reported."""

import time
from dataclasses import dataclass
from functools import partial

import pytest

from distop.client import AsyncClient, OperationState
from distop.coordinator.backlog import reading
from distop.errors import BatchDiffers, NotFound, PreconditionFailed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Txn
from distop.metastore.operations.retention import prune
from distop.metastore.records.names import OperationId
from support.etcd.jobs import mark
from support.services.coordinators import config_of, running
from support.tables.nowhere import nowhere
from support.waiting import eventually


@dataclass
class Yard:
    """The table ``t``, and who publishes batches without an order."""

    sdk: AsyncClient

    async def put(self, batch: str, kind: str = "friend", republish: bool = False, **argument: object) -> str:
        answer = await self.sdk.table("t").enqueue(
            batch, kind, argument or {"partitions": 0}, ordered=False, republish=republish
        )
        return answer.became

    async def done(self) -> dict[str, str]:
        listed = self.sdk.table("t").backlog(applied=True, ordered=False)
        return {batch.name: batch.state async for batch in listed}

    async def left(self) -> dict[str, str]:
        return {batch.name: batch.state async for batch in self.sdk.table("t").backlog(ordered=False)}

    async def has_done(self, **batches: str) -> bool:
        return await self.done() == batches and not await self.left()

    async def has_failed(self, *batches: str) -> bool:
        return {block.batch for block in (await self.sdk.table("t").ordering()).failed} == set(batches)

    async def runs(self, *batches: str) -> bool:
        return await self.left() == dict.fromkeys(batches, "running")

    async def operation(self, batch: str) -> str:
        return {one.name: one.operation async for one in self.sdk.table("t").backlog(ordered=False)}[batch]


@pytest.fixture
def yard(sdk: AsyncClient) -> Yard:
    return Yard(sdk)


async def test_unordered_batches_are_applied_at_once_and_once(yard: Yard) -> None:
    """B13, B1: neither gate nor approval holds them; names are whatever they are."""
    await yard.sdk.table("t").set_ordering(gate="closed", validation=True)
    names = ["2024/02", "b.arg", "a.state", "é"]
    for name in names:
        assert await yard.put(name) == "queued"
    assert await eventually(lambda: yard.has_done(**dict.fromkeys(names, "applied")))
    for name in names:
        assert await yard.put(name) == "already applied"
        assert await yard.put(name, partitions=0, more=1) == "already applied"
    assert await yard.put("é", republish=True) == "queued"
    assert await eventually(lambda: yard.has_done(**dict.fromkeys(names, "applied")))
    assert len([one async for one in yard.sdk.operations("t")]) == 5


async def test_an_unordered_batch_that_is_applied_holds_up_no_other_and_keeps_its_content(
    yard: Yard, client: EtcdClient
) -> None:
    """B13: types that name an object run side by side."""
    for name in "ab":
        await yard.put(name, "per_object", partitions=1)
    assert await eventually(lambda: yard.runs("a", "b"))
    assert await yard.put("a", "per_object", partitions=1) == "already queued"
    with pytest.raises(BatchDiffers, match=r"being applied.*give its new content to distop batch replace"):
        await yard.put("a", "per_object", partitions=2)
    with pytest.raises(PreconditionFailed, match="distop operation cancel t/per_object/"):
        await yard.sdk.table("t").remove_batch("a")
    for name in "ab":
        assert await mark(client, OperationId.parse(await yard.operation(name)), "0")
    assert await eventually(lambda: yard.has_done(a="applied", b="applied"))


async def test_an_unordered_batch_that_can_start_is_not_hidden_by_many_that_cannot(
    yard: Yard, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B9, B13: nor when it is tried again. The others start when nothing is in their way any more."""
    monkeypatch.setattr(reading, "MAX_TOGETHER", 5)
    await yard.sdk.start("t", "appending", {"partitions": 1})
    await yard.sdk.table("t").pause()
    others = [f"a{number}" for number in range(12)]
    for name in others:
        await yard.put(name, "replacing")
    await yard.put("z", "reading", partitions=1)
    await yard.sdk.table("t").resume()

    async def last_runs(attempt: int) -> bool:
        runs = await yard.left() == {**dict.fromkeys(others, "waiting"), "z": "running"}
        return runs and await yard.operation("z") == f"t/reading/{attempt}"

    assert await eventually(lambda: last_runs(1))
    assert await mark(client, OperationId("t", "reading", 1), "0", error="no disk", code="JOB_CRASHED")
    assert await eventually(lambda: last_runs(2))
    assert await mark(client, OperationId("t", "reading", 2), "0")
    assert await mark(client, OperationId("t", "appending", 1), "0")
    assert await eventually(lambda: yard.has_done(**dict.fromkeys([*others, "z"], "applied")), 90)


async def test_an_unordered_batch_that_fails_for_good_waits_for_a_decision(yard: Yard) -> None:
    """B8, B9, B13, U1: it keeps no other; retry, skip and another content all work."""
    for name in ("a", "b", "c"):
        await yard.put(name, "letters", letters="!")
    await yard.put("z", "letters", letters="z")
    assert await eventually(lambda: yard.has_failed("a", "b", "c"))
    await eventually(yard.left, holds=lambda found: found == {"a": "failed", "b": "failed", "c": "failed"})
    assert await yard.done() == {"z": "applied"}
    said = (await yard.sdk.table("t").why()).sentence
    assert "batch a has failed, and 2 other batches: INVALID_ARGUMENT: no letter: !" in said
    assert "distop batch retry t a, or distop batch skip t a" in said
    found = [one for one in (await yard.sdk.diagnose("t")).findings if one.code == "BATCH_FAILED"]
    assert [one.sentence.split()[1] for one in found] == ["'a'", "'b'", "'c'"]
    assert await yard.put("a", "letters", letters="!") == "failed before"
    await yard.sdk.table("t").skip_batch("a")
    await yard.sdk.table("t").retry_batch("b")
    assert await yard.put("c", "letters", letters="c") == "queued"
    assert await eventually(lambda: yard.has_failed("b"))
    await yard.sdk.table("t").remove_batch("b")
    assert await eventually(lambda: yard.has_done(a="skipped", c="applied", z="applied"))
    assert await yard.put("a", "letters", letters="!") == "skipped before"
    assert not (await yard.sdk.table("t").ordering()).failed


async def test_an_unordered_batch_that_failed_retryably_is_tried_again_across_leaders(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """B9, B10: and an operation that failed is not the end of its batch."""
    for attempt in (1, 2, 3):
        async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
            yard = Yard(sdk)
            if attempt == 1:
                await sdk.create_table("t", nowhere())
                await yard.put("a", partitions=1)
            operation = OperationId("t", "friend", attempt)
            state = client.keyspace.operation(operation).state
            await eventually(partial(client.get, state), holds=lambda kv: kv.exists)
            assert await mark(client, operation, "0", error="the disk is away", code="JOB_CRASHED")
            if attempt < 3:
                assert (await sdk.operation(str(operation)).wait(timeout_s=30)).state is OperationState.FAILED
                continue
            assert await eventually(partial(yard.has_failed, "a"))
            [batch] = [one async for one in sdk.table("t").backlog(ordered=False)]
            assert (batch.attempts, batch.state) == (3, "failed")
            [block] = (await sdk.table("t").ordering()).failed
            assert (block.error.code, block.operation) == ("JOB_FAILED", "t/friend/3")


async def test_a_cancelled_one_waits_for_a_decision(yard: Yard, client: EtcdClient) -> None:
    """B8, O19."""
    await yard.put("a", partitions=1)
    assert await eventually(lambda: yard.runs("a"))
    await yard.sdk.operation("t/friend/1").cancel()
    assert await eventually(lambda: yard.has_failed("a"))
    assert (await yard.sdk.operation("t/friend/1").get()).state is OperationState.CANCELLED
    await yard.sdk.table("t").retry_batch("a")
    assert await eventually(lambda: yard.runs("a"))
    assert await mark(client, OperationId("t", "friend", 2), "0")
    assert await eventually(lambda: yard.has_done(a="applied"))


async def test_the_doctor_finds_an_unordered_batch_whose_operation_was_removed(
    yard: Yard, client: EtcdClient
) -> None:
    """U1, B10."""
    await yard.sdk.table("t").pause()
    await yard.put("a")
    keys = client.keyspace.table("t")
    waits = await client.get(keys.unordered("waiting", "a"))
    gone = waits.value.replace(b'"type"', b'"operation":"t/friend/9","type"')
    await client.put(keys.unordered("running", "a"), gone)
    await client.txn(Txn(then=(DeleteRange(waits.key),)))
    found = {one.code for one in (await yard.sdk.diagnose("t")).findings}
    assert "BATCH_WITHOUT_FLIGHT" in found
    await yard.sdk.diagnose("t", fix=True)
    await yard.sdk.table("t").resume()
    assert await eventually(lambda: yard.has_done(a="applied"))


async def test_those_applied_last_are_remembered(yard: Yard, client: EtcdClient) -> None:
    """B13, B15: whatever they are called."""
    await yard.sdk.table("t").set_ordering(remember=2)
    applied = dict[str, str]()
    for name in ("z", "y", "a"):
        applied[name] = "applied"
        await yard.put(name)
        assert await eventually(lambda: yard.has_done(**applied))
    await prune(client, client.keyspace.table("t"), now=time.time())
    assert await yard.done() == {"y": "applied", "a": "applied"}


async def test_a_batch_that_waits_is_taken_back_and_one_that_is_done_is_listed(yard: Yard) -> None:
    """B1, B15: in order or without."""
    await yard.sdk.table("t").set_ordering(gate="closed")
    for name in ("a", "b"):
        await yard.sdk.table("t").enqueue(name, "noop", {"partitions": 0})
    await yard.sdk.table("t").remove_batch("a", "published by mistake")
    assert [batch.name async for batch in yard.sdk.table("t").backlog()] == ["b"]
    with pytest.raises(NotFound):
        await yard.sdk.table("t").remove_batch("a")
    await yard.sdk.table("t").open_gate()

    async def applied() -> list[str]:
        return [batch.name async for batch in yard.sdk.table("t").backlog(applied=True) if batch.finished_at]

    assert await eventually(applied, holds=lambda names: names == ["b"])
    with pytest.raises(NotFound):
        await yard.sdk.table("t").remove_batch("b")
    # One that blocks the table goes, and with it what it blocked.
    await yard.sdk.table("t").enqueue("c", "noop", {"partitions": -1})
    await yard.sdk.table("t").enqueue("d", "noop", {"partitions": 0})
    await eventually(lambda: yard.sdk.table("t").ordering(), holds=lambda found: found.blocked)
    await yard.sdk.table("t").remove_batch("c")
    assert await eventually(applied, holds=lambda names: names == ["b", "d"])
    assert [entry.target async for entry in yard.sdk.audit("t") if entry.action == "backlog-remove"] == [
        "c",
        "a",
    ]
