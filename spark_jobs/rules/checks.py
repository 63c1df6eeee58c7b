"""Checking rows against rules, block by block, in bounded memory.

Conditions on single rows are counted as the rows are read. For rules of uniqueness the values are stored on
disk until all rows have been read, and compared then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from distop.errors import JobFailed
from distop.lake.rules.engine import ROWS, NotEvaluable, SqlEngine, quoted
from distop.lake.rules.model import Rule, RuleSet

MAX_VALUE_CHARACTERS = 200
"""Characters of a value in a sample row."""
BLOCK_BYTES = 32 << 20
"""Rows that are checked together; they are in memory several times meanwhile."""
MAX_JOB_SAMPLES_BYTES = 1 << 20
"""About the most bytes of a job's sample rows."""
TIMES = "times"
"""Field of a uniqueness rule's sample, in addition to the values: how often they occur."""
_EXACT = 1 << 53
"""Larger integers are text in JSON: other readers would lose their last digits."""


class Violation(msgspec.Struct, frozen=True):
    """How often one rule was broken."""

    rule: int
    """Its position in the rule set."""
    count: int
    """Rows that break it. For uniqueness: rows that repeat the values of another one."""
    samples: list[dict[str, Any]] = []


class Samples:
    """Sample rows by rule, until they have taken a number of bytes; a rule without any gets one even then."""

    def __init__(self, rules: int, of_each: int, room: int) -> None:
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(rules)]
        self._of_each, self._room = of_each, room

    def wanted(self, rule: int) -> int:
        """How many more rows of a rule there may be."""
        kept = len(self.rows[rule])
        return self._of_each - kept if self._room > 0 or not kept else 0

    def add(self, rule: int, rows: Iterable[dict[str, Any]]) -> None:
        """Take as many as may be."""
        for row in rows:
            if self.wanted(rule) <= 0:
                return
            self.rows[rule].append(row)
            self._room -= len(msgspec.json.encode(row))


class RowChecks:
    """Checks the rows of one job.

    Parameters
    ----------
    scratch:
        Makes a folder on local disk, for rules of uniqueness.
    look:
        Called now and then during the check; its errors end it.
    """

    def __init__(
        self, rules: RuleSet, scratch: Callable[[], Path], look: Callable[[], None] = lambda: None
    ) -> None:
        self._rules = rules
        self._by_row = [(at, rule) for at, rule in enumerate(rules.rules) if rule.kind == "row"]
        self._unique = [(at, rule) for at, rule in enumerate(rules.rules) if rule.kind == "unique"]
        self._engine = SqlEngine(scratch() if self._unique else None, look)
        self._begun = False
        self._counts = dict.fromkeys(range(len(rules.rules)), 0)
        self._samples = Samples(len(rules.rules), rules.samples, MAX_JOB_SAMPLES_BYTES)
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()

    def check(self, rows: pa.Table, source: str = "") -> None:
        """Check some rows.

        Parameters
        ----------
        source:
            Their source, named in samples.

        Raises
        ------
        JobFailed
            A condition fails for one of them.
        """
        if rows.nbytes > BLOCK_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            self.check(rows.slice(0, half), source)
            self.check(rows.slice(half), source)
            return
        self.rows += rows.num_rows
        if not rows.num_rows:
            return
        with self._engine.over(rows.select(self._rules.columns)):
            if self._by_row:
                self._count(source)
            if self._unique:
                self._keep()

    def finish(self) -> list[Violation]:
        """The findings; only broken rules."""
        if self._begun:
            for at, rule in self._unique:
                self._sort_out(at, rule)
        return [
            Violation(at, count, self._samples.rows[at])
            for at, count in sorted(self._counts.items())
            if count
        ]

    # -- conditions on a row ---------------------------------------------------------------------------

    def _count(self, source: str) -> None:
        counts = self._answer(f"SELECT {', '.join(_count_of(rule) for _, rule in self._by_row)} FROM {ROWS}")
        for (at, rule), count in zip(self._by_row, counts, strict=True):
            self._counts[at] += count
            wanted = self._samples.wanted(at)
            if count and wanted > 0:
                self._samples.add(at, self._examples(rule, wanted, source))

    def _answer(self, sql: str) -> tuple[int, ...]:
        try:
            (answer,) = self._engine.run(sql)
        except NotEvaluable as error:
            raise self._named(error) from error
        return answer

    def _named(self, error: NotEvaluable) -> JobFailed:
        """The failure, with the rule that fails."""
        for _, rule in self._by_row:
            try:
                self._engine.run(f"SELECT {_count_of(rule)} FROM {ROWS}")
            except NotEvaluable as refusal:
                return JobFailed(
                    f"rule {rule.name!r} cannot be evaluated for some row: {refusal}",
                    hint="guard it, for example with TRY_CAST",
                    details={"rule": rule.name},
                )
        return JobFailed(f"the rules cannot be evaluated: {error}")

    def _examples(self, rule: Rule, wanted: int, source: str) -> list[dict[str, Any]]:
        names = list(dict.fromkeys([*self._rules.shown, *rule.columns]))
        chosen = ", ".join(map(quoted, names))
        rows = self._engine.run(f"SELECT {chosen} FROM {ROWS} WHERE {rule.violated} LIMIT {wanted}")
        return [_sample(names, row) | ({"file": source} if source else {}) for row in rows]

    # -- uniqueness ------------------------------------------------------------------------------------

    def _keep(self) -> None:
        for at, rule in self._unique:
            # Names of their own: a column may be called as the count of its values is.
            chosen = ", ".join(f"{quoted(name)} AS k{position}" for position, name in enumerate(rule.columns))
            whole = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in rule.columns)
            if not self._begun:
                self._engine.run(f"CREATE TABLE keys{at} AS SELECT {chosen} FROM {ROWS} LIMIT 0")
            self._engine.run(f"INSERT INTO keys{at} SELECT {chosen} FROM {ROWS} WHERE {whole}")
        self._begun = True

    def _sort_out(self, at: int, rule: Rule) -> None:
        chosen = ", ".join(f"k{position}" for position in range(len(rule.columns)))
        try:
            self._engine.run(
                f"CREATE TEMP TABLE twice{at} AS SELECT {chosen}, count(*) AS {TIMES} FROM keys{at} "
                f"GROUP BY {chosen} HAVING count(*) > 1"
            )
            ((repeated,),) = self._engine.run(f"SELECT sum({TIMES} - 1) FROM twice{at}")
            rows = self._engine.run(
                f"SELECT * FROM twice{at} ORDER BY {TIMES} DESC, {chosen} LIMIT {self._rules.samples}"
            )
        except NotEvaluable as error:
            raise JobFailed(
                f"rule {rule.name!r} cannot be evaluated: {error}", details={"rule": rule.name}
            ) from error
        self._counts[at] = int(repeated or 0)
        self._samples.add(at, (_sample([*rule.columns, TIMES], row) for row in rows))


def _count_of(rule: Rule) -> str:
    return f"count(*) FILTER (WHERE {rule.violated})"


def _sample(names: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in zip(names, row, strict=True)}


def _plain(value: Any) -> Any:
    """A value as JSON, shortened for people."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _EXACT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"
