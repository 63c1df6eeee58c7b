"""The event loop of this package's processes, and threads for code that may hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one: it makes small messages half as expensive."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def event_of(told: threading.Event) -> asyncio.Event:
    """An event of the running loop that is set once ``told`` is, by any thread."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        told.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait, name="distop-stop", daemon=True).start()
    return stop


class Daemons:
    """Threads for code that may hang, which ends with the process.

    One that is free again takes the next call: to start one takes longer than many a job.
    """

    def __init__(self, *, most_free: int = 32) -> None:
        self._most_free = most_free
        self._free = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, call: Callable[[], None]) -> None:
        """Have a thread make this call; returns at once."""
        with self._lock:
            taken = self._free > 0
            self._free -= taken
        if taken:
            self._calls.put(call)
        else:
            threading.Thread(target=self._work, args=(call,), name="distop-task", daemon=True).start()

    def close(self) -> None:
        """End those that are free."""
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
            call = None  # what it holds may be large
            call = self._calls.get()


def settle_from_thread(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    """Give a future its result, or its error, from a thread that is not its loop's."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
            future.exception()  # whether or not anybody waits
        else:
            future.set_result(outcome)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(settle)
