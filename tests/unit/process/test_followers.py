"""Followers are started again when they fail, and only then."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from distop.process.loop import kept_running

Follower = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


async def fails_in_a_group(failing: asyncio.Event) -> None:
    async def fails() -> None:
        await failing.wait()
        raise ZeroDivisionError

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())


async def fails_when_cancelled(failing: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ZeroDivisionError


@pytest.mark.parametrize("steps_between", range(5))
@pytest.mark.parametrize("follower", [fails_in_a_group, fails_when_cancelled])
async def test_a_follower_that_fails_while_it_is_cancelled_is_not_started_again(
    follower: Follower, steps_between: int
) -> None:
    """A coordinator that has lost its lease waits for the end of its followers, and would wait for ever."""
    failing = asyncio.Event()
    keeping = asyncio.create_task(kept_running("test", lambda: follower(failing)))
    for _ in range(5):
        await asyncio.sleep(0)  # the follower stands where it waits
    failing.set()
    for _ in range(steps_between):
        await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait({keeping}, timeout=1.0)
    try:
        assert keeping.cancelled()
    finally:
        keeping.cancel()
