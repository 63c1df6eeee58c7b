"""Keys of an index: equal values have one key, however they are written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.expressions.literals import literal
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    UUIDType,
)

from distop.commit.index.keys import bounded, key_of
from distop.errors import InvalidArgument


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (LongType(), 5, "5"),
        (LongType(), 5, literal(5)),
        (IntegerType(), 5, Decimal("5.0")),
        (DoubleType(), 0.0, "-0"),
        (FloatType(), 0.1, literal(0.1)),
        (DecimalType(9, 2), Decimal("1.5"), "1.50"),
        (DecimalType(9, 2), -2, literal(Decimal("-2.00"))),
        (DateType(), "2013-02-01", literal("2013-02-01")),
        (TimestampType(), "2013-02-01T00:00:00", "2013-02-01T00:00:00.000000"),
        (StringType(), "x", literal("x")),
        (BinaryType(), b"\x01\xff", "01ff"),
        (UUIDType(), UUID(int=5), str(UUID(int=5))),
    ],
)
def test_a_value_has_one_key_however_it_is_written(kind: IcebergType, one: Any, other: Any) -> None:
    assert key_of("c", one, kind) == key_of("c", other, kind) is not None


def test_what_no_value_of_the_type_equals_has_no_key() -> None:
    assert key_of("c", 2**40, IntegerType()) is None
    assert key_of("c", 1.5, LongType()) is None
    assert key_of("c", "1.555", DecimalType(9, 2)) is None
    for value, kind in (("x", LongType()), ("x", BinaryType()), ("x", DateType()), ("x", DoubleType())):
        with pytest.raises(InvalidArgument, match="column 'c'"):
            key_of("c", value, kind)


def test_long_values_are_told_apart_by_a_digest() -> None:
    long = b"x" * 1000
    assert len(bounded(long)) == 64
    assert bounded(long) != bounded(long + b"y")
    assert bounded(b"x" * 64) == b"x" * 64
