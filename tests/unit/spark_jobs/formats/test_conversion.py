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
    ("kind", "good", "bad"),
    [
        (pa.date32(), [-719_162, 2_932_896, None], [-719_163, 2_932_897]),
        (
            pa.timestamp("us"),
            [-62_135_596_800_000_000, 253_402_300_799_999_999],
            [-62_135_596_800_000_001, 253_402_300_800_000_000],
        ),
        (pa.time64("us"), [0, 86_399_999_999], [-1, 86_400_000_000]),
        (pa.timestamp("ns"), [1_700_000_000_000_000_000], []),
    ],
)
def test_times_that_readers_do_not_have_are_bad(kind: pa.DataType, good: list[int], bad: list[int]) -> None:
    """C2: their statistics could not be written, and the job failed with an error of Python's."""
    for wrap in (lambda array: array, lambda array: pa.StructArray.from_arrays([array], ["x"])):
        rows = pa.table({"c": wrap(pa.array(good, kind))})
        assert fitting(rows, rows.schema)["c"].to_pylist() == rows["c"].to_pylist()
        for value in bad:
            rows = pa.table({"c": wrap(pa.array([value], kind))})
            with pytest.raises(BadRow, match=r"column 'c': .* is outside of the years 1 to 9999"):
                fitting(rows, rows.schema)


def test_a_text_of_a_dataframe_that_is_not_utf_8_is_refused() -> None:
    """C2: Spark's casts from binary make such."""
    rows = pa.table({"a": [1, 2], "b": pa.array([b"a", b"\xff"]).view(pa.string())})
    with pytest.raises(BadRow, match="column 'b': a text is not UTF-8"):
        fitting(rows, TABLE)
    assert fitting(rows.slice(0, 1), TABLE).num_rows == 1


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
def test_what_spark_writes_becomes_only_wider(given: pa.DataType, wanted: pa.DataType, fits: bool) -> None:
    assert widens(table_type(given), wanted) is fits
