"""Keys of an index: equal values have one key, however they are written."""

from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from distop.lake.index.lookup import bounded, key_of, keys_of
from distop.lake.layout.schemas import parse_schema
from distop.lake.predicates.binding import BoundComparison, predicate_of


@pytest.mark.parametrize(
    ("kind", "value", "literal"),
    [
        ("long", pa.scalar(5), "5"),
        ("long", pa.scalar(5, pa.int32()), "5.0"),
        ("int", pa.scalar(-5, pa.int32()), "'-5'"),
        ("double", pa.scalar(-0.0), "0"),
        ("double", pa.scalar(0.5, pa.float32()), "0.5"),
        ("double", pa.scalar(float("nan")), "'nan'"),
        ("double", pa.scalar(float("-inf")), "'-inf'"),
        ("float", pa.scalar(0.1, pa.float32()), "0.1"),
        ("decimal(9,2)", pa.scalar(Decimal("1.5"), pa.decimal128(4, 1)), "1.50"),
        ("decimal(9,2)", pa.scalar(Decimal("-2.00")), "-2"),
        ("boolean", pa.scalar(True), "true"),
        ("date", pa.scalar(date(1969, 12, 31)), "'1969-12-31'"),
        ("timestamp", pa.scalar(1_359_676_800_000_000, pa.timestamp("us")), "'2013-02-01T00:00:00.000000'"),
        ("string", pa.scalar("xü"), "'xü'"),
        ("string", pa.scalar("x" * 100), f"'{'x' * 100}'"),
        ("binary", pa.scalar(b"\x01~"), r"'\x01\x7e'"),
        ("uuid", pa.scalar(UUID(int=5).bytes, pa.binary(16)), f"'{UUID(int=5)}'"),
    ],
)
def test_a_value_has_one_key_in_files_and_in_predicates(kind: str, value: Any, literal: str) -> None:
    schema = parse_schema({"c": kind})
    node = predicate_of(f"c = {literal}", schema).node
    assert isinstance(node, BoundComparison)
    [column] = schema.columns
    keys = keys_of(pa.array([value.as_py()], value.type), column.field_type)
    assert keys.to_pylist() == [key_of(node.value, column.field_type)]


def test_long_values_are_distinguished_by_a_digest() -> None:
    long = b"x" * 1000
    assert len(bounded(long)) == 64
    assert bounded(long) != bounded(long + b"y")
    assert bounded(b"x" * 64) == b"x" * 64
