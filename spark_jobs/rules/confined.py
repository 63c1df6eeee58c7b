"""A DuckDB connection in a separate process with a hard memory limit, which can be killed.

DuckDB limits the memory of sorting and grouping, not of the values that functions make: one expression can
take any amount of memory and time. So callers' expressions run in a worker with a limit, which is ended when
the answer is no longer needed. Such workers are reused: starting one takes half a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from distop.errors import Busy
from distop.process.workers import Died, Idle, NotBegun, TooLong, Worker, spawned

ADDRESS_SPACE = 1 << 30
"""Bytes that such a process may have in addition to its libraries."""
QUERY_S = 3600.0
"""Longest query."""
MAX_IDLE = 2
"""Idle processes that are kept."""

_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""Environment variables that it gets: no secrets."""


class NotEvaluable(Exception):
    """An expression fails for the value of some row. The text is the reason."""


class SqlError(Exception):
    """The query is invalid. The text is the reason."""


_idle = Idle(MAX_IDLE)


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
        self._opening = partial(_open, at, config, list(settings))
        self._look = look
        self._rows: partial[None] | None = None
        self._worker: Worker | None = None

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of an answer.

        Raises
        ------
        NotEvaluable
            The query fails for these rows, or takes too much memory.
        SqlError
            The query is invalid.
        Busy
            Its process has not begun: the machine is busy.
        """
        found: list[tuple[Any, ...]] = self._ask(partial(_run, sql, list(parameters)))
        return found

    def register(self, name: str, rows: Any) -> None:
        """Let queries see a ``pyarrow.Table`` under a name."""
        import pyarrow as pa

        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows)
            self._rows = partial(_register, name, sink.getvalue().to_pybytes())
        self._ask(self._rows)

    def unregister(self) -> None:
        """Hide it again."""
        self._rows = None
        if self._worker is not None:
            self._ask(_unregister)

    def close(self) -> None:
        """Return the process."""
        if self._worker is None:
            return
        with suppress(Exception):
            self._ask(_close)
        if self._worker is not None:  # it has not died meanwhile
            _idle.put(self._worker)
            self._worker = None

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            if self._worker is None:
                self._begin()
                if self._rows is not None and call is not self._rows:
                    self._answer(self._rows)
            return self._answer(call)
        except TooLong as error:
            raise NotEvaluable(f"it takes longer than {QUERY_S:,.0f} s") from error
        except NotBegun:  # it says nothing about the query
            raise Busy("the process for its rules has not begun: this machine is busy") from None
        except (Died, MemoryError) as error:
            raise NotEvaluable(
                f"it takes more than {ADDRESS_SPACE >> 20} MiB of memory, or ends the process that it runs in"
            ) from error
        finally:
            if self._worker is not None and not self._worker.is_idle:
                self._worker = None  # it was ended

    def _begin(self) -> None:
        while (kept := _idle.take()) is not None:
            self._worker = kept
            with suppress(Died):
                self._answer(self._opening)
                return
        self._worker = spawned({name: os.environ[name] for name in _KEPT if name in os.environ})
        self._answer(self._opening)

    def _answer(self, call: Callable[[], Any]) -> Any:
        assert self._worker is not None
        return self._worker.run(call, limit_s=QUERY_S, look=self._look)


# -- in the process --------------------------------------------------------------------------------------

_connection: Any = None
_registered = ""


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of DuckDB as their first lines."""
    import duckdb

    data = duckdb.DataError, duckdb.InvalidInputException, duckdb.OutOfMemoryException, MemoryError
    try:
        yield
    except data as error:
        raise NotEvaluable(_first_line(error) or "it takes too much memory") from None
    except duckdb.Error as error:
        raise SqlError(_first_line(error)) from None


def _open(at: str, config: dict[str, Any], settings: list[str]) -> None:
    global _connection
    import duckdb

    if _connection is None:
        _limit()
    with _explained():
        _connection = duckdb.connect(at, config=config)
        for setting in settings:
            _connection.execute(setting)


def _register(name: str, data: bytes) -> None:
    global _registered
    import pyarrow as pa

    _registered = name
    with _explained():
        _connection.register(name, pa.ipc.open_stream(data).read_all())


def _unregister() -> None:
    with _explained():
        _connection.unregister(_registered)


def _run(sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
    with _explained():
        rows: list[tuple[Any, ...]] = _connection.execute(sql, parameters).fetchall()
        return rows


def _close() -> None:
    _connection.close()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _limit() -> None:
    """Limit memory to what is loaded by now, plus :data:`ADDRESS_SPACE`."""
    import pyarrow as pa

    assert pa.__version__  # it counts as loaded
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
