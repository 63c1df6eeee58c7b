"""A DuckDB connection in a separate process with a hard memory limit, which can be killed.

DuckDB limits the memory of sorting and grouping, not of the values that functions make: one expression can
take any amount of memory and time. So callers' expressions run in a limited process, which is killed when the
answer is no longer needed. Such processes are reused: starting one takes half a second.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

ADDRESS_SPACE = 1 << 30
"""Bytes that such a process may have in addition to its libraries."""
QUERY_S = 3600.0
"""Longest query."""
MAX_IDLE = 2
"""Idle processes that are kept."""

_LOOK_S = 0.2
_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""Environment variables that it gets: no secrets."""
_PROGRAM = "import sys, json; a = json.loads(sys.argv[1]); sys.path[:] = a.pop(); \
from distop.spark_jobs.rules.confined import main; main(*a)"


class NotEvaluable(Exception):
    """An expression fails for the value of some row. The text is the reason."""


class SqlError(Exception):
    """The query is invalid. The text is the reason."""


class _Process:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps([theirs.fileno(), os.getpid(), sys.path])],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
                start_new_session=True,  # the parent process handles Ctrl-C
            )
        self.link = Connection(ours.detach())

    def ask(self, message: tuple[Any, ...], look: Callable[[], None]) -> Any:
        """The answer. Raises the errors of ``look``; ``EOFError`` if the process has died, ``TimeoutError``
        if it takes too long."""
        self.link.send(message)
        end = time.monotonic() + QUERY_S
        while not self.link.poll(_LOOK_S):
            look()
            if time.monotonic() > end:
                raise TimeoutError
        return self.link.recv()

    def end(self) -> None:
        self.link.close()
        self._process.kill()
        self._process.wait()


_idle: list[_Process] = []
_lock = threading.Lock()


class Confined:
    """A connection, for one thread.

    Parameters
    ----------
    at:
        Its file, or ``:memory:``.
    settings:
        Statements to run first.
    look:
        Called during a query; its errors end the process.
    """

    def __init__(
        self, at: str, config: dict[str, Any], settings: Sequence[str], look: Callable[[], None]
    ) -> None:
        self._opening = ("open", at, config, list(settings))
        self._look = look
        self._rows: tuple[Any, ...] | None = None
        self._process: _Process | None = None

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of an answer.

        Raises
        ------
        NotEvaluable
            The query fails for these rows, or takes too much memory.
        SqlError
            The query is invalid.
        """
        found: list[tuple[Any, ...]] = self._ask("run", sql, list(parameters))
        return found

    def register(self, name: str, rows: Any) -> None:
        """Let queries see a ``pyarrow.Table`` under a name."""
        import pyarrow as pa

        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows)
            self._rows = ("register", name, sink.getvalue().to_pybytes())
        self._ask(*self._rows)

    def unregister(self) -> None:
        """Hide it again."""
        self._rows = None
        if self._process is not None:
            self._ask("unregister")

    def close(self) -> None:
        """Return the process."""
        if self._process is None:
            return
        with suppress(Exception):
            self._ask("close")
        with _lock:
            if self._process is None:
                return  # it has died meanwhile
            if len(_idle) < MAX_IDLE:
                _idle.append(self._process)
                self._process = None
        self._end()

    def _ask(self, *message: Any) -> Any:
        try:
            if self._process is None:
                self._begin()
                if self._rows is not None and message != self._rows:
                    self._answered(self._rows)
            return self._answered(message)
        except TimeoutError as error:
            self._end()
            raise NotEvaluable(f"it takes longer than {QUERY_S:,.0f} s") from error
        except (EOFError, OSError) as error:
            self._end()
            raise NotEvaluable(
                f"it takes more than {ADDRESS_SPACE >> 20} MiB of memory, or ends the process that it runs in"
            ) from error
        except (NotEvaluable, SqlError):
            raise
        except BaseException:  # the answer is no longer needed
            self._end()
            raise

    def _begin(self) -> None:
        while True:
            with _lock:
                kept = _idle.pop() if _idle else None
            self._process = kept or _Process()
            try:
                self._answered(self._opening)
                return
            except (EOFError, OSError):
                self._end()
                if kept is None:
                    raise

    def _answered(self, message: tuple[Any, ...]) -> Any:
        assert self._process is not None
        kind, value = self._process.ask(message, self._look)
        if kind == "done":
            return value
        raise (NotEvaluable if kind == "data" else SqlError)(value)

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


# -- in the process --------------------------------------------------------------------------------------


def main(file: int, parent: int) -> None:
    """Answer requests on this file until its other end is closed."""
    import duckdb
    import pyarrow as pa

    threading.Thread(target=_outlive_nobody, args=(parent,), daemon=True).start()
    _limit()
    link = Connection(file)
    connection: Any = None
    while True:
        try:
            message = link.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer: Any = None
            match message:
                case ("open", at, config, settings):
                    connection = duckdb.connect(at, config=config)
                    for setting in settings:
                        connection.execute(setting)
                case ("register", name, data):
                    registered = name
                    connection.register(name, pa.ipc.open_stream(data).read_all())
                case ("unregister",):
                    connection.unregister(registered)
                case ("run", sql, parameters):
                    answer = connection.execute(sql, parameters).fetchall()
                case ("close",):
                    connection.close()
            link.send(("done", answer))
        except (
            duckdb.DataError,
            duckdb.InvalidInputException,
            duckdb.OutOfMemoryException,
            MemoryError,
        ) as error:
            link.send(("data", _first_line(error) or "it takes too much memory"))
        except duckdb.Error as error:
            link.send(("error", _first_line(error)))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _limit() -> None:
    """Limit memory to what is loaded by now, plus :data:`ADDRESS_SPACE`."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _outlive_nobody(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
