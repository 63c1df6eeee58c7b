"""The caller's deadline: calls to etcd on its behalf end with it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

_limit: ContextVar[float] = ContextVar("etcd_deadline", default=math.inf)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Calls to etcd of this task inside end within ``seconds`` in all, whatever their own deadlines are.

    So there is time left to report the error to the caller.
    """
    token = _limit.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _limit.reset(token)


def deadline() -> float:
    """When the present caller stops waiting, by the clock of the event loop; infinite: no caller waits."""
    return _limit.get()


def is_over() -> bool:
    """Whether the caller has stopped waiting."""
    return asyncio.get_running_loop().time() >= deadline()
