"""Predicates at random, of tables at random: every way to select rows gives the answer that DuckDB gives.

``python -m truth.predicates`` with ``PYTHONPATH=tests`` tries many, and prints each difference.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import UUID

import duckdb
import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyiceberg import expressions as iceberg
from pyiceberg.expressions.literals import DateLiteral, LongLiteral, StringLiteral, TimestampLiteral

from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.schemas import parse_schema
from distop.lake.predicates.binding import (
    And,
    BoundComparison,
    Node,
    OneOf,
    Or,
    Predicate,
    chosen,
    predicate_of,
    truth,
)
from distop.lake.predicates.proofs import Pruning
from distop.lake.rules.model import Rule, RuleSet
from distop.lake.storage.allowed import ALL as EVERYWHERE
from distop.lake.writing.writer import StagedWriter
from distop.metastore.records.operation import JobRecord
from distop.operations.job import staging_folder, staging_stem
from distop.spark_jobs.compact.argument import Sizes
from distop.spark_jobs.compact.planning import Chooser
from distop.spark_jobs.delete.operation import Delete
from distop.spark_jobs.rules.gate import RowChecks
from distop.spark_jobs.tables import open_snapshot
from support.sources.ingesting import Ingesting
from support.tables.indexing import Indexing
from support.tables.maintaining import Run
from support.tables.publishing import Staged, Table

PREDICATES_OF_A_TABLE = 10
"""How many are tried with one table."""

Row = dict[str, Any]


class Literal(NamedTuple):
    """A value in a predicate: as distop reads it, and as DuckDB does."""

    text: str
    sql: str


def same(text: str) -> Literal:
    return Literal(text, text)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Kind:
    """A type of columns: some of its values, and what they are compared with."""

    name: str
    values: Sequence[Any]
    literals: Sequence[Literal]
    transforms: Sequence[str] = ("{}", "bucket(3, {})")
    is_float: bool = False
    is_text: bool = False


def numbers(*texts: str) -> list[Literal]:
    return [same(text) for text in texts]


def floats(kind: str, *texts: str) -> list[Literal]:
    """A number is what the column can hold of it. So it is for DuckDB if it has the column's type."""
    plain = [Literal(text, f"CAST('{text}' AS {kind})") for text in texts]
    return [*plain, *(same(quoted(text)) for text in ("nan", "inf", "-Infinity"))]


FLOAT_TEXTS = ("0", "-0.0", "0.1", "1", "-1.5", "2.5", "7", "16777217", "1e-3", "1e30")
FLOATS = (-math.inf, -1.5, -0.0, 0.0, 0.1, 1.0, 2.5, 7.0, 16777216.0, math.inf, math.nan)
MOMENTS = [
    datetime.fromisoformat(text)
    for text in (
        "1900-01-01",
        "1969-12-31T23:59:59.999999",
        "1970-01-01",
        "2024-02-29T12:30:00",
        "2024-02-29T12:30:00.000001",
        "2262-01-01",
    )
]
MOMENT_TEXTS = (
    "1900-01-01T00:00:00",
    "1969-12-31T23:59:59.999999",
    "1970-01-01 00:00:00",
    "2024-02-29T12:30:00Z",
    "2024-02-29T12:30:00.000001",
    "2300-01-01T00:00:00.5",
)
TEXTS = (
    "",
    "a",
    "ab",
    "a_c",
    "abc",
    "a%c",
    "b",
    "Z",
    "é",
    "\U0010ffff",
    "a\nb",
    "a\\",
    "ab'c",
    "a" * 20,
    "a" * 21,
)
PATTERNS = (
    "%",
    "a%",
    "a_c",
    "a\\_c",
    "a\\%%",
    "_",
    "%b%",
    "_b%",
    "ab",
    "%\\\\",
    "é",
    "__%",
    "a" * 17 + "%",
    "%'c",
)

