"""Filters as they come over the wire mean what they meant where they were made."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import expressions as ex
from pyiceberg.expressions import BooleanExpression, EqualTo, In, IsNull
from pyiceberg.expressions.visitors import bind, expression_evaluator, rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StructType

from distop.commit.layout.model import Layout, file_io, load_metadata
from distop.commit.layout.schemas import parse_schema
from distop.commit.scans.pages import planned, whole
from distop.commit.scans.predicates import read_filter
from distop.commit.scans.scan import Scan, Wanted
from distop.errors import InvalidArgument
from support.tables.publishing import Table

SCHEMA = parse_schema(["i: long", "s: string", "d: double"])
KINDS = """
n:int day:date time:time at:timestamp utc:timestamptz
price:decimal(9,2) raw:binary pair:fixed[2] key:uuid share:float
"""
NESTED = NestedField(100, "in", StructType(NestedField(101, "Deep", LongType())))
TYPED = Schema(*parse_schema(KINDS.split()).fields, NESTED)

numbers, letters = st.integers(-3, 3), st.text("ab", max_size=2)
leaves = st.one_of(
    st.builds(lambda kind, n: kind("i", n), st.sampled_from([EqualTo, ex.NotEqualTo, ex.LessThan]), numbers),
    st.builds(lambda kind, ns: kind("i", ns), st.sampled_from([In, ex.NotIn]), st.sets(numbers, max_size=3)),
    st.builds(lambda kind, s: kind("s", s), st.sampled_from([ex.StartsWith, ex.GreaterThanOrEqual]), letters),
    st.builds(lambda kind, name: kind(name), st.sampled_from([IsNull, ex.NotNull]), st.sampled_from("isd")),
    st.just(ex.IsNaN(term="d")),
)


def joined(inner: st.SearchStrategy[BooleanExpression]) -> st.SearchStrategy[BooleanExpression]:
    return st.builds(ex.And, inner, inner) | st.builds(ex.Or, inner, inner) | st.builds(ex.Not, child=inner)


expressions: st.SearchStrategy[BooleanExpression] = st.recursive(leaves, joined, max_leaves=8)
rows = st.tuples(
    st.none() | numbers, st.none() | letters, st.none() | st.floats(-2, 2) | st.just(float("nan"))
)


@given(expressions, st.lists(rows, min_size=1, max_size=8))
def test_a_filter_is_true_of_the_same_rows_as_the_one_that_was_sent(
    sent: BooleanExpression, rows: list[tuple[Any, ...]]
) -> None:
    read = read_filter(json.loads(sent.model_dump_json()), SCHEMA)
    assert read.whole
    before, after = (expression_evaluator(SCHEMA, one, True) for one in (rewrite_not(sent), read.expression))
    for row in rows:
        assert before(Record(*row)) == after(Record(*row))


def test_files_of_a_partition_of_null_are_planned_by_what_sql_says_of_it(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    table = Table("flights", f"file://{tmp_path}/flights", Layout.create(columns, ["x"]))
    batch = pa.record_batch({"id": range(3), "x": [1, None, 7]}, schema=columns)
    table.publish(table.staged([batch]))
    metadata = load_metadata(table.record().metadata_location)
    small = {"type": "lt", "term": "x", "value": 5}
    asked = {"type": "or", "left": {"type": "is-null", "term": "x"}, "right": small}
    scan = Scan(metadata, file_io(metadata.location), Wanted(filter=asked))
    tasks = planned(scan, whole(scan), lambda *_: None).tasks
    assert {task.file.partition[0]: task.all_rows for task in tasks} == {1: True, None: False}


def literal(column: str, value: Any) -> Any:
    """What a literal becomes when it is compared with its column."""
    return compared(read_filter({"type": "eq", "term": column, "value": value}, TYPED).expression)


def compared(expression: BooleanExpression) -> Any:
    """The literal of a comparison, as that of its column's type."""
    bound: Any = bind(TYPED, expression, case_sensitive=True)
    return bound.literal.value


