"""A template: a process that has loaded modules, and from which workers are forked that have them, too.

A service that uses threads or gRPC cannot be forked. A template uses neither, so its forks cost milliseconds
and share the memory of what it has loaded. A module that starts threads of Python or opens files when it is
loaded must not be in a template, since forks would lack the threads and share the files: each worker loads it
anew. Threads that libraries compute with, as those of numpy and pyarrow, survive a fork.

The template is the parent of its workers, so it alone knows for certain which process an id means, and ends
all of them when its own parent is gone.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from distop.process.frames import ERROR, RESULT, Link
from distop.process.serving import portable, serve
from distop.process.workers import START_S, Limit, Worker, spawn

log = logging.getLogger(__name__)

_LOAD, _FORK, _KILL = b"L", b"F", b"K"

REAP_S = 2.0
"""How often it checks for workers that have ended."""

PARENT_S = 1.0
"""How often it checks for its parent while it loads a module, which may never end."""


class NotLoaded(Exception):
    """A module cannot be loaded. The text is the reason."""


class _Program:
    """One run of the template's program."""

    def __init__(self) -> None:
        self._process, end = spawn("distop.process.template")
        self._link = Link(end)

    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, kind: bytes, *value: object, files: Sequence[int] = (), limit_s: float) -> object:
        """The answer of the program, or the error that it answers. ``EOFError``: it has died;
        ``TimeoutError``: it hangs.

        Modules and workers see the environment and the path of this process as they are now.
        """
        around = dict(os.environ), sys.path
        self._link.send(kind, pickle.dumps((*around, *value)), *files)
        limit = Limit(self._process.pid, limit_s)
        while not self._link.is_readable(limit.left_s):
            if limit.is_reached():
                raise TimeoutError
        message = self._link.receive()
        if message is None:
            raise EOFError
        if message[0] == ERROR:
            raise message[1]
        return message[1]

    def kill(self, pid: int) -> None:
        """End one of its workers."""
        with suppress(OSError):
            if self.lives():
                self._link.send(_KILL, pid)
            else:  # no other process can
                os.kill(pid, signal.SIGKILL)

    def close(self, *, hangs: bool = False) -> None:
        """End it and all of its workers; one that hangs is killed, and leaves them to their links."""
        if hangs:
            self._process.kill()
        self._link.shut()
        self._process.wait()
        self._link.close()


class Template:
    """The template of this process; for any thread. It is started anew, with its modules, if it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._program: _Program | None = None
        atexit.register(self.close)
        self._modules: list[str] = []
        self._apart: dict[str, str] = {}
        """Modules that are not to be in it, since each worker must load them for itself, or cannot: why."""

    def load(self, module: str, limit_s: float) -> None:
        """Load a module, unless it is there, or is left to the workers.

        Raises :class:`NotLoaded`, also if that takes longer than so many seconds or ends the process.
        """
        with self._lock:
            if module not in self._apart and module not in self._modules:
                self._load(self._started(), module, limit_s)
            if why := self._apart.get(module):
                raise NotLoaded(why)

    def _load(self, program: _Program, module: str, limit_s: float) -> None:
        """Load it, or start anew without it: what has failed may have left anything behind."""
        why, hangs = "", False
        try:
            if not program.ask(_LOAD, module, limit_s=limit_s):
                self._modules.append(module)
                return
        except TimeoutError:
            why, hangs = f"loading it takes longer than {limit_s:g} s", True
        except EOFError:
            why = "loading it ends the process"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        log.info("module_not_in_template", extra={"module_name": module, "error": why})
        self._apart[module] = why
        self._end(hangs=hangs)

    def fork(self, begin: Callable[..., object], *files: int) -> Worker:
        """A new worker.

        Parameters
        ----------
        begin:
            Called first in the worker, with its descriptors of ``files``.

        Raises ``OSError`` or ``TimeoutError`` if there is none.
        """
        own_end, theirs = socket.socketpair()
        with self._lock, theirs:
            try:
                program = self._started()
                level, given = logging.getLogger().level, [theirs.fileno(), *files]
                pid = program.ask(_FORK, begin, level, files=given, limit_s=START_S)
            except BaseException as error:
                own_end.close()
                if isinstance(error, EOFError | TimeoutError):
                    self._end(hangs=isinstance(error, TimeoutError))
                raise
        assert isinstance(pid, int)
        return Worker(own_end, pid, lambda: program.kill(pid))

    def start(self) -> None:
        """Start it, unless it runs."""
        with self._lock:
            self._started()

    def _started(self) -> _Program:
        if self._program is not None and self._program.lives():
            return self._program
        self._end()
        self._program = _Program()
        modules, self._modules = self._modules, []
        for module in modules:
            self._load(self._program, module, START_S)
            if module in self._apart:
                self._modules = [name for name in modules if name != module]
                return self._started()
        return self._program

    def _end(self, *, hangs: bool = False) -> None:
        program, self._program = self._program, None
        if program is not None:
            program.close(hangs=hangs)

    def close(self) -> None:
        """End it and all of its workers."""
        with self._lock:
            self._end()


# -- in the process --------------------------------------------------------------------------------------


def main(file: int) -> None:
    """Load and fork for the process at the other end of this socket until it is gone."""
    link, children, parent = Link(socket.socket(fileno=file)), set[int](), os.getppid()
    with suppress(OSError):  # it has gone in the middle of a message
        while True:
            is_asked = link.is_readable(REAP_S if children else None)
            children -= {pid for pid in children if _has_ended(pid)}
            if not is_asked:
                continue
            message = link.receive()
            if message is None:
                break
            kind, value, files = message
            if kind == _KILL:
                if value in children:
                    os.kill(value, signal.SIGKILL)
                continue
            try:
                environ, sys.path[:], *wanted = pickle.loads(value)
                if os.environ != environ:
                    os.environ.clear()
                    os.environ.update(environ)
                if kind == _FORK:
                    answer = _forked(link, files, children, *wanted)
                else:
                    with _ending_with(parent, children):
                        answer = _loaded(*wanted)
            except Exception as error:  # such as no memory for a fork
                answer = ERROR, portable(error)
            for each in files:
                os.close(each)
            link.send(*answer)
    _end_all(children)


def _end_all(children: Iterable[int]) -> None:
    for pid in children:
        if not _has_ended(pid):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


@contextmanager
def _ending_with(parent: int, children: Iterable[int]) -> Iterator[None]:
    """End this process and its workers with its parent, though what it does may never end."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PARENT_S):
            if os.getppid() != parent:
                _end_all(children)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()  # no other thread may run while it forks


def _forked(
    link: Link, files: list[int], children: set[int], begin: Callable[..., object], log_level: int
) -> tuple[bytes, object]:
    """Fork a worker. The answer: its id."""
    pid = os.fork()
    if not pid:
        try:
            link.close()
            begin(*files[1:])
            serve(Link(socket.socket(fileno=files[0])), log_level)
        finally:
            os._exit(0)
    children.add(pid)
    return RESULT, pid


def _loaded(module: str) -> tuple[bytes, object]:
    """Load a module. The answer: whether it started threads or opened files, so that this process must not be
    forked; or why it cannot be loaded."""
    before = _held()
    try:
        import_module(module)
    except Exception as error:
        return ERROR, portable(error)
    gc.collect()
    gc.freeze()  # or collecting in forks would copy the memory that they share
    return RESULT, any(now > then for now, then in zip(_held(), before, strict=True))


def _held() -> tuple[int, int]:
    """The numbers of threads of Python and of open files."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # a module that was loaded ignores SIGCHLD: nothing is left of what has ended
        return True
