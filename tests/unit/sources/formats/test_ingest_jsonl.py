"""JSON lines into a table."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.errors import BadRow
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.jsonl import JsonObjects, is_blank
from distop.sources.formats.reader import ReadColumns
from distop.sources.formats.text_file import LineBlock, LineCounter, TextRows, split_lines
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined


def write(ingesting: Ingesting, *lines: str | bytes | dict[str, Any], name: str = "a.jsonl") -> str:
    path = ingesting.folder / "source" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(_line(line) + b"\n" for line in lines))
    return str(path)


def _line(line: str | bytes | dict[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False) if isinstance(line, dict) else line
    return text.encode() if isinstance(text, str) else text


def test_missing_keys_and_nulls_are_null_and_blank_lines_are_no_rows(ingesting: Ingesting) -> None:
    ingesting.ingest(
        paths=write(ingesting, {"a": 1, "b": "x"}, "", {"b": None}, "   ", {}, {"b": "漢", "a": -2})
    )
    assert ingesting.rows("a", "b") == sorted([(1, "x"), (None, None), (None, None), (-2, "漢")], key=repr)


@pytest.mark.parametrize(
    "text", [b'\xef\xbb\xbf{"a":1}\n{"a":2}', b'{"a":1}\r\n{"a":2}\r\n', b'\n {"a":1} \n{"a":2}']
)
def test_the_same_rows_are_read_however_the_file_is_written(ingesting: Ingesting, text: bytes) -> None:
    path = Path(write(ingesting, {"a": 1}))
    path.write_bytes(text)
    ingesting.ingest(paths=str(path))
    assert ingesting.rows("a") == [1, 2]


INFERRED = {
    "i": (1, "int64", 1),
    "f": (1, "double", 1.5),
    "b": (True, "bool", True),
    "s": ("x", "string", "x"),
    "d": ("2013-01-01", "date32[day]", date(2013, 1, 1)),
    "ts": ("2013-01-01 05:00:00", "timestamp[us]", datetime(2013, 1, 1, 5)),  # noqa: DTZ001 - without a zone
    "tz": ("2013-01-01T05:00:00+02:00", "timestamp[us, tz=UTC]", datetime(2013, 1, 1, 3, tzinfo=UTC)),
    "list": ([1, None], "list<element: int64>", [1, None]),
    "struct": ({"x": 1, "y": "a"}, "struct<x: int64, y: string>", {"x": None, "y": "b"}),
    "n": (None, "string", None),
    "empty": ([], "list<element: string>", []),
}
"""Column -> what the first line holds, its type, and what is read of the second line."""


def test_types_are_inferred_also_nested_ones(ingesting: Ingesting) -> None:
    first = {name: value for name, (value, _, _) in INFERRED.items()}
    ingesting.ingest(paths=write(ingesting, first, {**first, "f": 1.5, "struct": {"y": "b"}}))
    read = ingesting.read().sort_by("f")
    types = {field.name: str(field.type).replace("large_", "") for field in read.schema}
    assert types == {name: kind for name, (_, kind, _) in INFERRED.items()}
    assert read.to_pylist()[1] == {name: value for name, (_, _, value) in INFERRED.items()}


def test_declared_types_are_read(ingesting: Ingesting) -> None:
    schema = {"a": "int", "b": "decimal(9,2)", "c": "timestamptz", "d": "time", "e": "float", "f": "date"}
    row = {"a": 1, "b": 2.5, "c": "2013-01-01 05:00:00", "d": "05:06:07", "e": 1, "f": "2013-01-02"}
    ingesting.ingest(paths=write(ingesting, row, {**row, "b": "3.25"}), schema=schema)
    read = ingesting.read().sort_by("b").to_pylist()
    assert read[0] == {
        "a": 1,
        "b": Decimal("2.50"),
        "c": datetime(2013, 1, 1, 5, tzinfo=UTC),
        "d": time(5, 6, 7),
        "e": 1.0,
        "f": date(2013, 1, 2),
    }
    assert read[1]["b"] == Decimal("3.25")


def test_numbers_that_a_double_cannot_hold_are_bad_rows(ingesting: Ingesting) -> None:
    """Also nested ones; others in the same row keep all their digits."""
    first = '{"x": 1.5, "d": 12345678901234567.25, "l": [{"y": 0.5}]}'
    path = ingesting.write(first + "\n", "a.jsonl")
    ingesting.ingest(paths=path, schema={"d": "decimal(20,2)"}, on_new_columns="add")
    lines = [
        '{"x": 9007199254740993}',
        '{"x": 0.10000000000000001, "d": 12345678901234567.75}',
        '{"x": 1e400}',
        '{"x": 0.1234567890123456789}',
        '{"x": 1e-400}',
        '{"l": [{"y": 1}, {"y": 9007199254740993}]}',
    ]
    path = ingesting.write("\n".join(lines), "b.jsonl")
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine")
    assert ingesting.rows("x", "d") == [
        (0.1, Decimal("12345678901234567.75")),
        (1.5, Decimal("12345678901234567.25")),
    ]
    assert [entry["reason"] for entry in quarantined(ingesting, jobs)] == [
        "column 'x': 9007199254740993 is no double: the nearest one is 9007199254740992",
        "column 'x': 1e400 is too large for double",
        "column 'x': 0.1234567890123456789 is no double: the nearest one is 0.12345678901234568",
        "column 'x': 1e-400 is no double: the nearest one is 0",
        "column 'l.element.y': 9007199254740993 is no double: the nearest one is 9007199254740992",
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("12345678901234.123456", "holds 12345678901234.123456, and no double is that number"),
        ("1e400", "no double is that number"),
        ("1e99999999999999999999", "no double is that number"),
        ('{"y": {}}', "objects without any key cannot be stored"),
    ],
)
def test_values_that_no_column_could_hold_are_refused_at_the_start(
    ingesting: Ingesting, value: str, reason: str
) -> None:
    with refused("schema", f"column 'a'.*{reason}"):
        ingesting.start(paths=ingesting.write(f'{{"a": {value}}}\n', "a.jsonl"))


def test_texts_become_times_only_if_they_can_be_read(ingesting: Ingesting) -> None:
    row = {"a": "2024-01-01T00:00:00.1234560Z", "b": "2024-01-01T00:00:00.1234567Z", "c": "2024-13-01"}
    ingesting.ingest(paths=write(ingesting, row))
    moment = datetime(2024, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)
    assert ingesting.read().to_pylist() == [{**row, "a": moment}]


def test_a_column_of_several_kinds_needs_a_declared_type(ingesting: Ingesting) -> None:
    with refused("schema", "'a' .*different kinds"):
        ingesting.start(paths=write(ingesting, {"a": 1, "b": 1}, {"a": "x", "b": 2}))
    ingesting.ingest(paths=write(ingesting, {"a": 1, "b": 1}, {"a": "x", "b": 2}), columns=["b"])
    assert ingesting.rows("b") == [1, 2]


def test_a_blank_line_does_not_make_up_for_two_objects_on_one(ingesting: Ingesting) -> None:
    path = write(ingesting, '{"a": 1} {"a": 2}', "")
    with refused(error=BadRow, match="one JSON object", line=1):
        ingesting.ingest(paths=path, schema={"a": "int"})


BAD: dict[int, str | bytes] = {
    2: "null",
    4: '{"a": 1, "b": "x"',
    5: '{"a": "1"}',
    7: '{"a": 1.5}',
    8: '{"a": 99999999999}',
    10: '{"a": 1}{"a": 2}',
    11: '{"a": 1} null',
    13: "[1]",
    14: b'{"b": "\xff"}',
    16: '{"a": 1, "a": 2}',
    17: '{"d": "2013-02-30"}',
    19: '{"b": "\\ud800"}',
    20: '{"a": 1},',
    22: '"text"',
    23: "12",
    25: '{"b": 5}',
    26: '{"c": 1}',
    28: '{"b": "\x01"}',
    32: '{"f": 1e300}',
    34: '{"f": -3.5e38}',
    31: '{"d": "0000-01-01"}',
    29: '{"b": ' + "[" * 10_000 + "]" * 10_000 + "}",
}
SCHEMA = {"a": "int", "b": "string", "d": "date", "f": "float"}


@pytest.mark.parametrize("split_bytes", [1 << 20, 1024])
def test_bad_lines_go_to_quarantine_good_ones_to_the_table(ingesting: Ingesting, split_bytes: int) -> None:
    """C2: numbers that are too large too, which Arrow's parser makes infinite. The sample has them (A14)."""
    lines: list[Any] = [BAD.get(number, {"a": number, "d": "2013-01-01"}) for number in range(1, 300)]
    path = write(ingesting, *lines)
    jobs = ingesting.ingest(paths=path, schema=SCHEMA, on_bad_rows="quarantine", split_bytes=split_bytes)
    assert sorted(ingesting.read()["a"].to_pylist()) == [n for n in range(1, 300) if n not in BAD]
    entries = {entry["line"]: entry for entry in quarantined(ingesting, jobs)}
    assert sorted(entries) == sorted(BAD)
    assert entries[5]["reason"] == "column 'a': string instead of number"
    assert entries[2]["raw"] == "null"
    assert "is too large for float" in entries[32]["reason"]
    assert entries[14]["raw"] == '{"b": "\\xff"}'


