"""Which columns go into which, and what becomes of their values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from distop.errors import BadRow, InvalidArgument
from distop.spark_jobs.dataframes.native_write import widens
from distop.spark_jobs.formats.conversion import check_columns, converted, fitting
from distop.spark_jobs.formats.types import table_type

TABLE = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.large_string())])


def test_columns_go_by_name() -> None:
    """U3"""
    check_columns(pa.schema([("b", pa.string()), ("a", pa.int32())]), TABLE)
    check_columns(pa.schema([("a", pa.int32())]), TABLE)
    for columns, named in ((["b"], "a"), (["a", "b", "c"], "c"), (["a", "b", "b"], "b"), (["a", "B"], "B")):
        with pytest.raises(InvalidArgument) as refused:
            check_columns(pa.schema([(name, pa.int32()) for name in columns]), TABLE)
        assert refused.value.details == {"field": "schema", "column": named}


def test_rows_get_the_columns_of_the_table() -> None:
    rows = pa.table({"a": pa.array([1.0, 2.0])})
    assert converted(rows, TABLE).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    for values in ([1.5], [None]):
        with pytest.raises(BadRow, match="column 'a'"):
            fitting(pa.table({"a": pa.array(values, pa.float64())}), TABLE)


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int8(), pa.int32(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int64(), pa.float64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.string(), pa.large_string(), True),
        (pa.string(), pa.date32(), False),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), True),
        (pa.decimal128(9, 2), pa.decimal128(12, 3), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
    ],
    ids=str,
)
def test_what_spark_writes_itself_becomes_wider_and_never_narrower(
    given: pa.DataType, wanted: pa.DataType, fits: bool
) -> None:
    assert widens(table_type(given), wanted) is fits
