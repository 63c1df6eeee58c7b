"""Deletion against a model: SQL's three values, worked out row by row in Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.spark_jobs.delete.operation import Delete
from support.tables.maintaining import Run
from support.tables.publishing import Table, table_of

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("x", pa.float64()), ("t", pa.string())])

Row = dict[str, Any]
Answer = bool | None
"""``None``: unknown."""

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
    "in": lambda value, among: value in among,
    "not in": lambda value, among: value not in among,
    "like": lambda value, prefix: value.startswith(prefix),
    "not like": lambda value, prefix: not value.startswith(prefix),
}
_OPPOSITE = {"<": ">=", "<=": ">", "=": "!=", "in": "not in", "like": "not like", "is null": "is not null"}
_OPPOSITE["is nan"] = "is not nan"
_OPPOSITE |= {after: before for before, after in _OPPOSITE.items()}


@dataclass(frozen=True)
class Leaf:
    column: str
    kind: str
    value: Any = None

    def sql(self) -> str:
        if self.kind.startswith("is"):
            return f"{self.column} {self.kind}"
        if self.kind.endswith("in"):
            return f"{self.column} {self.kind} ({', '.join(map(_text, self.value))})"
        wanted = f"{self.value}%" if self.kind.endswith("like") else self.value
        return f"{self.column} {self.kind} {_text(wanted)}"

    def of(self, row: Row, negated: bool = False) -> Answer:
        kind, value = _OPPOSITE[self.kind] if negated else self.kind, row[self.column]
        if kind in ("is null", "is not null"):
            return (value is None) == (kind == "is null")
        if value is None:
            return None
        if kind in ("is nan", "is not nan"):
            return math.isnan(value) == (kind == "is nan")
        return _COMPARED[kind](value, self.value)


@dataclass(frozen=True)
class Both:
    left: Any
    right: Any
    kind: str

    def sql(self) -> str:
        return f"({self.left.sql()} {self.kind} {self.right.sql()})"

    def of(self, row: Row, negated: bool = False) -> Answer:
        answers = [self.left.of(row, negated), self.right.of(row, negated)]
        decides = (self.kind == "or") != negated
        if decides in answers:
            return decides
        return None if None in answers else not decides


@dataclass(frozen=True)
class Opposite:
    of_what: Any

    def sql(self) -> str:
        return f"not ({self.of_what.sql()})"

    def of(self, row: Row, negated: bool = False) -> Answer:
        answer: Answer = self.of_what.of(row, not negated)
        return answer


def _text(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


NUMBERS = st.integers(-2, 3)
FLOATS = st.sampled_from([-1.5, 0.5, 1.5, 2.5])
TEXTS = st.sampled_from(["a", "ab", "b", "bc", "c"])
ORDERED = st.sampled_from(["<", "<=", ">", ">=", "=", "!="])


def leaves() -> st.SearchStrategy[Leaf]:
    values = {"n": NUMBERS, "x": FLOATS, "t": TEXTS}
    kinds = [st.builds(Leaf, st.just(column), ORDERED, value) for column, value in values.items()] + [
        st.builds(
            Leaf,
            st.just(column),
            st.sampled_from(["in", "not in"]),
            st.lists(value, min_size=1, max_size=3, unique=True).map(tuple),
        )
        for column, value in values.items()
    ]
    null = st.builds(Leaf, st.sampled_from(["n", "x", "t"]), st.sampled_from(["is null", "is not null"]))
    nan = st.builds(Leaf, st.just("x"), st.sampled_from(["is nan", "is not nan"]))
    like = st.builds(Leaf, st.just("t"), st.sampled_from(["like", "not like"]), TEXTS)
    beyond = st.builds(Leaf, st.just("n"), ORDERED, st.just(99_999_999_999))
    return st.one_of(*kinds, null, nan, like, beyond)


PREDICATES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(Both, inner, inner, st.sampled_from(["and", "or"])), st.builds(Opposite, inner)
    ),
    max_leaves=5,
)
ROWS = st.fixed_dictionaries(
    {"n": st.none() | NUMBERS, "x": st.none() | FLOATS | st.just(math.nan), "t": st.none() | TEXTS}
)
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=3)
PARTITIONS = st.sampled_from([(), ("t",), ("n",), ("truncate(1, t)",), ("bucket(3, n)",), ("n", "t")])


def filled(folder: Path, files: list[list[Row]], partition_by: tuple[str, ...]) -> tuple[Table, list[Row]]:
    table = table_of(folder, COLUMNS, *partition_by)
    rows: list[Row] = []
    for file in files:
        numbered = [row | {"id": len(rows) + at} for at, row in enumerate(file)]
        rows += numbered
        table.publish(table.staged([pa.RecordBatch.from_pylist(numbered, COLUMNS)]))
    return table, rows


@settings(max_examples=25)
@given(files=FILES, predicate=PREDICATES, partition_by=PARTITIONS)
def test_what_is_left_is_what_the_predicate_is_not_true_of(
    files: list[list[Row]], predicate: Any, partition_by: tuple[str, ...]
) -> None:
    """Whatever partitions and statistics exclude or prove, and whatever is read."""
    with TemporaryDirectory() as folder:
        table, rows = filled(Path(folder), files, partition_by)
        gone = [row["id"] for row in rows if predicate.of(row) is True]
        run = Run.of(table, Delete(), where=predicate.sql())
        assert run.finish()["removedRows"] == len(gone)
        assert table.ids() == [row["id"] for row in rows if row["id"] not in gone]
