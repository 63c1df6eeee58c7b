"""SQL over given rows: a DuckDB connection that sees these rows and nothing else, in a process of its own.

Expressions come from users, so the connection has access only to the rows: no files, no network, no
extensions, no environment variables, no setting that could be changed back. Whether an expression is allowed
is decided from its parse tree, before it is bound to columns.

DuckDB limits the memory of sorting and grouping, not of the values that functions make: one expression can
take any amount of memory and time. So callers' expressions run in a worker with a hard memory limit, which is
ended when the answer is no longer needed. Such workers are reused: starting one takes half a second.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import msgspec
import pyarrow as pa

from distop.errors import Busy, require
from distop.process.workers import Died, Idle, NotBegun, TooLong, Worker, spawned

ADDRESS_SPACE = 1 << 30
"""Bytes that such a process may have in addition to its libraries."""
QUERY_S = 3600.0
"""Seconds that a query may take."""
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
        rows: list[tuple[Any, ...]] = self._ask(partial(_run, sql, list(parameters)))
        return rows

    def register(self, name: str, rows: Any) -> None:
        """Let queries see a ``pyarrow.Table`` under a name."""
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
def _explained() -> Iterator[ModuleType]:
    """DuckDB, and its errors as their first lines."""
    import duckdb

    data = duckdb.DataError, duckdb.InvalidInputException, duckdb.OutOfMemoryException, MemoryError
    try:
        yield duckdb
    except data as error:
        raise NotEvaluable(_first_line(error) or "it takes too much memory") from None
    except duckdb.Error as error:
        raise SqlError(_first_line(error)) from None


def _open(at: str, config: dict[str, Any], settings: list[str]) -> None:
    global _connection
    with _explained() as duckdb:
        if _connection is None:
            _limit()  # only now: DuckDB itself takes 80 MiB
        _connection = duckdb.connect(at, config=config)
        for setting in settings:
            _connection.execute(setting)


def _register(name: str, data: bytes) -> None:
    global _registered

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
    with suppress(ImportError, OSError, ValueError):
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


MEMORY = "256MB"
"""Memory limit of one connection; beyond that it writes to its folder, or fails."""
MAX_EXPRESSION_CHARACTERS = 4096
ROWS = "rows"
"""The table name of the rows."""

_REFUSED = {
    "SUBQUERY": "a query within it",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "DEFAULT": "DEFAULT",
}


class BadExpression(ValueError):
    """An expression that is not allowed. The text is the reason, for the user."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Parameters
    ----------
    names:
        The names that it refers to, the first part of each.
    """

    sql: str
    names: frozenset[str]


def quoted(name: str) -> str:
    """A column's name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class SqlEngine:
    """One connection, for one thread.

    Parameters
    ----------
    folder:
        An empty folder for data that does not fit into memory. Default: none.
    look:
        Called now and then during a query; its errors end the query.
    """

    def __init__(self, folder: Path | None = None, look: Callable[[], None] = lambda: None) -> None:
        require("duckdb", "rules", "checking rules")
        at = ":memory:" if folder is None else str(folder / "rows.duckdb")
        # One thread: Spark gives each slot one core.
        config = {"threads": 1, "memory_limit": MEMORY}
        spill = "" if folder is None else str(folder).replace("'", "''")
        settings = (
            f"temp_directory = '{spill}'",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "python_enable_replacements = false",
            "TimeZone = 'UTC'",
            "enable_external_access = false",
            "lock_configuration = true",
        )
        self._connection = Confined(at, config, [f"SET {setting}" for setting in settings], look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of an answer: keep it small.

        Raises
        ------
        NotEvaluable
            The query fails for these rows.
        SqlError
            The query is invalid.
        """
        return self._connection.run(sql, parameters)

    @contextmanager
    def over(self, rows: Any) -> Iterator[None]:
        """Let queries see a ``pyarrow.Table`` as ``rows``."""
        self._connection.register(ROWS, rows)
        try:
            yield
        finally:
            self._connection.unregister()

    # -- expressions -----------------------------------------------------------------------------------

    def parse(self, text: str) -> Expression:
        """One expression over the columns of a row. Raises :class:`BadExpression`."""
        if not text.strip():
            raise BadExpression("it is empty")
        if len(text) > MAX_EXPRESSION_CHARACTERS:
            raise BadExpression(f"it is longer than {MAX_EXPRESSION_CHARACTERS} characters")
        ((answer,),) = self.run("SELECT json_serialize_sql(?::VARCHAR)", f"SELECT ({text}\n)")
        try:
            tree: dict[str, Any] = msgspec.json.decode(answer)
        except RecursionError:
            raise BadExpression("it is nested too deep") from None
        if tree.get("error"):
            raise BadExpression(f"it is not an SQL expression: {tree.get('error_message', '')}")
        expression = _only_expression(tree)
        names: set[str] = set()
        for node in _nodes(expression):
            if (refused := _REFUSED.get(str(node.get("class")))) is not None:
                raise BadExpression(f"it may use only the columns of a row, but has {refused}")
            if node.get("class") == "COLUMN_REF":
                names.add(str(node["column_names"][0]))
            elif node.get("class") == "FUNCTION":
                self._check_function(str(node.get("function_name")))
        # A comment at its end must not extend beyond it.
        return Expression(f"({text}\n)", frozenset(names))

    def _check_function(self, name: str) -> None:
        rows = self.run("SELECT stability FROM duckdb_functions() WHERE function_name = ?", name.lower())
        if any(stability == "VOLATILE" for (stability,) in rows):
            raise BadExpression(f"{name}() is not deterministic")

    def check_condition(self, expression: Expression, rows: Any) -> None:
        """Whether an expression is a condition on these rows; raises :class:`BadExpression`."""
        with self.over(rows):
            try:
                ((_, kind, *_),) = self.run(f"DESCRIBE SELECT {expression.sql} FROM {ROWS}")
                self.run(f"SELECT count(*) FILTER (WHERE NOT {expression.sql}) FROM {ROWS}")
            except (SqlError, NotEvaluable) as error:
                raise BadExpression(str(error)) from None
        if kind != "BOOLEAN":
            raise BadExpression(f"it is not a condition, its values are {kind}")


def _only_expression(tree: dict[str, Any]) -> Any:
    """The expression of ``SELECT (expression)``, if there is nothing else."""
    statements = tree.get("statements") or [{}]
    node = statements[0].get("node") or {}
    chosen = node.get("select_list") or []
    more = (
        len(statements) != 1
        or node.get("type") != "SELECT_NODE"
        or len(chosen) != 1
        or (node.get("from_table") or {}).get("type") != "EMPTY"
        or any(node.get(part) for part in ("modifiers", "where_clause", "having", "qualify", "sample"))
    )
    if more:
        raise BadExpression("it is more than one SQL expression")
    return chosen[0]


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """All objects of a parse tree."""
    waiting = [part]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