@pytest.mark.parametrize("line", sorted(set(BAD) - {26}))
def test_a_bad_line_fails_the_job_with_its_file_and_line(ingesting: Ingesting, line: int) -> None:
    lines: list[Any] = [{"a": number} for number in range(200)]
    lines[150] = BAD[line]
    arg = ingesting.start(paths=write(ingesting, *lines), schema=SCHEMA, split_bytes=1024)
    with refused(error=BadRow, line=151):
        ingesting.run(arg)


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        ("2147483648", pa.int32(), "invalid value '2147483648' for int32"),
        ("1.5", pa.int32(), "invalid value '1.5' for int32"),
        ("1e400", pa.int32(), "invalid value '1e400' for int32"),
        ("9223372036854775808", pa.int64(), "invalid value '9223372036854775808' for int64"),
        ("10000000.00", pa.decimal128(9, 2), "invalid value '10000000.00' for decimal128(9, 2)"),
        ("0.005", pa.decimal128(9, 2), "invalid value '0.005' for decimal128(9, 2)"),
        ('"x"', pa.decimal128(9, 2), "invalid value 'x' for decimal128(9, 2)"),
        ("1" + "0" * 38, pa.decimal128(38, 0), f"invalid value '1{'0' * 38}' for decimal128(38, 0)"),
        ('"5"', pa.int32(), "string instead of number"),
        ("true", pa.int64(), "boolean instead of number"),
    ],
)
@pytest.mark.parametrize("path", ["v", "v.n", "v.element", "v.element.n"])
def test_a_number_that_does_not_fit_is_named_with_its_column(
    value: str, dtype: pa.DataType, reason: str, path: str
) -> None:
    """V1: Arrow's parser names no column."""
    line = value
    for part in reversed(path.split(".")[1:]):
        is_list = part == "element"
        line = f"[null, {line}]" if is_list else f'{{"n": {line}}}'
        dtype = pa.large_list(dtype) if is_list else pa.struct([("n", dtype)])
    schema = pa.schema([("other", pa.int64()), ("v", dtype)])
    with pytest.raises(Unconvertible) as refused:
        _convert(schema, f'{{"other": 1, "v": {line}}}\n')
    assert str(refused.value) == f"column {path!r}: {reason}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"x": true, "long": 12345678901234567}', "column 'x': boolean instead of number"),
        (f'{{"x": {"9" * 5000}}}', "Integer value out of range"),
    ],
)
def test_a_number_that_python_does_not_have_is_a_bad_row(line: str, reason: str) -> None:
    """C2: the check of doubles crashed on it."""
    with pytest.raises(Unconvertible, match=reason):
        _convert(pa.schema([("x", pa.float64())]), line)


