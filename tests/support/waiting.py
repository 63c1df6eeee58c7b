"""Waiting for a condition, in place of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

HANG_S = 60.0
"""What has not come true by then never will: deadlines end what hangs, they do not measure a machine."""

PATIENCE = 3.0
"""How much slower than expected a machine may be, for what asserts an upper bound."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.1
EASING = 0.05
"""Part of the time waited already that a pause may take. Looking a hundred times a second for a minute takes
from those that are waited for what they need."""


@overload
async def eventually(
    condition: Callable[..., Awaitable[T | None]],
    timeout_s: float = ...,
    *,
    every_s: float | None = ...,
    holds: Callable[[T], object] = ...,
) -> T: ...


@overload
async def eventually(
    condition: Callable[..., T | None],
    timeout_s: float = ...,
    *,
    every_s: float | None = ...,
    holds: Callable[[T], object] = ...,
) -> T: ...


async def eventually(
    condition: Callable[..., Any],
    timeout_s: float = HANG_S,
    *,
    every_s: float | None = None,
    holds: Callable[[Any], object] = bool,
) -> Any:
    """The first value of ``condition`` (a function or a coroutine function) that is true, or ``holds``.

    Looks every ``every_s`` seconds; by default at once in the beginning, and less and less often. Raises
    :class:`AssertionError` with its last value after ``timeout_s`` seconds.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        value: Any = condition()
        if inspect.isawaitable(value):
            value = await value
        if holds(value):
            return value
        waited = loop.time() - began
        assert waited < timeout_s, f"not within {timeout_s:g} s: {_text(condition)}: {value!r}"
        pause = min(max(FIRST_PAUSE_S, waited * EASING), LONGEST_PAUSE_S)
        await asyncio.sleep(pause if every_s is None else every_s)


def _text(condition: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a partial, or a builtin
        return repr(condition)


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """The first true value of a function, for tests that have no event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.02)
    return value
