"""Workers: processes that each run one call at a time for this one; they are reused, and ended if they hang.

A call has a time limit. It counts the call's own time: not the modules that are loaded for it, and not the
time in which it could have run but the machine was busy with others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar

from distop.process.frames import ALIVE, CALL, ERROR, LOG, Link, Message

T = TypeVar("T")

START_S = 60.0
"""Longest wait for a call to begin in a worker."""

LOOK_S = 0.2
"""How often a caller is asked whether it still wants the result."""


class Died(Exception):
    """The process has ended during the call."""


class TooLong(Exception):
    """The call has taken longer than its limit."""


class NotBegun(Exception):
    """The call has not begun within :data:`START_S`: it says nothing about the call."""


class Worker:
    """A process at the other end of a link, for one call at a time.

    Parameters
    ----------
    kill:
        Ends the process.
    """

    def __init__(self, end: socket.socket, pid: int, kill: Callable[[], None]) -> None:
        self._link, self.pid, self._kill = Link(end), pid, kill
        self._lock = threading.Lock()
        self._users, self._ended = 0, False
        self.is_idle = True
        """Whether it can run another call."""

    def run(
        self,
        call: Callable[[], T],
        *,
        limit_s: float,
        prepare: Callable[[], object] | None = None,
        look: Callable[[], None] | None = None,
    ) -> T:
        """Run a call there, and wait for its result. Ends the process unless the call has an outcome.

        Parameters
        ----------
        call, prepare:
            Functions of modules, or ``partial`` ones. ``prepare`` runs first, and does not count as the call.
        limit_s:
            Seconds of its own that the call may take without a sign of life, see :func:`.serving.alive`.
        look:
            Called now and then; its errors end the call.

        Raises the errors of the call, and :class:`Died`, :class:`TooLong` or :class:`NotBegun`.
        """
        outcome = _Outcome(self.pid, limit_s)
        with self._calling():
            self._send((prepare, call))
            while not outcome.is_there:
                left_s = outcome.left_s if look is None else min(outcome.left_s, LOOK_S)
                if self._link.is_readable(left_s):
                    outcome.next(self._link.receive())
                    continue
                if look is not None:
                    look()
                outcome.silence()
        result: T = outcome.value()
        return result

    async def run_async(
        self,
        call: Callable[[], T],
        threads: Executor,
        *,
        limit_s: float,
        prepare: Callable[[], object] | None = None,
    ) -> T:
        """As :meth:`run`, in an event loop. Large messages are for the threads: pickling the results of a
        million jobs takes seconds. Small ones are not: while a loop is busy, a thread waits longer for the
        interpreter than most calls take.

        Ends the process as well when it is cancelled.
        """
        outcome, asked = _Outcome(self.pid, limit_s), (prepare, call)
        with self._calling():
            if not self._send(asked, now=True):
                await self._in_thread(threads, self._send, asked)
            while not outcome.is_there:
                if not await _readable(self._link, outcome.left_s):
                    outcome.silence()
                    continue
                try:
                    message = self._link.receive_now()
                except BlockingIOError:
                    message = await self._in_thread(threads, self._link.receive)
                outcome.next(message)
        result: T = outcome.value()
        return result

    def _send(self, asked: Any, *, now: bool = False) -> bool:
        try:
            if now:
                return self._link.send_now(CALL, asked)
            self._link.send(CALL, asked)
        except OSError as error:
            raise Died from error
        return True

    @contextmanager
    def _calling(self) -> Iterator[None]:
        with self._using():
            self.is_idle = False
            try:
                yield
            except BaseException:
                self.end()
                raise
            with self._lock:
                self.is_idle = not self._ended

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Keep its link open: another one may get the number of a closed one."""
        with self._lock:
            if self._ended:
                raise Died
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._ended and not self._users:
                    self._link.close()

    async def _in_thread(self, threads: Executor, function: Callable[..., T], *args: Any) -> T:
        def run() -> T:
            with self._using():
                return function(*args)

        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(threads, run))

    @property
    def is_alive(self) -> bool:
        """Whether the process of an idle worker still waits for calls."""
        return not self._link.is_at_end()

    def end(self) -> None:
        """End the process, in any thread; idempotent. A call that it runs raises :class:`Died`."""
        with self._lock:
            if self._ended:
                return
            self._ended, self.is_idle = True, False
            if self._users:
                self._link.shut()  # the last of them closes it
            else:
                self._link.close()
        self._kill()


