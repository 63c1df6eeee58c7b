"""Partition values of whole columns equal those that pyiceberg computes one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform

from distop.errors import BadRow, InvalidArgument
from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import Partitioner, PartitionValues, transform_function
from distop.lake.layout.schemas import parse_schema

longs = st.integers(-(2**63) + 10, 2**63 - 1)
ints = st.integers(-(2**31) + 10, 2**31 - 1)
micros = st.integers(-(10**16), 10**16)
days = st.integers(-200_000, 200_000)
decimals = st.decimals(-9_000_000, 9_000_000, places=2)

LIMITS: list[tuple[str, pa.DataType, int, Any, Any]] = [
    # a type, a width, the last value that has a partition, and one that has none
    ("int", pa.int32(), 10, -(2**31) + 8, -(2**31) + 7),
    ("long", pa.int64(), 10, -(2**63) + 8, -(2**63)),
    ("long", pa.int64(), 2**31 - 1, 2**63 - 1, -(2**63)),
    ("decimal(4,2)", pa.decimal128(4, 2), 10_000, Decimal("99.99"), Decimal("-0.01")),
    ("decimal(4,2)", pa.decimal128(4, 2), 7, Decimal("-99.96"), Decimal("-99.99")),
    ("decimal(38,0)", pa.decimal128(38, 0), 10, Decimal(-(10**38) + 10), Decimal(-(10**38) + 1)),
]


@pytest.mark.parametrize(("kind", "arrow", "width", "good", "bad"), LIMITS)
def test_a_value_whose_partition_its_type_does_not_have_is_refused_by_name(
    kind: str, arrow: pa.DataType, width: int, good: Any, bad: Any
) -> None:
    """C2: integers wrapped around into the partition of other values, and decimals were an error of Arrow."""
    layout = Layout.create(parse_schema([f"v: {kind}"]), [f"truncate[{width}](v)"])
    split = Partitioner(layout.schema, layout.spec).split
    [(key, _), (none, _)] = split(pa.record_batch({"v": pa.array([good, None], arrow)}))
    assert none == (None,)
    step = width if isinstance(good, int) else Fraction(width, 10**arrow.scale)
    assert 0 <= Fraction(good) - Fraction(key[0]) < step
    with pytest.raises(BadRow, match=rf"column 'v': {bad} has no partition: .* truncate\[{width}\]"):
        list(split(pa.record_batch({"v": pa.array([good, None, bad], arrow)})))


TIMES = "year month day hour bucket[4]"
CASES: list[tuple[str, Any, st.SearchStrategy[Any], str]] = [
    ("long", pa.int64(), longs, "bucket[7] truncate[10]"),
    ("int", pa.int32(), ints, "bucket[16] truncate[3]"),
    ("string", pa.large_string(), st.text(), "bucket[5] truncate[3]"),
    ("binary", pa.large_binary(), st.binary(), "bucket[5] truncate[3]"),
    ("uuid", pa.binary(16), st.binary(min_size=16, max_size=16), "bucket[9]"),
    ("decimal(9,2)", pa.decimal128(9, 2), decimals, "bucket[9] truncate[50]"),
    ("timestamp", pa.timestamp("us"), micros, TIMES),
    ("timestamptz", pa.timestamp("us", tz="UTC"), micros, TIMES),
    ("date", pa.date32(), days, "year month day bucket[4]"),
]


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "term"),
    [
        pytest.param(kind, arrow, values, term, id=f"{term}-{kind}")
        for kind, arrow, values, terms in CASES
        for term in terms.split()
    ],
)
@settings(max_examples=30)
@given(data=st.data())
def test_columns_are_transformed_as_the_specification_says(
    kind: str, arrow: Any, values: st.SearchStrategy[Any], term: str, data: st.DataObject
) -> None:
    """P14: also before 1970, at the edges of the types, and for nulls."""
    column = data.draw(st.lists(st.none() | values, max_size=20))
    source, transform = parse_schema({"c": kind}).find_type("c"), parse_transform(term)
    one_by_one: Callable[[Any], Any] = transform.transform(source)
    physical = pa.int32() if arrow == pa.date32() else arrow
    array = pa.array(column, physical).cast(arrow)
    found = transform_function(transform, source)(array).to_pylist()
    assert found == [None if value is None else one_by_one(value) for value in column]


def split(layout: Layout, batch: pa.RecordBatch) -> dict[tuple[Any, ...], list[Any]]:
    parts = Partitioner(layout.schema, layout.spec).split(batch)
    return {key: part.column(0).to_pylist() for key, part in parts}


def test_rows_keep_their_order_within_a_partition() -> None:
    """P5"""
    schema = pa.schema([("n", pa.int64()), ("kind", pa.large_string()), ("day", pa.date32())])
    layout = Layout.create(schema, ["kind", "month(day)"])
    days = [date(1970, 1, 1), None, date(1970, 1, 31), date(1970, 2, 1), date(1969, 12, 31)]
    kinds = ["a", None, "a", "b", "a"]
    batch = pa.record_batch({"n": range(5), "kind": kinds, "day": days}, schema=schema)
    assert split(layout, batch) == {("a", 0): [0, 2], (None, None): [1], ("b", 1): [3], ("a", -1): [4]}


def test_partition_values_are_what_iceberg_stores() -> None:
    """P14: days and microseconds, not dates; NaN is one value."""
    schema = pa.schema([("t", pa.timestamp("us")), ("x", pa.float64()), ("d", pa.decimal128(5, 2))])
    layout = Layout.create(schema, ["t", "x", "d"])
    batch = pa.record_batch(
        {"t": [1_000_000, 1_000_000], "x": [math.nan, math.nan], "d": [Decimal("1.50")] * 2}, schema=schema
    )
    partitioner = Partitioner(layout.schema, layout.spec)
    ((first, part),) = partitioner.split(batch)
    assert (first[0], first[2], part.num_rows) == (1_000_000, Decimal("1.50"), 2)
    ((second, _),) = partitioner.split(batch)
    assert {first: "one file"}[second] == "one file"


def test_both_zeros_are_partitions_of_their_own() -> None:
    """P3: a folder has one name, and all its rows get the value that it names."""
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64())])
    layout = Layout.create(schema, ["x"])
    batch = pa.record_batch({"n": range(4), "x": [0.0, -0.0, -0.0, 0.0]}, schema=schema)
    files: dict[Any, list[int]] = {}
    for _ in range(2):
        for key, part in Partitioner(layout.schema, layout.spec).split(batch):
            files.setdefault(key, []).extend(part["n"].to_pylist())
    folders = {PartitionValues(layout.schema, layout.spec).folder(key): ids for key, ids in files.items()}
    assert folders == {"x=0.0": [0, 3, 0, 3], "x=-0.0": [1, 2, 1, 2]}


def test_nested_columns_can_be_partitioned_by() -> None:
    """P14"""
    schema = pa.schema([("n", pa.int64()), ("at", pa.struct([("city", pa.large_string())]))])
    layout = Layout.create(schema, ["at.city"])
    batch = pa.record_batch({"n": [1, 2, 3], "at": [{"city": "x"}, None, {"city": "x"}]}, schema=schema)
    assert split(layout, batch) == {("x",): [1, 3], (None,): [2]}


def test_more_partitions_than_sixteen_bits_can_number() -> None:
    """P4"""
    layout = Layout.create(pa.schema([("n", pa.int64())]), ["n"])
    batch = pa.record_batch({"n": list(range(70_000))}, schema=layout.arrow_schema)
    parts = Partitioner(layout.schema, layout.spec).split(batch)
    assert all(key == (part.column(0)[0].as_py(),) for key, part in parts)


def test_an_unknown_transform_is_refused_by_name() -> None:
    """C11, U3"""
    layout = Layout.create(pa.schema([("n", pa.int64())]), ["n"])
    recorded = layout.to_json()
    recorded["spec"]["fields"][0]["transform"] = "zorder[3]"
    later = Layout.from_json(recorded)
    with pytest.raises(InvalidArgument, match=r"zorder\[3\]"):
        Partitioner(later.schema, later.spec)
