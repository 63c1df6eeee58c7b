"""Types of columns, and conversions that lose nothing."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.errors import JobFailed
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.conversion import convert
from distop.sources.formats.types import UnrepresentableType, convertible, json_type, table_type, text_type
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined

INSTANT = pa.timestamp("us", tz="UTC")
MOMENT = pa.timestamp("us")
TEXT = pa.large_string()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (pa.int8(), pa.int32()),
        (pa.uint16(), pa.int32()),
        (pa.int32(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.null(), TEXT),
        (pa.string_view(), TEXT),
        (pa.dictionary(pa.int32(), pa.string()), TEXT),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time64("us")),
        (pa.timestamp("ns"), MOMENT),
        (pa.timestamp("ms", tz="America/New_York"), INSTANT),
        (pa.decimal256(30, 2), pa.decimal128(30, 2)),
        (pa.binary(), pa.large_binary()),
        (pa.binary(4), pa.binary(4)),
        (pa.list_(pa.uint8()), pa.large_list(pa.int32())),
        (pa.struct([("x", pa.string())]), pa.struct([("x", TEXT)])),
        (pa.map_(pa.string(), pa.uint32()), pa.map_(TEXT, pa.int64())),
    ],
)
def test_a_table_holds_all_values_of_a_source_type(source: pa.DataType, expected: pa.DataType) -> None:
    assert table_type(source) == expected
    assert convertible(source, expected)


@pytest.mark.parametrize("dtype", [pa.duration("s"), pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_types_without_a_place_in_a_table_are_refused(dtype: pa.DataType) -> None:
    with pytest.raises(UnrepresentableType):
        table_type(dtype)


@pytest.mark.parametrize(
    ("values", "source", "target", "expected"),
    [
        ([1, None], pa.int64(), pa.int32(), [1, None]),
        ([7], pa.int64(), pa.decimal128(3, 2), [Decimal("7.00")]),
        ([0], pa.int64(), pa.decimal128(38, 38), [Decimal(0)]),
        ([2.0], pa.float64(), pa.int32(), [2]),
        ([7], pa.int32(), TEXT, ["7"]),
        ([2**53], pa.int64(), pa.float64(), [2.0**53]),
        (["12", None], pa.string(), pa.int32(), [12, None]),
        (["1.25"], pa.string(), pa.decimal128(9, 2), [Decimal("1.25")]),
        (["05:06", "05:06:07.5"], pa.string(), pa.time64("us"), [time(5, 6), time(5, 6, 7, 500_000)]),
        (["2013-01-02"], TEXT, pa.date32(), [date(2013, 1, 2)]),
        (["2013-01-02 03:00:00Z"], TEXT, INSTANT, [datetime(2013, 1, 2, 3, tzinfo=UTC)]),
        (["2013-01-02T03:00"], TEXT, INSTANT, [datetime(2013, 1, 2, 3, tzinfo=UTC)]),
        (
            ["2013-01-02 03:00:00-01:00", "2013-01-02", None, "2013-01-02 03:00:00.5", "2013-01-02T03:00+01"],
            TEXT,
            INSTANT,
            [
                datetime(2013, 1, 2, 4, tzinfo=UTC),
                datetime(2013, 1, 2, tzinfo=UTC),
                None,
                datetime(2013, 1, 2, 3, 0, 0, 500_000, tzinfo=UTC),
                datetime(2013, 1, 2, 2, tzinfo=UTC),
            ],
        ),
        ([1_000], pa.timestamp("ns"), MOMENT, [datetime(1970, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
        ([0], MOMENT, INSTANT, [datetime(1970, 1, 1, tzinfo=UTC)]),
        ([date(2013, 1, 1)], pa.date32(), INSTANT, [datetime(2013, 1, 1, tzinfo=UTC)]),
        ([["1", None]], pa.list_(TEXT), pa.large_list(pa.int64()), [[1, None]]),
        (
            [{"x": "2013-01-02"}],
            pa.struct([("x", TEXT)]),
            pa.struct([("x", pa.date32())]),
            [{"x": date(2013, 1, 2)}],
        ),
    ],
)
def test_values_stay_the_same(
    values: list[Any], source: pa.DataType, target: pa.DataType, expected: list[Any]
) -> None:
    assert convertible(source, target)
    converted = convert(pa.chunked_array([pa.array(values, source)]), target, "c")
    assert converted.type == target
    assert converted.to_pylist() == expected


@pytest.mark.parametrize(
    ("value", "source", "target", "reason"),
    [
        (2**40, pa.int64(), pa.int32(), "invalid value 1099511627776 for int32"),
        (1.5, pa.float64(), pa.int64(), "invalid value 1.5 for int64"),
        (2**60 + 1, pa.int64(), pa.float64(), "invalid value 1152921504606846977 for double"),
        (1234, pa.int64(), pa.decimal128(3, 0), "invalid value 1234 for decimal128(3, 0)"),
        (
            Decimal("1.255"),
            pa.decimal128(9, 3),
            pa.decimal128(9, 2),
            "invalid value 1.255 for decimal128(9, 2)",
        ),
        ("1.255", TEXT, pa.decimal128(9, 2), "invalid value '1.255' for decimal128(9, 2)"),
        ("10000000.00", TEXT, pa.decimal128(9, 2), "invalid value '10000000.00' for decimal128(9, 2)"),
        (1, pa.timestamp("ns"), MOMENT, "invalid value 1970-01-01 00:00:00.000000001 for timestamp[us]"),
        ("x", TEXT, pa.int32(), "invalid value 'x' for int32"),
        ("0x1F", pa.string_view(), pa.int32(), "invalid value '0x1F' for int32"),
        ("0X00ff", TEXT, pa.int64(), "invalid value '0X00ff' for int64"),
        ("0xFFFFFFFFFFFFFFFF", pa.string(), pa.int64(), "invalid value '0xFFFFFFFFFFFFFFFF' for int64"),
        ("x", TEXT, pa.bool_(), "invalid value 'x' for bool"),
        ("25:00", TEXT, pa.time64("us"), "invalid value '25:00' for time64[us]"),
        ("2013-02-30", TEXT, pa.date32(), "invalid value '2013-02-30' for date32[day]"),
        (
            "2013-01-01T00:00:00Z",
            TEXT,
            MOMENT,
            "invalid value '2013-01-01T00:00:00Z' for timestamp[us]: expected no zone offset.",
        ),
        ("yesterday", TEXT, INSTANT, "invalid value 'yesterday' for timestamp[us]"),
    ],
)
def test_a_value_that_would_change_is_an_error_that_names_it(
    value: Any, source: pa.DataType, target: pa.DataType, reason: str
) -> None:
    """V1: the first of them, wherever it is."""
    assert convertible(source, target)
    good = pa.nulls(5, source)
    bad = pa.array([None, value, value], source)
    for values in (bad, pa.chunked_array([good, bad, good]), pa.chunked_array([bad.slice(1, 1)])):
        with pytest.raises(Unconvertible) as refused:
            convert(values, target, "c")
        assert str(refused.value) == f"column 'c': {reason}"
    lists = pa.LargeListArray.from_arrays([0, 0, 1, 3], bad)
    with pytest.raises(Unconvertible) as refused:
        convert(lists, pa.large_list(target), "c")
    assert str(refused.value) == f"column 'c.element': {reason}"


def test_a_long_value_is_named_by_its_beginning() -> None:
    with pytest.raises(Unconvertible, match=r"'x{150,250}… for decimal"):
        convert(pa.array(["x" * 10_000]), pa.decimal128(9, 2), "c")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), pa.float64()),
        (INSTANT, MOMENT),
        (MOMENT, pa.date32()),
        (pa.large_binary(), TEXT),
        (TEXT, pa.large_binary()),
        (pa.bool_(), pa.int32()),
        (pa.list_(TEXT), TEXT),
        (pa.struct([("x", TEXT)]), pa.struct([("y", TEXT)])),
        (pa.duration("s"), pa.int64()),
    ],
)
def test_types_that_would_lose_something_do_not_go_together(source: pa.DataType, target: pa.DataType) -> None:
    assert not convertible(source, target)


def test_a_conversion_that_no_value_survives_is_refused_and_no_bad_row() -> None:
    with pytest.raises(JobFailed, match="column 'c'"):
        convert(pa.chunked_array([pa.array([[1]])]), pa.int64(), "c")


def test_text_formats_cannot_carry_everything() -> None:
    for dtype in (pa.large_binary(), pa.uuid(), pa.large_list(TEXT)):
        with pytest.raises(UnrepresentableType):
            text_type(dtype)
    for dtype in (pa.large_binary(), pa.map_(TEXT, TEXT), pa.struct([("x", pa.large_binary())])):
        with pytest.raises(UnrepresentableType):
            json_type(dtype)


@pytest.mark.parametrize(
    ("values", "target"),
    [
        ([1e300], pa.float32()),
        (["1e300"], pa.float32()),
        (["1e400"], pa.float64()),
        ([None, {"x": [1.0, 1e300]}], pa.struct([("x", pa.list_(pa.float32()))])),
        (pa.array([[("k", 1e300)]], pa.map_(TEXT, pa.float64())), pa.map_(TEXT, pa.float32())),
    ],
)
def test_numbers_too_large_for_a_float_are_not_infinite(values: list[object], target: pa.DataType) -> None:
    with pytest.raises(Unconvertible, match=r"'f[^']*': .* is too large for"):
        convert(pa.chunked_array([values]), target, "f")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0.1", pa.float32()),
        ("0.10000000149011612", pa.float32()),
        ("1e-45", pa.float32()),
        ("0.10000000000000001", pa.float64()),
        ("0.10000000000000000000000", pa.float64()),
        ("5.684341886080801E-14", pa.float64()),
        ("1e23", pa.float64()),
        ("99999999999999991611392", pa.float64()),
        ("5e-324", pa.float64()),
        ("-0.0", pa.float64()),
    ],
)
def test_a_text_is_a_float_if_that_rounds_to_it(text: str, kind: pa.DataType) -> None:
    read = convert(pa.chunked_array([[text, None]]), kind, "f")
    assert read.to_pylist() == [pa.scalar(float(text), kind).as_py(), None]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("9007199254740993", pa.float64()),
        ("9007199254740993.0", pa.float64()),
        ("100000000000000000000000", pa.float64()),
        ("12345678901234.123456", pa.float64()),
        ("1e-400", pa.float64()),
        ("3.14159265358979", pa.float32()),
        (16777217.0, pa.float32()),
        (Decimal("0.12345678901234567890"), pa.float64()),
    ],
)
def test_a_number_with_more_digits_than_a_float_is_refused(value: object, kind: pa.DataType) -> None:
    with pytest.raises(Unconvertible, match=r"column 'f': .* is no (float|double): the nearest one is "):
        convert(pa.chunked_array([[value]]), kind, "f")


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (["922.56"], pa.decimal128(38, 38)),
        (pa.array([922], pa.int64()), pa.decimal128(38, 38)),
        (pa.array([Decimal("922.56")], pa.decimal128(5, 2)), pa.decimal128(38, 38)),
        (
            pa.array([{"x": Decimal("7e30")}], pa.struct([("x", pa.decimal128(38, 0))])),
            pa.struct([("x", pa.decimal128(38, 18))]),
        ),
        (["999799999999999999999999999999999999999"], pa.decimal128(38, 10)),
        (["1311813896133929241244275003959758946808050e-44"], pa.decimal128(9, 5)),
        (["33833465208641E-40"], pa.decimal128(37, 1)),
    ],
)
def test_a_decimal_without_room_for_a_number_is_no_other_number(values: Any, target: pa.DataType) -> None:
    with pytest.raises(Unconvertible, match=r"column 'd[^']*': invalid value "):
        convert(pa.chunked_array([values]), target, "d")


def test_decimals_are_the_same_numbers_in_csv_and_json(ingesting: Ingesting) -> None:
    texts = [
        "1.25",
        "0.500000000000000000000000000",
        "12345678901234567890.123456789012345678",
        "1e19",
        "-12e-3",
    ]
    wrong = ["123456789012345678901", "1e20", "1e-19", "1e-60", "7e37", "9" * 39, "0.1234567890123456789"]
    written = {
        "a.csv": "d\n" + "\n".join([*texts, *wrong]),
        "a.jsonl": "\n".join(f'{{"d": {text}}}' for text in [*texts, *wrong]),
        "b.jsonl": "\n".join(f'{{"d": "{text}"}}' for text in [*texts, *wrong]),
    }
    for name, text in written.items():
        jobs = ingesting.ingest(
            paths=ingesting.write(text + "\n", name),
            schema={"d": "decimal(38,18)"},
            mode="overwrite",
            on_bad_rows="quarantine",
        )
        assert set(ingesting.rows("d")) == {Decimal(text) for text in texts}, name
        assert [entry["line"] for entry in quarantined(ingesting, jobs)] == [
            1 + at + (name == "a.csv") for at in range(len(texts), len(texts) + len(wrong))
        ]


def test_a_struct_without_fields_has_no_place_in_a_table() -> None:
    with pytest.raises(UnrepresentableType, match="without any key"):
        table_type(pa.list_(pa.struct([])))


# -- numbers that count from 1970 --------------------------------------------------------------------

PAST = datetime(2020, 4, 30, 13, 16, 58, 953_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "number", "value"),
    [
        ("ms", 1588252618953, PAST),
        ("us", 1588252618953000, PAST),
        ("ns", 1588252618953000000, PAST),
        ("s", -1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("days", 18382, date(2020, 4, 30)),
    ],
)
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_numbers_that_count_from_1970_become_times(
    tmp_path: Path, file_format: str, unit: str, number: int, value: Any
) -> None:
    """Debezium writes them. A new column is a timestamptz, or a date; one of the table keeps its type."""
    created = "date" if unit == "days" else "timestamptz"
    path = tmp_path / f"a.{file_format}"
    if file_format == "parquet":
        pq.write_table(pa.table({"id": [1, 2], "t": [number, None]}), path)
    else:
        lines = {"csv": f"id,t\n1,{number}\n2,\n", "jsonl": f'{{"id":1,"t":{number}}}\n{{"id":2}}\n'}
        path.write_text(lines[file_format])
    for name, options in (("new", {}), ("old", {"schema": ["id: long", f"t: {created}"]})):
        ingesting = Ingesting(tmp_path / name, options)
        ingesting.ingest(paths=str(path), epoch_units={"t": unit})
        assert ingesting.read().sort_by("id")["t"].to_pylist() == [value, None]
        assert str(ingesting.table.iceberg().schema().find_type("t")) == created


def test_epoch_units_apply_to_every_type_of_number(ingesting: Ingesting) -> None:
    ingesting.options = {"schema": ["local: timestamp", "clock: time", "d: date"]}
    path = ingesting.write('{"local": 1588252618953, "clock": 47818953, "d": 18382}\n', "a.jsonl")
    ingesting.ingest(paths=path, epoch_units={"local": "ms", "clock": "ms", "d": "days"}, filter="d > 18000")
    (row,) = ingesting.read().to_pylist()
    assert row == {"local": PAST.replace(tzinfo=None), "clock": PAST.time(), "d": PAST.date()}
    for units, said in (({"d": "ms"}, "column 'd' is date32"), ({"x": "ms"}, "no column 'x'")):
        with refused("epoch_units", said):
            ingesting.start(paths=path, epoch_units=units, reingest=True)


def test_numbers_that_are_no_times_are_bad_rows(ingesting: Ingesting) -> None:
    numbers = [0, 1, 2**62, '"a"', 1.5, "null"]
    lines = "".join(f'{{"t": {number}}}\n' for number in numbers)
    given = {"schema": {"t": "timestamptz"}, "on_bad_rows": "quarantine"}
    path = ingesting.write(lines, "a.jsonl")
    jobs = ingesting.ingest(paths=path, epoch_units={"t": "ns"}, **given)
    entries = quarantined(ingesting, jobs)
    assert [entry["line"] for entry in entries] == [2, 3, 4, 5]
    assert ingesting.rows("t").count(None) == 1
    # Without a unit a number is no time, and the reason says what to do.
    jobs = ingesting.ingest(paths=path, **given, reingest=True)
    assert "say in epoch_units what" in quarantined(ingesting, jobs)[0]["reason"]
