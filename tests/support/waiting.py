"""Waiting for a condition, in place of sleeping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PATIENCE = 3.0
"""How much slower than expected a machine may be: bounds are there to say what hangs, not what is fast."""


@overload
async def eventually(
    condition: Callable[..., Awaitable[T | None]], timeout_s: float = ..., *, every_s: float = ...
) -> T: ...


@overload
async def eventually(
    condition: Callable[..., T | None], timeout_s: float = ..., *, every_s: float = ...
) -> T: ...


async def eventually(condition: Callable[..., Any], timeout_s: float = 10.0, *, every_s: float = 0.01) -> Any:
    """The first true value of ``condition`` (a function or a coroutine function).

    Raises :class:`AssertionError` with its last value after ``timeout_s`` seconds, times ``PATIENCE``.
    """
    loop = asyncio.get_running_loop()
    timeout_s *= PATIENCE
    deadline = loop.time() + timeout_s
    while True:
        value: Any = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert loop.time() < deadline, (
            f"not within {timeout_s:g} s: {inspect.getsource(condition).strip()}: {value!r}"
        )
        await asyncio.sleep(every_s)