KINDS = (
    Kind("boolean", (True, False), [same("true"), same("false")], ("{}",)),
    Kind(
        "int",
        (-(2**31), -2, -1, 0, 1, 2, 3, 2**31 - 1),
        numbers("-2", "0", "1", "1.0", "1.5", "-0.5", "2.5", "3", "2147483647", "99999999999"),
        ("{}", "bucket(3, {})", "truncate(4, {})"),
    ),
    Kind(
        "long",
        (-(2**63), -2, -1, 0, 1, 2, 2**53 + 1, 2**63 - 1),
        numbers("-1", "0", "1.5", "2", "9007199254740992", "9007199254740993", "9223372036854775808"),
        ("{}", "bucket(3, {})", "truncate(4, {})"),
    ),
    Kind("float", FLOATS, floats("FLOAT", *FLOAT_TEXTS), ("{}",), is_float=True),
    Kind("double", FLOATS, floats("DOUBLE", *FLOAT_TEXTS, "1e300"), ("{}",), is_float=True),
    Kind(
        "decimal(9,2)",
        [Decimal(text) for text in ("-9999999.50", "-0.07", "0.00", "1.50", "10.50", "9999999.99")],
        numbers("1.5", "1.50", "1.505", "0", "-0.07", "10", "9999999.995", "123456789012"),
        ("{}", "bucket(3, {})", "truncate(50, {})"),
    ),
    Kind(
        "date",
        [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        [
            same(quoted(text))
            for text in ("0001-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "2024-03-01")
        ],
        ("{}", "bucket(3, {})", "year({})", "month({})", "day({})"),
    ),
    Kind(
        "time",
        [time(), time(12, 34, 56, 1), time(23, 59, 59, 999_999)],
        [same(quoted(text)) for text in ("00:00:00", "12:34:56.000001", "12:35:00", "23:59:59.999999")],
    ),
    Kind(
        "timestamp",
        MOMENTS,
        [same(quoted(text)) for text in MOMENT_TEXTS],
        ("{}", "bucket(3, {})", "year({})", "month({})", "day({})", "hour({})"),
    ),
    Kind(
        "timestamptz",
        [moment.replace(tzinfo=UTC) for moment in MOMENTS],
        [same(quoted(text)) for text in (*MOMENT_TEXTS, "2024-02-29T14:30:00.000001+02:00")],
        ("{}", "bucket(3, {})", "year({})", "month({})", "day({})", "hour({})"),
    ),
    Kind(
        "string",
        TEXTS,
        [same(quoted(text)) for text in TEXTS],
        ("{}", "bucket(3, {})", "truncate(1, {})", "truncate(2, {})"),
        is_text=True,
    ),
    Kind(
        "uuid",
        [UUID(int=0), UUID(int=1 << 127), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")],
        [
            same(quoted(str(value)))
            for value in (UUID(int=0), UUID(int=2), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"))
        ],
    ),
    Kind(
        "binary",
        [b"", b"a", b"abc", b"\x00\xff", b"\xff\xff", b"a\\"],
        [same(quoted(text)) for text in ("", "a", "abc", "\\x00\\xFF", "b", "a\\x5C")],
        ("{}", "bucket(3, {})", "truncate(1, {})"),
    ),
    Kind(
        "fixed[2]",
        [b"aa", b"ab", b"\xff\xff"],
        [same(quoted(text)) for text in ("aa", "ab", "b", "\\xFF\\xff")],
        ("{}", "bucket(3, {})"),
    ),
)


@dataclass(frozen=True)
class Condition:
    """A predicate in both languages."""

    text: str
    sql: str


@dataclass(frozen=True)
class Case:
    """A table, and predicates on it."""

    kinds: dict[str, Kind]
    partition_by: tuple[str, ...]
    files: list[list[Row]]
    conditions: list[Condition]

    def __str__(self) -> str:
        kinds = {name: kind.name for name, kind in self.kinds.items()}
        return f"columns {kinds}\npartitions {self.partition_by}\nfiles {self.files}"


def leaf_of(name: str, kind: Kind) -> st.SearchStrategy[Condition]:
    """A condition on one column."""

    def compared(op: str, value: Literal, mirrored: bool) -> Condition:
        parts = [(name, op, text) for text in value]
        text, sql = (
            f"{right} {op} {left}" if mirrored else f"{left} {op} {right}" for left, op, right in parts
        )
        return Condition(text, sql)

    def listed(values: list[Literal], word: str) -> Condition:
        text, sql = (", ".join(literal[at] for literal in values) for at in (0, 1))
        return Condition(f"{name} {word} ({text})", f"{name} {word} ({sql})")

    def between(low: Literal, high: Literal, word: str) -> Condition:
        return Condition(
            f"{name} {word} {low.text} and {high.text}", f"{name} {word} {low.sql} AND {high.sql}"
        )

    def tested(word: str) -> Condition:
        return Condition(f"{name} is {word}", f"{name} IS {word}")

    def nan(negated: bool) -> Condition:
        known = f"isnan({name})" if kind.is_float else f"CASE WHEN {name} IS NULL THEN NULL ELSE false END"
        return Condition(f"{name} is {'not ' * negated}nan", f"({'NOT ' * negated}{known})")

    literal = st.sampled_from(kind.literals)
    ops = st.sampled_from(["<", "<=", ">", ">=", "=", "==", "!=", "<>"])
    choices = [
        st.builds(compared, ops, literal, st.booleans()),
        st.builds(listed, st.lists(literal, min_size=1, max_size=4), st.sampled_from(["in", "not in"])),
        st.builds(between, literal, literal, st.sampled_from(["between", "not between"])),
        st.builds(tested, st.sampled_from(["null", "not null"])),
        st.builds(nan, st.booleans()),
    ]
    if kind.is_text:
        words = st.sampled_from(["like", "not like"])

        def like(word: str, pattern: str) -> Condition:
            text = f"{name} {word} {quoted(pattern)}"
            return Condition(text, f"{text} ESCAPE '\\'")

        choices.append(st.builds(like, words, st.sampled_from(PATTERNS)))
    return st.one_of(*choices)


def conditions_on(kinds: dict[str, Kind]) -> st.SearchStrategy[Condition]:
    def joined(left: Condition, right: Condition, word: str) -> Condition:
        return Condition(f"({left.text} {word} {right.text})", f"({left.sql} {word} {right.sql})")

    def negated(inner: Condition) -> Condition:
        return Condition(f"not ({inner.text})", f"NOT ({inner.sql})")

    constants = st.sampled_from(["true", "false"]).map(lambda word: Condition(word, word))
    leaves = st.one_of(*(leaf_of(name, kind) for name, kind in kinds.items()), constants)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(joined, inner, inner, st.sampled_from(["and", "or"])), st.builds(negated, inner)
        ),
        max_leaves=4,
    )


@st.composite
def cases(draw: st.DrawFn, predicates: int = PREDICATES_OF_A_TABLE) -> Case:
    chosen = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    kinds = {f"c{number}": kind for number, kind in enumerate(chosen)}
    split_by = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=2, unique=True))
    terms = [draw(st.sampled_from(kinds[name].transforms)).format(name) for name in split_by]
    row = st.fixed_dictionaries(
        {name: st.one_of(st.none(), *[st.sampled_from(kind.values)] * 4) for name, kind in kinds.items()}
    )
    files = draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=3))
    conditions = draw(st.lists(conditions_on(kinds), min_size=predicates, max_size=predicates))
    return Case(kinds, tuple(terms), files, conditions)