@pytest.mark.parametrize(
    ("column", "given", "meant"),
    [
        ("day", "2024-02-29", date(2024, 2, 29)),
        ("day", 19782, date(2024, 2, 29)),
        ("time", "01:02:03.000004", time(1, 2, 3, 4)),
        ("at", "2024-02-29T01:02:03.000004", datetime.fromisoformat("2024-02-29T01:02:03.000004")),
        ("at", 1709168523000004, datetime.fromisoformat("2024-02-29T01:02:03.000004")),
        ("utc", "2024-02-29T01:02:03+00:00", datetime.fromisoformat("2024-02-29T01:02:03+00:00")),
        ("utc", "2024-02-29T01:02:03-01:00", datetime.fromisoformat("2024-02-29T02:02:03+00:00")),
        ("utc", "2024-02-29T01:02:03", datetime.fromisoformat("2024-02-29T01:02:03+00:00")),
        ("price", "1.50", Decimal("1.50")),
        ("price", "1.5", Decimal("1.50")),
        ("price", 2, Decimal("2.00")),
        ("raw", "00fF", b"\x00\xff"),
        ("pair", "00FF", b"\x00\xff"),
        ("key", "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678").bytes),
        ("share", 0.1, 0.10000000149011612),
        ("in.Deep", {"type": "literal", "value": 3}, 3),
    ],
)
def test_a_literal_is_what_its_column_holds(column: str, given: Any, meant: Any) -> None:
    """E1: as Iceberg writes single values as JSON, and as numbers of days and microseconds."""
    assert literal(column, given) == compared(EqualTo(term=column, value=meant))


def test_a_list_of_values_that_a_column_cannot_hold_leaves_out_none_that_it_can() -> None:
    given = {"type": "not-in", "term": "n", "values": [2**31, 2**31 + 1]}
    assert read_filter(given, TYPED).expression == ex.AlwaysTrue()
    among = read_filter({"type": "in", "term": "n", "values": [5, 6, 2**31]}, TYPED).expression
    assert among == In(term="n", literals=[5, 6])


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ("day", "yesterday"),
        ("price", "1.555"),
        ("price", "NaN"),
        ("price", "1e999999999"),
        ("raw", "0"),
        ("pair", "00"),
        ("key", "no"),
        ("n", "a"),
        ("n", True),
        ("n", 1.5),
        ("share", float("inf")),
        ("share", "NaN"),
        ("in", 1),
        ("in.deep", 1),
    ],
)
def test_a_literal_that_its_column_cannot_hold_is_refused(column: str, given: Any) -> None:
    """U3"""
    with pytest.raises(InvalidArgument, match="the filter cannot be used"):
        literal(column, given)


def test_names_in_any_case_are_those_of_the_columns() -> None:
    read = read_filter({"type": "eq", "term": "IN.deep", "value": 1}, TYPED, case_sensitive=False)
    assert read.expression == EqualTo(term="in.Deep", value=1)


def test_both_forms_of_a_term_and_of_constants_are_read() -> None:
    """E1: those of the protocol's present document, and of its past ones."""
    reference = {"type": "reference", "name": "i"}
    now = {"type": "eq", "left": reference, "right": {"type": "literal", "value": 1, "data-type": "long"}}
    assert read_filter(now, SCHEMA).expression == EqualTo(term="i", value=1)
    assert read_filter({"type": "is-null", "child": reference}, SCHEMA).expression == IsNull(term="i")
    typed = {"type": "in", "child": reference, "values": {"data-type": "long", "values": [1, 2]}}
    assert read_filter(typed, SCHEMA).expression == In(term="i", literals={1, 2})
    for no in (False, {"type": "false"}, {"type": "not", "child": True}, {"type": "literal", "value": False}):
        assert str(read_filter(no, SCHEMA).expression) == "AlwaysFalse()"
