"""Processes that each run one call at a time for a coordinator; they are reused, and ended if they hang."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from distop.coordinator.work.call import Call
from distop.coordinator.work.frames import ALIVE, CALL, ERROR, HEAD, HELLO, LOG, framed
from distop.coordinator.work.lease import SharedLease
from distop.coordinator.work.template import FORK, KILL
from distop.errors import Crashed

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_IDLE = 8
"""Idle processes kept for later calls: as many as planning uses at a time."""

START_S = 60.0
"""Longest wait for a new process."""

_PROGRAM = "import sys, json; control, sys.path[:] = json.loads(sys.argv[1]); \
from distop.coordinator.work.template import main; main(control)"


class _Template:
    """The process from which the workers of all coordinators here are forked. It takes a second to start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._program: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environ: dict[str, str] = {}

    def start(self) -> None:
        """Start it, unless it runs."""
        with self._lock:
            self._started()

    def _started(self) -> socket.socket:
        if self._control is not None and self._program is not None and self._program.poll() is None:
            return self._control
        if self._control is not None:
            self._control.close()
        else:
            atexit.register(self.close)
        self._control, theirs = socket.socketpair()
        self._environ = dict(os.environ)
        with theirs:
            self._program = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps([theirs.fileno(), sys.path])],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # the coordinator handles Ctrl-C
            )
        return self._control

    def fork(self, message: Mapping[str, object], *files: int) -> None:
        """Request a process, with the changes of this one's environment since the start."""
        with self._lock:
            control = self._started()
            names = self._environ.keys() | os.environ.keys()
            changed = {
                name: os.environ.get(name)
                for name in names
                if self._environ.get(name) != os.environ.get(name)
            }
            _ask(control, FORK, {**message, "environ": changed, "path": sys.path}, *files)

    def kill(self, pid: int) -> None:
        """End one of its processes."""
        with self._lock:
            if self._control is not None and self._program is not None and self._program.poll() is None:
                _ask(self._control, KILL, pid)
            else:  # no other process can
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End it and all of its processes."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._program is not None:
                self._program.wait()


def _ask(control: socket.socket, what: bytes, message: object, *files: int) -> None:
    body = json.dumps(message).encode()
    socket.send_fds(control, [what + len(body).to_bytes(4)], files)
    control.sendall(body)


_template = _Template()


class _Process:
    """One worker process, at the other end of a link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.pid = 0

    async def hear(self) -> tuple[bytes, Any]:
        """The next message that is not a line of its log."""
        while True:
            kind, length = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            value = pickle.loads(await self.reader.readexactly(length))
            if kind != LOG:
                return kind, value
            record = logging.makeLogRecord(value)
            logging.getLogger(record.name).handle(record)


class Processes:
    """The worker processes of one coordinator; belongs to one event loop.

    Parameters
    ----------
    operations:
        Further types, as in the coordinator's own registry.
    """

    def __init__(self, operations: Sequence[str] | None = None) -> None:
        self._operations = None if operations is None else list(operations)
        self.lease = SharedLease()
        self._idle: list[_Process] = []
        self._pickling = ThreadPoolExecutor(1, thread_name_prefix="distop-pickling")
        self._busy: set[_Process] = set()
        self._closed = False
        _template.start()  # so that the first call need not wait for it

    async def run(self, call: Call[T], *, modules: Sequence[str] = (), alive: Callable[[], None]) -> T:
        """Run a call in a separate process, which is ended when this is cancelled.

        Parameters
        ----------
        modules:
            Modules to load first, in the template where possible.
        alive:
            Called for heartbeats.

        Raises
        ------
        Crashed
            The process died during the call.
        """
        while self._idle and self._idle[-1].reader.at_eof():
            self._end(self._idle.pop(), kill=False)
        process = self._idle.pop() if self._idle else await self._forked(modules)
        self._busy.add(process)
        ended = False
        try:
            # In a thread: pickling the results of a million jobs takes seconds.
            loop, payload = asyncio.get_running_loop(), (self.lease.lease, call)
            message = await loop.run_in_executor(self._pickling, framed, CALL, payload)
            process.writer.write(message)
            await process.writer.drain()
            while True:
                kind, value = await process.hear()
                if kind != ALIVE:
                    break
                alive()
            ended = True
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Crashed(f"the process that ran it has died ({process.pid})") from error
        finally:
            self._busy.discard(process)
            if ended and not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(process)
            else:
                self._end(process, kill=not ended)
        if kind == ERROR:
            raise value
        result: T = value
        return result

    async def _forked(self, modules: Sequence[str]) -> _Process:
        if self._closed:
            raise Crashed("the coordinator is being stopped")
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                setup = {"modules": modules, "operations": self._operations, "log": logging.getLogger().level}
                _template.fork(setup, theirs.fileno(), self.lease.file)
            process = _Process(*await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()
            raise
        try:
            async with asyncio.timeout(START_S):
                kind, process.pid = await process.hear()
            assert kind == HELLO
        except BaseException as error:
            process.writer.close()
            if isinstance(error, Exception):
                raise Crashed("no process could be started for it") from error
            raise
        return process

    def _end(self, process: _Process, *, kill: bool) -> None:
        process.writer.close()
        if kill:
            log.warning("process_ended", extra={"pid": process.pid})
            _template.kill(process.pid)

    def close(self) -> None:
        """End them all."""
        self._closed = True
        for process in self._idle:
            self._end(process, kill=False)
        for process in self._busy:
            self._end(process, kill=True)
        self._idle.clear()
        self._pickling.shutdown(wait=False)
        self.lease.close()
