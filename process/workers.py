"""Workers: processes that each run one call at a time for this one; they are reused, and ended if they hang.

A call has a time limit. It counts the call's own time: not the modules that are loaded for it, and not the
time in which it could have run but the machine was busy with others.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from distop.process.frames import ALIVE, CALL, ERROR, LOG, Link

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
        self._running = self._ended = False
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
        with self._lock:
            if self._ended:
                raise Died
            self._running, self.is_idle = True, False
        has_outcome = False
        try:
            kind, value = self._outcome((prepare, call), limit_s, look)
            has_outcome = True
        finally:
            with self._lock:
                self._running, self.is_idle = False, has_outcome and not self._ended
                if self._ended:
                    self._link.close()
            if not has_outcome:
                self.end()
        if kind == ERROR:
            raise value
        result: T = value
        return result

    def _outcome(self, asked: Any, limit_s: float, look: Callable[[], None] | None) -> tuple[bytes, Any]:
        try:
            self._link.send(CALL, asked)
        except OSError as error:
            raise Died from error
        has_begun, limit = False, Limit(self.pid, START_S)
        while True:
            if not self._link.is_readable(limit.left_s if look is None else min(limit.left_s, LOOK_S)):
                if look is not None:
                    look()
                if limit.is_reached():
                    raise TooLong if has_begun else NotBegun
                continue
            message = self._link.receive()
            if message is None:
                raise Died
            kind, value, _ = message
            if kind == ALIVE:
                has_begun, limit = True, Limit(self.pid, limit_s)
            elif kind == LOG:
                record = logging.makeLogRecord(value)
                logging.getLogger(record.name).handle(record)
            else:
                return kind, value

    @property
    def is_alive(self) -> bool:
        """Of an idle one: whether its process still waits for calls."""
        return not self._link.is_at_end()

    def end(self) -> None:
        """End the process, in any thread; idempotent. A call that it runs raises :class:`Died`."""
        with self._lock:
            if self._ended:
                return
            self._ended, self.is_idle = True, False
            if self._running:
                self._link.shut()  # the thread that runs the call closes it
            else:
                self._link.close()
        self._kill()


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
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            # Unbuffered: forks would print what is in a buffer again, and what they print would be lost.
            [sys.executable, "-u", "-c", program, json.dumps([theirs.fileno(), *arguments, sys.path])],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=None if env is None else dict(env),
            start_new_session=True,  # this process handles Ctrl-C
        )
    return process, ours


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
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
