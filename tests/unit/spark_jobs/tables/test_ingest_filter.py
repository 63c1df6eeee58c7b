"""Row filters."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from distop.commit.layout.schemas import parse_schema
from distop.spark_jobs.tables.filters import arrow_filter, filter_columns, parse_filter
from support.refusals import refused

SCHEMA: Schema = parse_schema(
    {"n": "long", "s": "string", "f": "double", "t": "timestamptz", "odd name": "int", "d": "decimal(9,2)"}
)
ROWS = pa.table(
    {
        "n": [1, 2, 3, None],
        "s": ["ab", "b", None, "abc"],
        "f": [1.5, float("nan"), None, 0.0],
        "t": pa.array([0, 1_000_000, None, 3_000_000], pa.timestamp("us", tz="UTC")),
        "odd name": pa.array([1, 2, 3, 4], pa.int32()),
        "d": pa.array([Decimal("1.50"), Decimal("10.50"), None, Decimal("-0.07")], pa.decimal128(9, 2)),
    }
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("n > 1", [1, 2]),
        ("n > 1 and s = 'b'", [1]),
        ("n = 1 or s like 'ab%'", [0, 3]),
        ("not n = 1", [1, 2]),
        ("n != 1", [1, 2]),
        ("n in (1, 3)", [0, 2]),
        ("n not in (1, 3)", [1]),
        ("not (n in (1, 3) or s = 'b')", []),
        ("n between 2 and 3", [1, 2]),
        ("n is null", [3]),
        ("s is not null", [0, 1, 3]),
        ("f is nan", [1]),
        ("t >= '1970-01-01T00:00:01+00:00'", [1, 3]),
        ('"odd name" >= 3', [2, 3]),
        ("2 > n", [0]),
        ("true", [0, 1, 2, 3]),
        ("false", []),
        ("n > 99999999999999999999", []),
        ("d > 1.5", [1]),
        ("d >= 1.500 and d < 9999999.5", [0, 1]),
        ("d in (1.5, 10.50)", [0, 1]),
        ("d not in (1.5, 3.0)", [1, 3]),
        ("not d > 10", [0, 3]),
    ],
)
def test_a_filter_keeps_the_rows_that_sql_would(text: str, kept: list[int]) -> None:
    """Where the answer is unknown because of a NULL, a row is left out."""
    found = ROWS.append_column("row", pa.array(range(4))).filter(arrow_filter(parse_filter(text), SCHEMA))
    assert found["row"].to_pylist() == kept


def test_a_filter_names_its_columns() -> None:
    assert filter_columns(parse_filter('not (a > 1 or b is null) and "c d" in (1, 2) and a.x = 1')) == {
        "a",
        "b",
        "c d",
        "a.x",
    }
    assert filter_columns(parse_filter("true")) == set()


@pytest.mark.parametrize("text", ["", "n >", "n > 1 or", "drop table", "n like '%a%'", "(" * 1200 + "n = 1"])
def test_text_that_is_no_filter_is_refused(text: str) -> None:
    with refused("filter", "cannot be parsed"):
        parse_filter(text)


@pytest.mark.parametrize("text", ["nope = 1", "n = 'x'", "t > 'yesterday'", "s > 1", "d > 1.505"])
def test_a_filter_that_does_not_fit_the_columns_is_refused(text: str) -> None:
    with refused("filter", "does not fit"):
        arrow_filter(parse_filter(text), SCHEMA)
