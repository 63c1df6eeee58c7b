"""Processes of distop's services that start at once: forked from one that has loaded what they load.

Loading takes a service longer than most tests give it to do. So one process loads everything, opens no
connection, and forks the requested services. What it forks is a process of its own in every respect, and a
child of the tests' process, which can kill, halt and wait for it. That services start from their command
lines is shown in ``tests/system/deployed/test_service_manager.py``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from distop.metastore import crashpoints
from support.repository import TESTS

LOADED = """
distop.cli.main distop.catalog.catalog distop.lake.layout.model distop.coordinator.service
distop.executor.runner.service distop.executor.sidecar.server distop.spark_jobs.ingest.planning
concurrent.futures.thread encodings.idna faulthandler fsspec.implementations.local rich.console
pyarrow.acero pyarrow.csv pyarrow.dataset pyarrow.json pyarrow.parquet
pyiceberg.avro.decoder_fast pyiceberg.catalog.rest pyiceberg.io.fsspec pyiceberg.io.pyarrow
"""
GROUPS = ("distop.commit_steps", "distop.operations")
READY = b"ready\n"
_SET_CHILD_SUBREAPER = 36
"""Of ``prctl(2)``: orphans below this process become its children."""


def start(module: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> Process:
    """``python -m <module> <arguments>``, with its output in ``log``; never waits for anything to be loaded.

    Until everything is loaded, interpreters are started: whoever calls this may have leases to keep.
    """
    parent = _parent()
    log.touch()  # so that it can be read from now on
    if parent.is_ready():
        return Preloaded(parent.fork([module, *arguments], env, log))
    return interpreter(module, arguments, env=env, log=log)


def interpreter(
    module: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """The same, in an interpreter of its own."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


class Preloaded:
    """A process that was forked, as :class:`subprocess.Popen` has those that it starts."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._reap(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            self._reap(0)
        until = time.monotonic() + (timeout or 0.0)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def _reap(self, options: int) -> None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing if it has ended: then its number may be another process's."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Preloaded | subprocess.Popen[bytes]


class _Parent:
    """The process that has loaded everything, as the tests see it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        # numpy starts threads where it is loaded, unless this variable forbids it.
        env = {**os.environ, "PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}
        command = f"from support.services import preloaded; preloaded.serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", command], env=env, pass_fds=[theirs.fileno()]
            )
        self._lines = self._socket.makefile("rb")
        self._ready = False
        atexit.register(self._end)

    def is_ready(self) -> bool:
        """Whether it has loaded everything."""
        if not self._ready and select.select([self._socket], [], [], 0)[0]:
            self._ready = self._lines.readline() == READY
            assert self._ready, "the process that forks services has ended, see above"
        return self._ready

    def fork(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> int:
        """The number of a new child of this process."""
        asked = json.dumps([words, dict(env), os.getcwd(), str(log)]).encode()
        with self._lock:
            _adopt(1)
            try:
                self._socket.sendall(asked + b"\n")
                pid = int(self._lines.readline() or 0)
            finally:
                _adopt(0)
        assert pid, "the process that forks services has ended"
        return pid

    def _end(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait()


@functools.cache
def _parent() -> _Parent:
    return _Parent()


def _adopt(whether: int) -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, whether, 0, 0, 0)


def serve(file: int) -> None:
    """Load everything; then fork a process for each line that asks for one, and answer its number."""
    for module in LOADED.split():
        importlib.import_module(module)
    for group in GROUPS:
        for entry in entry_points(group=group):
            entry.load()
    # Arrow's allocator has a thread, which knows of forks; others would be missing in what is forked.
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # or else collecting would copy the pages that all have in common
    asking = socket.socket(fileno=file)
    with asking:
        for line in _asked(asking):
            words, *more = json.loads(line)
            reading, writing = os.pipe()
            if not (between := os.fork()):
                if child := os.fork():
                    os.write(writing, str(child).encode())
                    os._exit(0)  # the child is an orphan now: that of the tests' process
                for each in (reading, writing):
                    os.close(each)
                break
            os.close(writing)
            os.waitpid(between, 0)
            asking.sendall(os.read(reading, 20) + b"\n")
            os.close(reading)
        else:
            return
    _become(words, *more)


def _asked(asking: socket.socket) -> Iterator[bytes]:
    """Lines, until there is nobody any more who sends some."""
    with suppress(ConnectionError), asking.makefile("rb") as lines:
        asking.sendall(READY)
        yield from lines


def _become(words: list[str], env: dict[str, Any], folder: str, log: str) -> None:
    """Be what ``python -m`` would be."""
    os.chdir(folder)
    with open(os.devnull, "rb") as nothing, open(log, "ab") as output:
        for file, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    for path in reversed(env.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    if env.get("PYTHONFAULTHANDLER"):
        importlib.import_module("faulthandler").enable()
    crashpoints._PLAN = env.get(crashpoints.VARIABLE, "")
    sys.orig_argv[:] = [sys.executable, "-m", *words]
    sys.argv[:] = words
    sys.modules.pop(words[0], None)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    # What an interpreter does at its end, but for freeing all that was loaded.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