# -- the reference -------------------------------------------------------------------------------------


class Reference:
    """DuckDB, which has the rows in memory."""

    def __init__(self) -> None:
        self._duckdb = duckdb.connect(config={"threads": 1})
        self._duckdb.execute("SET TimeZone = 'UTC'")

    def holds(self, case: Case, rows: pa.Table) -> None:
        """Give it the rows of a case."""
        plain = rows
        for at, column in enumerate(rows.schema):
            if (kind := case.kinds.get(column.name)) is not None and kind.name == "uuid":
                texts = [None if value is None else str(value) for value in rows[at].to_pylist()]
                plain = plain.set_column(at, column.name, pa.array(texts, pa.string()))
        chosen = [
            f"CAST({name} AS UUID) AS {name}" if kind.name == "uuid" else name
            for name, kind in case.kinds.items()
        ]
        self._duckdb.register("given", plain)
        self._duckdb.execute(f"CREATE OR REPLACE TABLE rows AS SELECT id, {', '.join(chosen)} FROM given")
        self._duckdb.unregister("given")

    def answers(self, condition: Condition) -> dict[int, bool | None]:
        """By the id of each row."""
        return dict(self._duckdb.execute(f"SELECT id, ({condition.sql}) FROM rows").fetchall())


# -- the ways to select rows ---------------------------------------------------------------------------


