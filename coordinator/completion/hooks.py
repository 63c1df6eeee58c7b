"""User code that runs before an operation is published or aborted, in threads of its own and with a deadline.

A thread cannot be ended. So a hook that takes too long counts as failed, and is waited for again instead of
being called a second time beside itself; it holds one of a few threads that nothing else needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from distop.errors import DeadlineExceeded

TIMEOUT_S = 600.0
"""Seconds a hook may take before its attempt counts as failed."""

THREADS = 8
"""Hooks that run at the same time in one coordinator; further ones wait."""


class Hooks:
    """Runs the hooks of one coordinator."""

    def __init__(self, name: str = "distop-hooks", *, timeout_s: float = TIMEOUT_S) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._timeout_s = timeout_s
        self._running: dict[str, asyncio.Future[None]] = {}

    async def run(self, name: str, hook: Callable[[], None]) -> None:
        """Run a hook of an operation, or wait for the call of this name that still runs.

        Raises whatever it raises; :class:`~distop.errors.DeadlineExceeded` when it takes too long.
        """
        running = self._running.get(name)
        if running is None:
            running = asyncio.get_running_loop().run_in_executor(self._threads, hook)
            self._running[name] = running
            running.add_done_callback(lambda _: self._running.pop(name, None))
        done, _ = await asyncio.wait({running}, timeout=self._timeout_s)
        if not done:
            raise DeadlineExceeded(
                f"{name} takes longer than {self._timeout_s:g} s", hint="it goes on running"
            )
        running.result()

    def close(self) -> None:
        """Start no further hook."""
        self._threads.shutdown(wait=False, cancel_futures=True)
