"""The event loop of this package's processes, and threads for code that may hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

MOST_FREE = 32
"""Free threads that are kept."""


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's: it makes small messages half as expensive."""
    import uvloop

    return uvloop.new_event_loop()


def event_of(event: threading.Event) -> asyncio.Event:
    """An event of the running loop that is set once ``event`` is, by any thread."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        event.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait, name="distop-stop", daemon=True).start()
    return stop


class Daemons:
    """Threads for code that may hang; they end with the process.

    A free thread takes the next call: starting one takes longer than many jobs.
    """

    def __init__(self) -> None:
        self._most_free = MOST_FREE
        self._free = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, call: Callable[[], None]) -> None:
        """Run this call in a thread; returns at once."""
        with self._lock:
            taken = self._free > 0
            self._free -= taken
        if taken:
            self._calls.put(call)
        else:
            threading.Thread(target=self._work, args=(call,), name="distop-task", daemon=True).start()

    def close(self) -> None:
        """End the threads that wait for work; those that still work end with the process."""
        with self._lock:
            free, self._free, self._most_free = self._free, 0, 0
        for _ in range(free):
            self._calls.put(None)

    def _work(self, call: Callable[[], None] | None) -> None:
        while call is not None:
            call()
            with self._lock:
                if self._free >= self._most_free:
                    return
                self._free += 1
            call = None  # its objects may be large
            call = self._calls.get()


def settle_from_thread(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    """Set a future's result or error from a thread that is not its loop's."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
            future.exception()  # whether or not a caller waits
        else:
            future.set_result(outcome)

    with suppress(RuntimeError):  # the loop is closed: no caller waits any more
        future.get_loop().call_soon_threadsafe(settle)
