"""SQL over given rows: a DuckDB connection that sees these rows and nothing else.

Expressions come from users, so the connection has access only to the rows: no files, no network, no
extensions, no environment variables, no setting that could be changed back. It runs in a separate process,
see :mod:`.confined`. Whether an expression is allowed is decided from its parse tree, before it is bound to
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from distop.errors import require
from distop.spark_jobs.rules.confined import Confined, NotEvaluable, SqlError

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
            if (what := _REFUSED.get(str(node.get("class")))) is not None:
                raise BadExpression(f"it may use only the columns of a row, but has {what}")
            if node.get("class") == "COLUMN_REF":
                names.add(str(node["column_names"][0]))
            elif node.get("class") == "FUNCTION":
                self._check_function(str(node.get("function_name")))
        # A comment at its end must not extend beyond it.
        return Expression(f"({text}\n)", frozenset(names))

    def _check_function(self, name: str) -> None:
        found = self.run("SELECT stability FROM duckdb_functions() WHERE function_name = ?", name.lower())
        if any(stability == "VOLATILE" for (stability,) in found):
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
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
