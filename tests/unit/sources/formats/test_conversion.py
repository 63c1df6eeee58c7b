"""Which columns go into which, and what becomes of their values."""

import re
from typing import Any

import pyarrow as pa
import pytest

from distop.errors import BadRow, InvalidArgument
from distop.sources.formats.reader import check_columns, converted, fitting
from distop.sources.formats.types import table_type
from distop.spark.native_write import widens

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


C = pa.struct([("a", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
NESTED = [
    (C, [{"a": 1, "at": "2024-01-01T00:00:00"}, None, {"a": None, "at": None}]),
    (pa.large_list(C), [[{"a": 1, "at": "2024-01-01"}, None], None, [], [{"a": 2, "at": None}]]),
    (
        pa.map_(pa.large_string(), C),
        [[("k", {"a": 1, "at": None}), ("l", None)], None, [], [("m", {"a": 2})]],
    ),
    (pa.struct([("c", pa.large_list(C))]), [{"c": [{"a": 1, "at": None}]}, {"c": None}, None]),
]


def _reordered(kind: pa.DataType) -> pa.DataType:
    """The same fields in another order, in other types, and without some."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _reordered(field.type)) for field in reversed(list(kind))])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _reordered(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.list_(_reordered(kind.value_type))
    return pa.int32() if pa.types.is_integer(kind) else pa.string()


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=["struct", "list", "map", "deep"])
def test_fields_of_structs_go_by_name(kind: pa.DataType, values: list[Any]) -> None:
    given = pa.array(values, _reordered(kind))
    utc = pa.array(values, _reordered(kind)).to_pylist()
    table = pa.schema([("c", kind)])
    for start, stop in ((0, len(values)), (1, len(values)), (1, 2), (0, 0)):
        rows = pa.table({"c": given.slice(start, stop - start)})
        check_columns(rows.schema, table)
        made = converted(rows, table)
        made.validate(full=True)
        assert _texts(made["c"].to_pylist()) == _texts(utc[start:stop])
    rows = pa.table({"c": pa.chunked_array([given.slice(2), given.slice(0, 2)])})
    assert _texts(converted(rows, table)["c"].to_pylist()) == _texts(utc[2:] + utc[:2])


def _texts(value: Any) -> Any:
    """Times as the date that they begin with, whatever their type; the fields of a struct in any order."""
    if isinstance(value, dict):
        return {name: _texts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(inner) for inner in value]
    return value if value is None or isinstance(value, int) else str(value)[:10]


def test_a_nested_field_that_is_missing_is_null_and_a_new_one_is_refused() -> None:
    """U3: it is named by its path, in the words of Iceberg."""
    table = pa.schema([("c", pa.struct([("a", pa.int64()), ("b", pa.large_list(C))]))])
    rows = pa.table({"c": [{"b": [{"at": None}]}, None]})
    check_columns(rows.schema, table)
    assert converted(rows, table)["c"].to_pylist() == [{"a": None, "b": [{"a": None, "at": None}]}, None]
    new = pa.schema([("c", pa.struct([("b", pa.list_(pa.struct([("a", pa.int64()), ("x", pa.int64())])))]))])
    with pytest.raises(InvalidArgument, match=r"'c\.b\.element\.x'"):
        check_columns(new, table)
    strict = pa.schema([("c", pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())]))])
    for columns in ({"b": 1}, {"x": 1}):
        with pytest.raises(InvalidArgument, match="cannot become"):
            check_columns(pa.table({"c": [columns]}).schema, strict)
    with pytest.raises(BadRow, match=r"column 'c\.a' is required"):
        fitting(pa.table({"c": [None, {"a": None, "b": 1}]}).cast(_nullable(strict)), strict)
    assert fitting(pa.table({"c": [None, {"a": 1}]}), strict)["c"].to_pylist() == [None, {"a": 1, "b": None}]
    with pytest.raises(BadRow, match=r"column 'c\.a\.element': .*1\.5"):
        fitting(
            pa.table({"c": [{"a": [1.5]}]}), pa.schema([("c", pa.struct([("a", pa.large_list(pa.int64()))]))])
        )


def _nullable(schema: pa.Schema) -> pa.Schema:
    kind = schema.field(0).type
    return pa.schema([("c", pa.struct([(field.name, field.type) for field in kind]))])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            pa.date32(),
            [-719_162, 2_932_896, None],
            {
                -719_163: "0000-12-31 is outside of the years 1 to 9999",
                2_932_897: "10000-01-01 is outside of the years 1 to 9999",
            },
        ),
        (
            pa.timestamp("us"),
            [-62_135_596_800_000_000, 253_402_300_799_999_999],
            {
                -62_135_596_800_000_001: "0000-12-31 23:59:59.999999 is outside of the years 1 to 9999",
                253_402_300_800_000_000: "10000-01-01 00:00:00.000000 is outside of the years 1 to 9999",
            },
        ),
        (
            pa.timestamp("us", "UTC"),
            [0],
            {253_402_300_800_000_000: "10000-01-01 00:00:00.000000Z is outside of the years 1 to 9999"},
        ),
        (
            pa.time64("us"),
            [0, 86_399_999_999],
            {-1: "-1 is outside of a day", 86_400_000_000: "86400000000 is outside of a day"},
        ),
        (pa.timestamp("ns"), [1_700_000_000_000_000_000], {}),
    ],
    ids=str,
)
def test_times_that_readers_do_not_have_are_bad(
    kind: pa.DataType, good: list[int], bad: dict[int, str]
) -> None:
    """C2: their statistics could not be written, and the job failed with an error of Python's. V1: the first
    of them is named."""
    wraps: list[tuple[str, Any]] = [
        ("c", lambda array: array),
        ("c.x", lambda array: pa.StructArray.from_arrays([array], ["x"])),
    ]
    for column, wrap in wraps:
        rows = pa.table({"c": wrap(pa.array(good, kind))})
        assert fitting(rows, rows.schema)["c"].to_pylist() == rows["c"].to_pylist()
        for value, reason in bad.items():
            rows = pa.table({"c": wrap(pa.array([*good, value, *bad], kind))})
            with pytest.raises(BadRow, match=re.escape(f"column {column!r}: {reason}")):
                fitting(rows, rows.schema)


def test_a_text_of_a_dataframe_that_is_not_utf_8_is_refused() -> None:
    """C2: Spark's casts from binary make such."""
    rows = pa.table({"a": [1, 2], "b": pa.array([b"a", b"\xff"]).view(pa.string())})
    with pytest.raises(BadRow, match=r"column 'b': b'\\xff' is not UTF-8"):
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
def test_types_that_spark_writes_become_only_wider(
    given: pa.DataType, wanted: pa.DataType, fits: bool
) -> None:
    assert widens(table_type(given), wanted) is fits