async def _readable(link: Link, limit_s: float) -> bool:
    """Whether there is something to receive, or the end of it, within a time."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[bool] = loop.create_future()

    def finish(is_readable: bool) -> None:
        if not readable.done():
            readable.set_result(is_readable)

    loop.add_reader(link.fileno(), finish, True)
    timer = loop.call_later(limit_s, finish, False)
    try:
        return await readable
    finally:
        timer.cancel()
        loop.remove_reader(link.fileno())


class _Outcome:
    """What becomes of a call, by the messages of its process.

    Raises :class:`Died`, :class:`TooLong` and :class:`NotBegun` as soon as a message, or none, shows it.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self._limit_s = limit_s
        self._has_begun, self._limit = False, Limit(pid, START_S)
        self._kind, self._value = b"", None

    @property
    def is_there(self) -> bool:
        return self._kind != b""

    @property
    def left_s(self) -> float:
        """Seconds to wait for the next message."""
        return self._limit.left_s

    def silence(self) -> None:
        """No message has come for so long."""
        if self._limit.is_reached():
            raise TooLong if self._has_begun else NotBegun

    def next(self, message: Message | None) -> None:
        """Take a message; ``None``: their end."""
        if message is None:
            raise Died
        if message[0] == ALIVE:
            self._has_begun = True
            self._limit.renew(self._limit_s)
        elif message[0] == LOG:
            record = logging.makeLogRecord(message[1])
            logging.getLogger(record.name).handle(record)
        else:
            self._kind, self._value, _ = message

    def value(self) -> Any:
        """The result of the call; raises its error."""
        if self._kind == ERROR:
            assert isinstance(self._value, BaseException)
            raise self._value
        return self._value


class Idle:
    """Workers that wait for their next call: at most so many."""

    def __init__(self, most: int) -> None:
        self._most, self._workers = most, list[Worker]()
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Worker | None:
        """One of them, the last one that was used; ``None``: there is none."""
        while True:
            with self._lock:
                worker = self._workers.pop() if self._workers else None
            if worker is None or worker.is_alive:
                return worker
            worker.end()

    def put(self, worker: Worker) -> None:
        """Keep it for later, or end it if enough of them wait."""
        with self._lock:
            kept = worker.is_idle and not self._closed and len(self._workers) < self._most
            if kept:
                self._workers.append(worker)
        if not kept:
            worker.end()

    def close(self) -> None:
        """End them all, and those that come back."""
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()


def spawn(
    module: str, *arguments: Any, env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start an interpreter that runs ``main`` of a module with one end of a socket and these arguments; the
    other end."""
    program = (
        "import sys, json; a = json.loads(sys.argv[1]); sys.path[:] = a.pop(); "
        f"from {module} import main; main(*a)"
    )
    own_end, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            # Unbuffered: forks would print what is in a buffer again, and what they print would be lost.
            [sys.executable, "-u", "-c", program, json.dumps([theirs.fileno(), *arguments, sys.path])],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=None if env is None else dict(env),
            start_new_session=True,  # this process handles Ctrl-C
        )
    return process, own_end


def spawned(env: Mapping[str, str]) -> Worker:
    """A worker in an interpreter of its own, with this environment: loads nothing of this process."""
    process, end = spawn("distop.process.serving", os.getpid(), env=env)

    def kill() -> None:
        process.kill()
        process.wait()

    return Worker(end, process.pid, kill)


class Limit:
    """A time limit for a process, which is extended by the time in which the process starves."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid, self._starved_s = pid, starved_s(pid)
        self._until = time.monotonic() + limit_s

    def renew(self, limit_s: float) -> None:
        """Begin the time anew. That the process has starved before extends this time, too: to look costs as
        much as sending a small call."""
        self._until = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Seconds until it is to be looked at; 0 if that is now."""
        return max(self._until - time.monotonic(), 0.0)

    def is_reached(self) -> bool:
        """Whether the process has had its time."""
        if self.left_s:
            return False
        before, self._starved_s = self._starved_s, starved_s(self._pid)
        self._until += self._starved_s - before
        return self._starved_s <= before


def starved_s(pid: int) -> float:
    """Seconds that the main thread of a process has been ready to run without a processor to run on.

    The second number of Linux's ``/proc/<pid>/schedstat``, which includes what a limit of its control group
    takes away; 0 where it is unknown.
    """
    try:
        file = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 256).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return 0.0
