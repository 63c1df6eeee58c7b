"""The backlog as users meet it: through the SDK, with clear errors and a trail of who decided what."""

from __future__ import annotations

import pytest

from distop.client import AsyncClient
from distop.errors import (
    AlreadyExists,
    DistopError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    UnknownOperationType,
)
from distop.process.secret import MASK
from support.waiting import eventually


async def names(sdk: AsyncClient, page_size: int = 2) -> list[str]:
    return [batch.name async for batch in sdk.table("t").backlog(page_size=page_size)]


async def test_batches_of_any_name_are_listed_page_by_page(sdk: AsyncClient) -> None:
    """B6, U3: also of names that a table could not have."""
    await sdk.table("t").set_ordering(gate="closed")
    batches = ["_1", "_2", "a" * 500, "b" * 512]
    for batch in batches:
        await sdk.table("t").enqueue(batch, "noop", {"partitions": 0})
    assert await names(sdk, page_size=1) == batches


async def test_a_backlog_shows_readers_no_secret(sdk: AsyncClient) -> None:
    """S5."""
    await sdk.table("t").set_ordering(gate="closed")
    await sdk.table("t").enqueue("a", "noop", {"partitions": 0, "password": "hunter2"})
    [batch] = [batch async for batch in sdk.table("t").backlog()]
    assert (batch.argument["partitions"], batch.argument["password"]) == (0, MASK)


async def test_a_blocked_table_says_why_and_both_decisions_work(sdk: AsyncClient) -> None:
    """B8, U2: and the trail says who decided."""
    await sdk.table("t").enqueue("a", "noop", {"partitions": -1})

    async def blocked() -> tuple[str, str] | None:
        block = (await sdk.table("t").ordering()).blocked
        return (block.batch, block.error.code) if block is not None else None

    assert await eventually(blocked) == ("a", "INVALID_ARGUMENT")
    with pytest.raises(PreconditionFailed, match="by 'a'"):
        await sdk.table("t").skip_batch("b")
    await sdk.table("t").retry_batch("a")
    assert await eventually(blocked)
    await sdk.table("t").skip_batch("a", "not worth it")
    assert await names(sdk) == []
    trail = [(entry.action, entry.target, entry.by) async for entry in sdk.audit("t")]
    assert trail[:2] == [("backlog-skip", "a", sdk.identity), ("backlog-retry", "a", sdk.identity)]
    assert ("enqueue", "a", sdk.identity) in trail


async def test_bad_input_is_refused_with_a_stable_code(sdk: AsyncClient) -> None:
    """U3: and nothing of it is queued."""
    bad: dict[tuple[str, str, str], tuple[type[DistopError], str]] = {
        ("missing", "a", "noop"): (NotFound, "missing"),
        ("t", "", "noop"): (InvalidArgument, "."),
        ("t", "a\nb", "noop"): (InvalidArgument, "."),
        ("t", "a", "no_such_type"): (UnknownOperationType, "no_such_type"),
        ("t", "a", "per_object"): (InvalidArgument, "once per object"),
    }
    for (table, batch, type), (error, says) in bad.items():
        with pytest.raises(error, match=says):
            await sdk.table(table).enqueue(batch, type)
    for setting in ({"late": "perhaps"}, {"together": 1000}):
        with pytest.raises(InvalidArgument):
            await sdk.table("t").set_ordering(**setting)
    assert await names(sdk) == []
    await sdk.table("t").set_ordering(gate="closed")
    await sdk.table("t").enqueue("a", "noop", {"partitions": 0})
    with pytest.raises(AlreadyExists):
        await sdk.table("t").enqueue("a", "noop", {"partitions": 1})
