"""An event loop in a thread, for blocking code; and protection against using gRPC after a fork.

gRPC's threads do not exist in a forked process, where calls then hang. ``multiprocessing`` forks by default
before Python 3.14. So each process remembers whether it, or the one from which it was forked, has used gRPC
first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from distop.errors import Forked, PreconditionFailed

T = TypeVar("T")

_NOTICE_S = 0.5
"""Longest time until a signal that did not wake the waiting thread is noticed."""

_CLOSING_S = 10.0
"""Longest wait for the thread to end."""

_speaker: int | None = None


def check_not_forked() -> None:
    """Call this before gRPC is used; raises :class:`Forked` where that would hang."""
    global _speaker
    if _speaker is None:
        _speaker = os.getpid()
    elif _speaker != os.getpid():
        raise Forked


def result_of(future: concurrent.futures.Future[T]) -> T:
    """The future's result, once it is available.

    A signal (Ctrl-C) ends the wait only if it arrives at the waiting thread, and during the wait. One that
    arrives a moment earlier, or at another thread of the process, is noticed when that thread next wakes up.
    """
    while not concurrent.futures.wait([future], _NOTICE_S).done:
        pass
    return future.result()


async def cancel_others() -> None:
    """End all other tasks of this event loop, so that threads that wait for them are notified."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopThread:
    """An event loop in a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        check_not_forked()
        self.loop = asyncio.new_event_loop()
        self._gate = _Gate()
        serve = threading.Thread(target=_serve, args=(self.loop, self._gate), name=name, daemon=True)
        self._thread = serve
        self._thread.start()
        self._end: Callable[[], Any] = lambda: None

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the loop. Raises :class:`PreconditionFailed` if the loop has ended."""
        check_not_forked()
        with self._gate.lock:
            if self._gate.closed:
                raise PreconditionFailed("the client is closed")
            return asyncio.run_coroutine_threadsafe(work(), self.loop)

    def belongs_to(self, owner: object, closing: Callable[[], Awaitable[None]]) -> None:
        """At the owner's end, run ``closing``, which must not refer to the owner, and end the thread."""
        self._end = end = weakref.finalize(owner, _finish, os.getpid(), self.loop, closing)
        end.atexit = False

    def close(self) -> None:
        """Run the closing and end the thread; idempotent."""
        self._end()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)


class _Gate:
    """Whether work is still let into a loop."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may end an iteration, and submit that, at any moment.
        self.lock, self.closed = threading.RLock(), False


def _serve(loop: asyncio.AbstractEventLoop, gate: _Gate) -> None:
    try:
        loop.run_forever()
        with gate.lock:
            gate.closed = True
        # What came in while the closing ran: its waiter would wait for ever.
        loop.run_until_complete(cancel_others())
    finally:
        loop.close()


def _finish(pid: int, loop: asyncio.AbstractEventLoop, closing: Callable[[], Awaitable[None]]) -> None:
    # Without waiting: the garbage collector may call this on any thread, even the loop's own.
    if pid != os.getpid() or loop.is_closed():
        return

    async def finish() -> None:
        try:
            await closing()
        finally:
            loop.stop()

    tasks: list[asyncio.Task[None]] = []  # the loop itself keeps no task alive
    loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(finish())))
