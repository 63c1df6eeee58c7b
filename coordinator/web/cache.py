"""Answers shared by several requests: many open pages cost etcd as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from distop.coordinator.access.callers import caller

T = TypeVar("T")

MAX_ANSWERS = 512
"""Most cached answers; the oldest is dropped."""

REST, MAX_REST_S = 10, 5.0
"""An answer is cached for this many times the duration of making it, up to a limit: a view of much data uses
a tenth of the time of this process, not all of it."""

ERROR_S = 0.2
"""Seconds an error is cached: a service that is back must be visible soon."""


class Answers:
    """Makes an answer once for all requests while it is being made, and for a moment afterwards."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, _Answer] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], *, keep_s: float) -> T:
        """The answer of ``key``; ``make`` is called if none is fresh. Errors are answers, too. It is shared
        by callers who may see the same.

        A cancelled request does not take the answer away from the others.
        """
        loop = asyncio.get_running_loop()
        key = (caller().held, key)
        answer = self._answers.get(key)
        if answer is None or answer.fresh_until <= loop.time():
            answer = _Answer(make, keep_s)
            self._answers.pop(key, None)
            self._answers[key] = answer
            if len(self._answers) > MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
        value: T = await asyncio.shield(answer.task)
        return value

    async def close(self) -> None:
        """Stop making what is being made."""
        tasks = [answer.task for answer in self._answers.values()]
        self._answers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Answer:
    def __init__(self, make: Callable[[], Awaitable[Any]], keep_s: float) -> None:
        self.fresh_until = float("inf")
        self._keep_s = keep_s
        self.task: asyncio.Task[Any] = asyncio.create_task(self._make(make))
        self.task.add_done_callback(_retrieve)

    async def _make(self, make: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        keep_s = ERROR_S
        try:
            value = await make()
            keep_s = max(self._keep_s, min(REST * (loop.time() - began), MAX_REST_S))
        finally:
            self.fresh_until = loop.time() + keep_s
        return value


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error: all requests for it may be gone."""
    if not task.cancelled():
        task.exception()
