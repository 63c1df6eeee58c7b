"""What the process of a service has: its event loop, tasks that are started again when they fail, threads for
code that may hang, a clock, garbage collection and its service manager.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from distop.errors import EtcdUnavailable, defect_of

_NOTIFY_S = 1.0


def notify_manager(state: str) -> None:
    """Send a text such as ``READY=1`` to the socket in ``NOTIFY_SOCKET``; without one: nothing.

    A failure is ignored: it does not prevent serving.
    """
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(_NOTIFY_S)
        # "@" means the zero byte of an abstract name.
        channel.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


def settle_heap() -> None:
    """Call once everything is loaded: exclude loaded objects from garbage collection, and collect less often
    than after a few hundred marks or calls, which leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Back-off before it is started again, doubled each time until it has run for the longest."""


def log_failure(log: logging.Logger, event: str, error: BaseException, **fields: object) -> None:
    """Log the error of what is tried again: a defect with its trace, another one as a warning.

    That etcd does not answer is only for debugging: its client says that once for all that wait for it.
    """
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            log_failure(log, event, each, **fields)
        return
    defect = defect_of(error)
    level = logging.WARNING if defect is None else logging.ERROR
    if type(error) is EtcdUnavailable:
        level = logging.DEBUG
    log.log(level, event, extra={**fields, "error": str(error)}, exc_info=defect)


async def kept_running(name: str, follower: Callable[[], Awaitable[None]]) -> None:
    """Run a follower until cancelled, and end then, even if it fails at that moment. It must begin from the
    present state: nothing is kept from before.

    An error is logged by :func:`log_failure`.
    """
    pause, clock = FIRST_PAUSE_S, asyncio.get_running_loop().time
    while True:
        began = clock()
        # In a task of its own, so that a cancellation ends this one whatever the follower makes of it. Before
        # Python 3.13 a TaskGroup whose task fails at that moment swallows it, and raises the error instead.
        [error] = await asyncio.gather(follower(), return_exceptions=True)
        if error is not None:
            log_failure(log, "follower_failed", error, follower=name)
        if clock() - began > LONGEST_PAUSE_S:
            pause = FIRST_PAUSE_S
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE_S)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Seconds since the machine started, including suspension, if the system supports that.

    The same for all processes of a host, so that they can exchange deadlines.
    """
    return time.clock_gettime(_CLOCK)


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


async def cancel_all(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended, however they end. ``None`` is no task."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


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
