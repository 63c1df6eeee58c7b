"""Keys of an index: equal values have one key, however they are written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.expressions.literals import literal

from distop.commit.index.keys import bounded, key_of
from distop.commit.layout.schemas import parse_schema
from distop.errors import InvalidArgument


def key(value: Any, kind: str) -> object:
    return key_of("c", value, parse_schema({"c": kind}).find_type("c"))


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("long", 5, "5"),
        ("long", 5, literal(5)),
        ("int", 5, Decimal("5.0")),
        ("double", 0.0, "-0"),
        ("float", 0.1, literal(0.1)),
        ("decimal(9,2)", Decimal("1.5"), "1.50"),
        ("decimal(9,2)", -2, literal(Decimal("-2.00"))),
        ("date", "2013-02-01", literal("2013-02-01")),
        ("timestamp", "2013-02-01T00:00:00", "2013-02-01T00:00:00.000000"),
        ("string", "x", literal("x")),
        ("binary", b"\x01\xff", "01ff"),
        ("uuid", UUID(int=5), str(UUID(int=5))),
    ],
)
def test_a_value_has_one_key_however_it_is_written(kind: str, one: Any, other: Any) -> None:
    assert key(one, kind) == key(other, kind) is not None


def test_what_no_value_of_the_type_equals_has_no_key() -> None:
    assert key(2**40, "int") is None
    assert key(1.5, "long") is None
    assert key("1.555", "decimal(9,2)") is None
    for value, kind in (("x", "long"), ("x", "binary"), ("x", "date"), ("x", "double")):
        with pytest.raises(InvalidArgument, match="column 'c'"):
            key(value, kind)


def test_long_values_are_told_apart_by_a_digest() -> None:
    long = b"x" * 1000
    assert len(bounded(long)) == 64
    assert bounded(long) != bounded(long + b"y")
    assert bounded(b"x" * 64) == b"x" * 64