def _convert(schema: pa.Schema, line: str) -> pa.Table:
    block = LineBlock(0, line.encode())
    rows = TextRows(block, LineCounter(BytesIO), split=split_lines, is_blank=is_blank)
    return JsonObjects(ReadColumns(schema, strict=False)).convert(rows)


def test_keys_that_the_sample_did_not_show_are_bad_rows_or_ignored(ingesting: Ingesting) -> None:
    """The sample is the beginning of a file, and a rare key occurs further down."""
    many = [{"a": number, "b": "x" * 100} for number in range(25_000)]
    path = write(ingesting, *many, {"a": -1, "rare": 1})
    with refused(error=BadRow, match="column 'rare' .*--on-new-columns", line=25001):
        ingesting.ingest(paths=path)
    ingesting.ingest(paths=path, on_new_columns="ignore", columns=["a"])
    assert min(ingesting.rows("a")) == -1


# -- any content -------------------------------------------------------------------------------------

PIECES = [*'{}:1,[] "\\-.', '"a"', "null", "true", "e9", '"x"', "\ufffd"]
MANGLED = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
GOOD = st.sampled_from(['{"a": 1}', '{"a":-5 }', "{}", '{"a": null}', ' {"a":7}'])


@settings(max_examples=25)
@given(st.lists(st.one_of(GOOD, MANGLED), max_size=12), st.integers(1024, 1100), st.integers(0, 1000))
def test_a_line_is_a_row_or_bad_whatever_is_in_it(lines: list[str], split_bytes: int, padding: int) -> None:
    lines = ['{"a": 0}', " " * padding, *lines]
    wanted = [row for row in map(_row, lines) if row is not None]
    bad = [number for number, line in enumerate(lines, 1) if line.strip() and _row(line) is None]
    with TemporaryDirectory() as folder:
        ingesting = Ingesting(Path(folder))
        path = write(ingesting, *lines)
        jobs = ingesting.ingest(
            paths=path,
            schema={"a": "long"},
            on_bad_rows="quarantine",
            on_new_columns="ignore",
            split_bytes=split_bytes,
        )
        assert ingesting.rows("a") == sorted([row.get("a") for row in wanted], key=repr)
        assert sorted(entry["line"] for entry in quarantined(ingesting, jobs)) == bad


def _row(line: str) -> dict[str, Any] | None:
    """What Python's own reader makes of a line."""
    try:
        value = json.loads(line, object_pairs_hook=_unique)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    whole = value.get("a") is None or (isinstance(value["a"], int) and not isinstance(value["a"], bool))
    return value if whole else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