@dataclass
class World:
    """A case as a table of distop."""

    case: Case
    folder: Path
    rows: pa.Table = field(init=False)
    table: Table = field(init=False)
    files: dict[str, list[int]] = field(init=False)
    """Path of a data file -> the ids in it."""

    def __post_init__(self) -> None:
        kinds = {"id": "long", **{name: kind.name for name, kind in self.case.kinds.items()}}
        schema = parse_schema(kinds)
        layout = Layout.create(schema, list(self.case.partition_by))
        self.table = Table("t", f"file://{self.folder}/t", layout)
        numbered: list[Row] = []
        batches = []
        for file in self.case.files:
            some = [row | {"id": len(numbered) + at} for at, row in enumerate(file)]
            numbered += some
            batches.append(self._batch(some))
        self.rows = pa.Table.from_batches(batches)
        for number, batch in enumerate(batches):
            self.table.publish(self._staged(batch, in_groups=number % 2 == 0))
        self.files = {
            path: pq.read_table(path.removeprefix("file://"), columns=["id"])["id"].to_pylist()
            for path in self.table.data_files()
        }

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        columns = [
            pa.array(
                [
                    row[column.name].bytes if isinstance(row[column.name], UUID) else row[column.name]
                    for row in rows
                ],
                column.type.storage_type if isinstance(column.type, pa.ExtensionType) else column.type,
            )
            for column in self.table.layout.arrow_schema
        ]
        arrays = [
            pa.ExtensionArray.from_storage(column.type, array)
            if isinstance(column.type, pa.ExtensionType)
            else array
            for column, array in zip(self.table.layout.arrow_schema, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.table.layout.arrow_schema)

    def _staged(self, batch: pa.RecordBatch, *, in_groups: bool) -> Staged:
        """One file a partition; ``in_groups``: with a row group for each row."""
        staged = self.table.start()

        def path_for(suffix: str, folder: str) -> str:
            return f"{staging_folder(staged.arg, folder)}/{staging_stem('0', '1')}{suffix}"

        writer = StagedWriter(self.table.layout, path_for, row_group_bytes=1 if in_groups else 1 << 20)
        for at in range(batch.num_rows):
            writer.write(batch.slice(at, 1))
        staged.jobs["0"] = JobRecord(state="success", attempt="1", result=writer.finish())
        return staged

    @cached_property
    def indexes(self) -> list[Any]:
        world = Indexing(self.table)
        for name in self.case.kinds:
            world.build(name)
        return world.records()

    @cached_property
    def source(self) -> str:
        """The rows as a file to ingest."""
        path = self.folder / "rows.parquet"
        pq.write_table(self.rows.replace_schema_metadata().cast(_without_ids(self.rows.schema)), path)
        return str(path)


def _without_ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in schema])


