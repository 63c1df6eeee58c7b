"""The template process from which workers are forked, and the workers' main loop.

A coordinator uses gRPC and threads, so it cannot be forked. This process uses neither. It loads no user code,
only, on demand, libraries that many calls need; it is the parent of the processes, so it alone knows for
certain which process an id means, and ends all of them when the coordinator is gone.

Requests are one byte on its socket: ``F`` with the socket of a new process, the memory of a lease, and
modules to load first; ``K`` and the id of a process to end.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

from distop.coordinator.work.call import Surroundings, portable
from distop.coordinator.work.frames import ALIVE, ERROR, HELLO, LOG, RESULT, framed, receive
from distop.coordinator.work.lease import SharedLease
from distop.errors import Crashed
from distop.metastore import crashpoints
from distop.operations.registry import Registry

FORK, KILL = b"F", b"K"

REAP_S = 2.0
"""How often it checks for processes that have ended."""

SIGN_OF_LIFE_S = 0.5
"""Shortest interval between a call's heartbeats to the coordinator."""


def main(control_file: int) -> None:
    """Fork processes for the coordinator at the other end until it is gone."""
    control = socket.socket(fileno=control_file)
    children: set[int] = set()
    coordinator = os.getppid()
    while True:
        control.settimeout(REAP_S if children else None)
        try:
            asked, files, _, _ = socket.recv_fds(control, 5, 2)
        except TimeoutError:
            children -= {pid for pid in children if _has_ended(pid)}
            continue
        if not asked:
            break
        control.settimeout(None)
        request: Any = json.loads(control.recv(int.from_bytes(asked[1:]), socket.MSG_WAITALL))
        children -= {pid for pid in children if _has_ended(pid)}
        if asked[:1] == KILL:
            if request in children:
                os.kill(request, signal.SIGKILL)
            continue
        load(request["modules"])
        pid = os.fork()
        if not pid:
            try:
                control.close()
                crashpoints.works_for(coordinator)
                _work(request, *files)
            finally:
                os._exit(0)
        children.add(pid)
        for file in files:
            os.close(file)
    for pid in children:
        if not _has_ended(pid):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def load(modules: Iterable[str]) -> None:
    """Load some modules, as far as they exist."""
    for module in modules:
        with suppress(ImportError):
            import_module(module)


def _work(request: dict[str, Any], link_file: int, lease_file: int) -> None:
    """The life of a worker process."""
    for name, value in request["environ"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.path[:] = request["path"]
    with suppress(OSError), socket.socket(fileno=link_file) as link:
        _Worker(link, SharedLease(lease_file), Registry(request["operations"]), request["log"]).serve()


def _has_ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


class _Worker:
    """Runs one call after the other, in the main thread of its process."""

    def __init__(self, link: socket.socket, lease: SharedLease, registry: Registry, log_level: int) -> None:
        self._link, self._calls = link, link.makefile("rb")
        self._lease, self._registry = lease, registry
        self._sending = threading.Lock()
        self._lived = 0.0
        logging.basicConfig(level=log_level, handlers=[_ToCoordinator(self)], force=True)

    def send(self, kind: bytes, value: Any = None) -> None:
        message = framed(kind, value)
        with self._sending:
            self._link.sendall(message)

    def serve(self) -> None:
        """Until the coordinator closes the link."""
        self.send(HELLO, os.getpid())
        while True:
            try:
                message = receive(self._calls)
            except Exception as error:  # such as a module of the call that is not installed here
                self._failed(error)
                continue
            if message is None:
                return
            lease, call = message[1]
            try:
                self.send(
                    RESULT, call(Surroundings(self._registry, self._lease.check_of(lease, self._alive)))
                )
            except BaseException as error:
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        carried = portable(error)
        try:
            pickle.loads(pickle.dumps(carried))
        except Exception:  # some errors cannot be sent
            carried = _stand_in(carried)
        # Catch what ends a process: sys.exit() in a hook must not end the worker.
        self.send(ERROR, carried if isinstance(carried, Exception) else _stand_in(carried))

    def _alive(self) -> None:
        now = time.monotonic()
        if now - self._lived > SIGN_OF_LIFE_S:
            self._lived = now
            self.send(ALIVE)


def _stand_in(error: BaseException) -> Crashed:
    crashed = Crashed(f"{type(error).__name__}: {error}")
    crashed.__notes__ = list(getattr(error, "__notes__", ()))
    return crashed


class _ToCoordinator(QueueHandler):
    """Sends log records to the coordinator, which logs them."""

    def __init__(self, worker: _Worker) -> None:
        super().__init__(SimpleQueue())  # unused: see enqueue
        self._worker = worker

    def enqueue(self, record: logging.LogRecord) -> None:
        self._worker.send(LOG, vars(record))
