"""The backlog as users meet it: through the SDK, with clear errors and a trail of who decided what."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from distop.client import AsyncClient
from distop.errors import AlreadyExists, DistopError, InvalidArgument, NotFound, PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from distop.proto.secret import MASK
from support.services.coordinators import config_of, running
from support.tables.nowhere import nowhere
from support.waiting import eventually


@pytest_asyncio.fixture
async def sdk(etcd_config: EtcdConfig) -> AsyncIterator[AsyncClient]:
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as client:
        await client.create_table("t", nowhere())
        yield client


async def names(sdk: AsyncClient, page_size: int = 2) -> list[str]:
    return [batch.name async for batch in sdk.backlog("t", page_size=page_size)]


async def test_a_table_is_fed_in_order_and_says_how_far_it_is(sdk: AsyncClient) -> None:
    """B1, B2, B6."""
    ordering = await sdk.set_ordering("t", gate="closed", together=2)
    assert (ordering.gate, ordering.together, ordering.late) == ("closed", 2, "block")
    for batch in ("2", "10", "1"):
        answer = await sdk.enqueue("t", batch, "noop", {"partitions": 0})
        assert (answer.became, answer.late) == ("queued", False)
    assert (await sdk.enqueue("t", "2", "noop", {"partitions": 0})).became == "already queued"
    assert await names(sdk) == ["1", "10", "2"]
    await sdk.open_gate("t")
    await eventually(lambda: names(sdk), holds=lambda found: not found)
    assert (await sdk.ordering("t")).last == "2"
    assert (await sdk.enqueue("t", "2", "noop", {"partitions": 0})).became == "already applied"
    (line,) = [operation async for operation in sdk.list("t")]
    assert (line.name, line.facts["series"]["operations"]) == ("t/noop/2", 2)


async def test_batches_of_any_name_are_listed_page_by_page(sdk: AsyncClient) -> None:
    """B6, U3: also of names that a table could not have."""
    await sdk.set_ordering("t", gate="closed")
    batches = ["_1", "_2", "a" * 500, "b" * 512]
    for batch in batches:
        await sdk.enqueue("t", batch, "noop", {"partitions": 0})
    assert await names(sdk, page_size=1) == batches


async def test_whoever_may_look_sees_no_secret(sdk: AsyncClient) -> None:
    """S5."""
    await sdk.set_ordering("t", gate="closed")
    await sdk.enqueue("t", "a", "noop", {"partitions": 0, "password": "hunter2"})
    [batch] = [batch async for batch in sdk.backlog("t")]
    assert (batch.argument["partitions"], batch.argument["password"]) == (0, MASK)


async def test_a_blocked_table_says_why_and_both_decisions_work(sdk: AsyncClient) -> None:
    """B8, U2: and the trail says who decided."""
    await sdk.enqueue("t", "a", "noop", {"partitions": -1})

    async def blocked() -> bool:
        return (await sdk.ordering("t")).blocked is not None

    assert await eventually(blocked)
    block = (await sdk.ordering("t")).blocked
    assert block is not None
    assert (block.batch, block.error.code) == ("a", "INVALID_ARGUMENT")
    with pytest.raises(PreconditionFailed, match="by 'a'"):
        await sdk.skip_batch("t", "b")
    await sdk.retry_batch("t", "a")
    assert await eventually(blocked)
    await sdk.skip_batch("t", "a", "not worth it")
    assert await names(sdk) == []
    trail = [(entry.action, entry.target, entry.by) async for entry in sdk.audit("t")]
    assert trail[:2] == [("backlog-skip", "a", sdk.identity), ("backlog-retry", "a", sdk.identity)]
    assert ("enqueue", "a", sdk.identity) in trail


async def test_bad_input_is_refused_with_a_stable_code(sdk: AsyncClient) -> None:
    """U3: and nothing of it is queued."""
    with pytest.raises(NotFound):
        await sdk.enqueue("missing", "a", "noop")
    with pytest.raises(InvalidArgument):
        await sdk.enqueue("t", "", "noop")
    with pytest.raises(InvalidArgument):
        await sdk.enqueue("t", "a\nb", "noop")
    with pytest.raises(DistopError) as unknown:
        await sdk.enqueue("t", "a", "no_such_type")
    assert unknown.value.code == "UNKNOWN_OPERATION_TYPE"
    with pytest.raises(InvalidArgument, match="once per object"):
        await sdk.enqueue("t", "a", "per_object")
    with pytest.raises(InvalidArgument):
        await sdk.set_ordering("t", late="perhaps")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        await sdk.set_ordering("t", together=1000)
    assert await names(sdk) == []
    await sdk.set_ordering("t", gate="closed")
    await sdk.enqueue("t", "a", "noop", {"partitions": 0})
    with pytest.raises(AlreadyExists):
        await sdk.enqueue("t", "a", "noop", {"partitions": 1})


async def test_approval_is_asked_for_after_each_batch(sdk: AsyncClient) -> None:
    """B7."""
    await sdk.set_ordering("t", validation=True)
    await sdk.enqueue("t", "a", "noop", {"partitions": 0})
    await sdk.enqueue("t", "b", "noop", {"partitions": 0})

    async def waits_for(batch: str) -> bool:
        return (await sdk.ordering("t")).awaiting == batch

    assert await eventually(lambda: waits_for("a"))
    assert await names(sdk) == ["b"]
    await sdk.approve("t", "a")
    assert await eventually(lambda: waits_for("b"))
    assert await names(sdk) == []