Selected = list[int]


def read(world: World, text: str, **options: Any) -> Selected:
    snapshot = open_snapshot(world.table.record().metadata_location, **options)
    batches = snapshot.batches(snapshot.plan_files(text), columns=["id"], where=text)
    return sorted(id for batch in batches for id in batch["id"].to_pylist())


def read_by_index(world: World, text: str) -> Selected:
    return read(world, text, indexes=world.indexes)


def deleted(world: World, text: str) -> Selected:
    apart = world.table.apart()
    facts = Run.of(apart, Delete(), where=text).finish()
    remaining = set(apart.ids())
    gone = [id for id in world.rows["id"].to_pylist() if id not in remaining]
    assert facts["removedRows"] == len(gone)
    return gone


def ingested(world: World, text: str) -> Selected:
    with TemporaryDirectory(dir=world.folder) as folder:
        target = Ingesting(Path(folder))
        target.ingest(paths=world.source, filter=text)
        return target.table.ids() if target.table.head.exists else []


def merged(world: World, text: str) -> Selected:
    """The rows that a merge with this condition deletes."""
    with TemporaryDirectory(dir=world.folder) as folder:
        target = Ingesting(Path(folder))
        target.ingest(paths=world.source)
        target.facts(paths=world.source, mode="merge", keys=["id"], delete_where=text, reingest=True)
        remaining = set(target.table.ids())
        return [id for id in world.rows["id"].to_pylist() if id not in remaining]


def read_by_another_program(world: World, text: str) -> Selected:
    """What pyiceberg reads for the part of the predicate that means the same there: it must be enough."""
    predicate = predicate_of(text, world.table.layout.schema)
    table = world.table.iceberg()
    try:
        rows = table.scan(row_filter=_as_iceberg(predicate.node)).to_arrow()
    except OverflowError:  # pyiceberg looks at the day before the first, of the year 1, and after the last
        rows = table.scan().to_arrow()
    return sorted(chosen(predicate, rows)["id"].to_pylist())


# Declared as callable with anything: mypy takes their fields for parameters.
_ICEBERG: dict[str, Callable[..., iceberg.BooleanExpression]] = {
    "<": iceberg.LessThan,
    "<=": iceberg.LessThanOrEqual,
    ">": iceberg.GreaterThan,
    ">=": iceberg.GreaterThanOrEqual,
    "=": iceberg.EqualTo,
    "in": iceberg.In,
}
_LITERALS: dict[str, Callable[[Any], Any]] = {
    "int": LongLiteral,
    "long": LongLiteral,
    "date": DateLiteral,
    "timestamp": TimestampLiteral,
    "timestamptz": TimestampLiteral,
    "string": StringLiteral,
}


def _as_iceberg(node: Node) -> iceberg.BooleanExpression:
    """An expression that is true of all rows of which the predicate is."""
    match node:
        case And(parts):
            return iceberg.And(*map(_as_iceberg, parts))
        case Or(parts):
            return iceberg.Or(*map(_as_iceberg, parts))
        case BoundComparison(column, op, value) if op in _ICEBERG and str(column.kind) in _LITERALS:
            return _ICEBERG[op](column.name, _LITERALS[str(column.kind)](value))
        case OneOf(column, values, _, False) if values and str(column.kind) in _LITERALS:
            return _ICEBERG["in"](column.name, {_LITERALS[str(column.kind)](value) for value in values})
    return iceberg.AlwaysTrue()


OFTEN: tuple[Callable[[World, str], Selected], ...] = (read, read_by_index)
"""Ways that are tried with each predicate."""
SELDOM: tuple[Callable[[World, str], Selected], ...] = (deleted, ingested, merged, read_by_another_program)
"""Ways of which one is tried with each."""


def disagreements(
    world: World, condition: Condition, answers: dict[int, bool | None], turn: int
) -> Iterator[str]:
    """What differs from the reference."""
    text = condition.text
    predicate = predicate_of(text, world.table.layout.schema)
    in_memory = dict(zip(answers, truth(predicate, world.rows).to_pylist(), strict=True))
    if in_memory != answers:
        yield f"in memory: {in_memory}"
    expected = sorted(id for id, answer in answers.items() if answer)
    pruning = Pruning(world.table.iceberg().metadata, predicate)
    for entry in world.table.entries():
        ids = world.files[entry.data_file.file_path]
        matching = set(ids) & set(expected)
        if matching and not pruning.file(entry.data_file):
            yield f"a file with {matching} is left out"
        if pruning.whole(entry.data_file) and matching != set(ids):
            yield f"a file with {set(ids) - matching} would be deleted as a whole"
    for way in (*OFTEN, SELDOM[turn % len(SELDOM)]):
        if (selected := way(world, text)) != expected:
            yield f"{way.__name__}: {selected}"
    if (broken := broken_rule(world, condition)) != sum(answer is False for answer in answers.values()):
        yield f"rule: {broken} rows break it"
    if missed := left_by_compaction(world, predicate, expected):
        yield f"compaction: {missed} are left out"


def broken_rule(world: World, condition: Condition) -> int:
    """How many rows break a rule with this condition: those for which it is false."""
    names = list(world.case.kinds)
    rule = Rule(name="r", kind="row", columns=names, violated=f"NOT ({condition.sql})")
    with RowChecks(RuleSet(rules=[rule], samples=0), lambda: world.folder) as checks:
        checks.check(world.rows)
        return sum(violation.count for violation in checks.finish())


def left_by_compaction(world: World, predicate: Predicate, expected: Sequence[int]) -> set[str]:
    """Files with rows that match, in partitions with several, that a compaction leaves out."""
    metadata = world.table.iceberg().metadata
    io = file_io(metadata.location, {})
    sizes = Sizes(target_file=1 << 20, smaller_than=1 << 20, job=1 << 30)
    choice = Chooser(metadata, io, sizes, min_files=1, where=predicate).choose()
    taken = {file.path for bins in choice.groups.values() for files in bins for file in files}
    matching = defaultdict(set)
    for entry in world.table.entries():
        path = entry.data_file.file_path
        if set(world.files[path]) & set(expected):
            matching[repr(entry.data_file.partition)].add(path)
    return {path for paths in matching.values() if len(paths) > 1 for path in paths if path not in taken}


# -- the runs ------------------------------------------------------------------------------------------


def differences_of(case: Case, reference: Reference, turn: int = 0) -> list[str]:
    """All differences of a case."""
    differences = []
    with TemporaryDirectory() as folder:
        world = World(case, Path(folder))
        reference.holds(case, world.rows)
        for number, condition in enumerate(case.conditions):
            answers = reference.answers(condition)
            differing = disagreements(world, condition, answers, turn + number)
            differences += [f"{condition.text}\n  duckdb: {answers}\n  {text}" for text in differing]
    return differences


def predicates(examples: int, seed: int) -> dict[str, int]:
    """Try so many predicates; print the differences.

    Returns
    -------
    ``predicates``, the number that were tried, and ``differences``.
    """
    reference, counted = Reference(), Counter[str](predicates=0, differences=0)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=math.ceil(examples / PREDICATES_OF_A_TABLE),
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases())
    def tried(case: Case) -> None:
        if counted["predicates"] >= examples:
            return
        differences = differences_of(case, reference, counted["predicates"])
        counted["predicates"] += len(case.conditions)
        counted["differences"] += len(differences)
        for difference in differences:
            print(f"{case}\n{difference}\n", file=sys.stderr, flush=True)

    tried()
    return dict(counted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000, help="predicates to try")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    os.environ.update(EVERYWHERE)
    figures = predicates(chosen.examples, chosen.seed)
    print(json.dumps(figures))
    return 1 if figures["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
