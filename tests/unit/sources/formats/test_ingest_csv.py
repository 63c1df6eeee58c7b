"""CSV files into a table."""

import csv
import gzip
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.errors import BadRow, InvalidArgument, JobFailed, SourceUnreadable
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined

# -- what a file may look like -----------------------------------------------------------------------


SAME = {
    "plain": b"a,b\n1,x\n2,y\n",
    "no last newline": b"a,b\n1,x\n2,y",
    "crlf": b"a,b\r\n1,x\r\n2,y\r\n",
    "crlf no last": b"a,b\r\n1,x\r\n2,y",
    "bom": b"\xef\xbb\xbfa,b\n1,x\n2,y\n",
    "blank lines": b"\n\na,b\n\n1,x\n\n\n2,y\n\n",
    "quoted": b'"a","b"\n1,"x"\n2,y\n',
    "other order": b"b,a\nx,1\ny,2\n",
    "utf-16 of the option": "a,b\n1,x\n2,y\n".encode("utf-16"),
}


@pytest.mark.parametrize("look", SAME)
@pytest.mark.parametrize("split_bytes", [1 << 26, 1024])
def test_the_same_rows_are_read_however_the_file_is_written(
    ingesting: Ingesting, look: str, split_bytes: int
) -> None:
    options = {"encoding": "utf-16"} if "utf-16" in look else {}
    ingesting.ingest(paths=ingesting.write(SAME[look]), split_bytes=split_bytes, **options)
    assert ingesting.rows("a", "b") == [(1, "x"), (2, "y")]


def test_a_file_with_nothing_but_a_header_has_no_rows(ingesting: Ingesting) -> None:
    jobs = ingesting.ingest(paths=[ingesting.write("a,b\n"), ingesting.write("a,b\n1,2\n", "b.csv")])
    assert jobs["0"].result["rowsRead"] == 1
    assert ingesting.rows("a", "b") == [(1, 2)]


THOUSANDS = {"thousands": ",", "schema": {"a": "int", "b": "double"}}


@pytest.mark.parametrize(
    ("name", "text", "options", "read"),
    [
        ("a.csv", "1,x\n2,y\n", {"header": ["a", "b"]}, {"a": [1, 2], "b": ["x", "y"]}),
        ("ü b.csv", "größe,名前\n1,日本\n2,🚀\n", {}, {"größe": [1, 2], "名前": ["日本", "🚀"]}),
        ("a.csv", "a;b\n1;'x;y'\n", {"delimiter": ";", "quote": "'"}, {"a": [1], "b": ["x;y"]}),
        ("a.csv", 'a,b\n1,"x\n2,y"\n', {"quote": ""}, {"a": [1, 2], "b": ['"x', 'y"']}),
        ("a.tsv", "a\tb\n1\tx,y\n", {}, {"a": [1], "b": ["x,y"]}),
        ("a.csv", "a,b\nNA,-\n,2\n", {"null_values": ["-"]}, {"a": ["NA", ""], "b": [None, 2]}),
        (
            "a.csv",
            'a,b\n"x\\",y",c:\\d\n"\\\\ \\z",\\"\n',
            {"escape": "\\"},
            {"a": ['x",y', "\\ \\z"], "b": ["c:\\d", '\\"']},
        ),
        ("a.csv", 'a,b\n"x",y\n', {"escape": '"'}, {"a": ["x"], "b": ["y"]}),
        (
            "a.csv",
            'a,b\n"1,234","-12,345,678.50"\n5,.5\n',
            THOUSANDS,
            {"a": [1234, 5], "b": [-12345678.5, 0.5]},
        ),
        (
            "a.csv",
            "a;b\n1.234;1.234,50\n7;-0,5\n",
            {"thousands": ".", "decimal_point": ",", "delimiter": ";"},
            {"a": [1234, 7], "b": [1234.5, -0.5]},
        ),
        (
            "a.csv",
            "a,b\n31/12/2023,12/31/2023 01:02:03 PM\n1/2/2024,1/2/2024 12:00:00 am\n",
            {"date_format": "%d/%m/%Y", "timestamp_format": "%m/%d/%Y %I:%M:%S %p"},
            {
                "a": [date(2023, 12, 31), date(2024, 2, 1)],
                "b": [datetime(2023, 12, 31, 13, 2, 3), datetime(2024, 1, 2)],  # noqa: DTZ001
            },
        ),
        (
            "a.csv",
            "a,b\n2024-07-01 12:00:00,20240105\n,20231231\n",
            {"timezone": "Europe/Berlin", "date_format": "%Y%m%d"},
            {"a": [datetime(2024, 7, 1, 10, tzinfo=UTC), None], "b": [date(2024, 1, 5), date(2023, 12, 31)]},
        ),
        (
            "a.csv",
            "a\n10/Oct/00:13:55:36.25 -0700\n",
            {"timestamp_format": "%d/%b/%y:%H:%M:%S.%f %z"},
            {"a": [datetime(2000, 10, 10, 20, 55, 36, 250_000, tzinfo=UTC)]},
        ),
        (
            "a.csv",
            "größe,b\nMüller,€\n".encode("cp1252"),
            {"encoding": "windows-1252"},
            {"größe": ["Müller"], "b": ["€"]},
        ),
    ],
    ids=[
        "no header",
        "unicode",
        "delimiter and quote",
        "quotes are text",
        "tabs of tsv",
        "null values",
        "escape",
        "the quote as escape",
        "thousands",
        "thousands and decimal comma",
        "dates and times",
        "time zone",
        "times with a zone",
        "encoding",
    ],
)
def test_options_say_how_a_file_is_written(
    ingesting: Ingesting, name: str, text: str | bytes, options: dict[str, Any], read: dict[str, list[Any]]
) -> None:
    ingesting.ingest(paths=ingesting.write(text, name), **options)
    assert ingesting.read().to_pydict() == read


@pytest.mark.parametrize(
    ("text", "options", "reasons"),
    [
        (
            "n;f\n1,2;1\n12,34,567;1\n1,234;2,5\n",
            {"thousands": ",", "delimiter": ";", "schema": {"n": "long", "f": "double"}},
            [
                "column 'n': invalid value '1,2' for int64",
                "column 'n': invalid value '12,34,567' for int64",
                "column 'f': invalid value '2,5' for double",
            ],
        ),
        (
            "f\n1.5\n",
            {"decimal_point": ",", "delimiter": ";", "schema": {"f": "float"}},
            ["invalid value '1.5'"],
        ),
        (
            "d\n31/02/2024\n2024-01-01\n",
            {"date_format": "%d/%m/%Y", "schema": {"d": "date"}},
            ["invalid value '2024-02-31'", "'2024-01-01' is not of the form '%d/%m/%Y'"],
        ),
        (
            "t\n2024-03-31 02:30:00\n2024-10-27 02:30:00\n",
            {"timezone": "Europe/Berlin", "schema": {"t": "timestamptz"}},
            ["2024-03-31 02:30:00.000000 is in a gap", "2024-10-27 02:30:00.000000 is ambiguous"],
        ),
        (b"a\n\x81\n", {"encoding": "cp1252"}, ["column 'a': invalid UTF8 data"]),
        ('a,b\n"x\\",y",1\n', {"schema": {"a": "string", "b": "int"}}, ["found (see --escape)"]),
    ],
    ids=["thousands", "decimal comma", "dates", "time zone", "encoding", "no escape"],
)
def test_values_that_are_written_otherwise_are_bad_rows(
    ingesting: Ingesting, text: str | bytes, options: dict[str, Any], reasons: list[str]
) -> None:
    jobs = ingesting.run(ingesting.start(paths=ingesting.write(text), on_bad_rows="quarantine", **options))
    found = [entry["reason"] for entry in quarantined(ingesting, jobs)]
    assert len(found) == len(reasons)
    assert all(reason in entry for entry, reason in zip(found, reasons, strict=True))


def test_an_empty_last_value_is_null_with_and_without_a_last_newline(ingesting: Ingesting) -> None:
    """Arrow took it for a quoted one if the value before it is quoted."""
    paths = [ingesting.write('a,b,n\n"x","",1\n"y",,', "a.csv"), ingesting.write('a,n,b\n"z",,', "b.csv")]
    ingesting.ingest(paths=paths, schema={"a": "string", "b": "string", "n": "int"})
    assert ingesting.rows("a", "b", "n") == [("x", "", 1), ("y", None, None), ("z", None, None)]


def test_compressed_files_are_read_whole(ingesting: Ingesting) -> None:
    text = b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(5000))
    arg = ingesting.start(paths=ingesting.write(gzip.compress(text), "a.csv.gz"), split_bytes=1024)
    assert arg.partition_count == 1
    ingesting.finish(arg, ingesting.run(arg))
    assert ingesting.rows("a") == sorted(range(5000), key=repr)


@pytest.mark.parametrize("cut", [-4, -30, 40])
def test_a_damaged_compressed_file_fails_and_is_named(ingesting: Ingesting, cut: int) -> None:
    whole = gzip.compress("".join(f"{number},x{number * 7919}\n" for number in range(2000)).encode())
    damaged = ingesting.write(whole[:cut], "b.csv.gz")
    with refused("paths", r"b\.csv\.gz .*damaged", SourceUnreadable):
        ingesting.start(paths=damaged, header=["a", "b"])


def test_damage_that_the_sample_does_not_show_fails_the_job(ingesting: Ingesting) -> None:
    numbers = random.Random(1)
    lines = "".join(f"{numbers.random()},{numbers.random()}\n" for _ in range(100_000))
    path = ingesting.write(gzip.compress(lines.encode())[:-4], "b.csv.gz")
    arg = ingesting.start(paths=path, header=["a", "b"])
    with pytest.raises(JobFailed, match=r"b\.csv\.gz .*damaged") as caught:
        ingesting.run(arg)
    assert not caught.value.retryable


def test_files_may_lie_in_another_file_system_than_the_table(ingesting: Ingesting) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/ingest-csv/m/a.csv", b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(1000)))
    arg = ingesting.start(paths="memory://ingest-csv/m", split_bytes=1024)
    assert arg.partition_count > 1
    ingesting.finish(arg, ingesting.run(arg))
    assert sorted(ingesting.read()["a"].to_pylist()) == list(range(1000))
    assert list(ingesting.watermarks["memory:///ingest-csv"]) == ["m"]


# -- values ------------------------------------------------------------------------------------------


def test_types_of_csv_columns_are_inferred(ingesting: Ingesting) -> None:
    lines = (
        "i,f,b,s,d,t,ts,tz,n,mixed",
        "1,1.5,true,x,2013-01-01,05:00:00,2013-01-01 05:00:00,2013-01-01T05:00:00Z,NA,1",
        "-2,2,false,y,2013-01-02,05:00:01,2013-01-01 05:00:00.5,2013-01-01T05:00:00+02:00,,x",
    )
    ingesting.ingest(paths=ingesting.write("\n".join(lines) + "\n"))
    read = ingesting.read()
    types = [f"{field.name} {str(field.type).removeprefix('large_')}" for field in read.schema]
    first = ["i int64", "f double", "b bool", "s string", "d date32[day]", "t time64[us]"]
    assert types == [*first, "ts timestamp[us]", "tz timestamp[us, tz=UTC]", "n string", "mixed string"]
    assert read["ts"].to_pylist()[1] == datetime(2013, 1, 1, 5, 0, 0, 500_000)  # noqa: DTZ001 - a time without a zone
    assert read["tz"].to_pylist() == [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (5, 3)]


def test_codes_that_look_like_numbers_stay_text(ingesting: Ingesting) -> None:
    ingesting.ingest(paths=ingesting.write("zip,account,zero\n01234,12345678901234567890,0\n99999,1,0.5\n"))
    assert ingesting.rows("zip", "account", "zero") == [
        ("01234", "12345678901234567890", 0.0),
        ("99999", "1", 0.5),
    ]


@pytest.mark.parametrize(
    "values",
    [
        ["32E0134", "12345"],
        ["12e34567"],
        ["1E5", "2E6"],
        ["1e5", "2.5"],
        ["1e400"],
        ["0x1F", "0x00FF"],
        ["+491701234567"],
        ["-0", "5"],
        ["1.5", "Infinity"],
        ["12345678901234.123456"],
        ["1.5", "9007199254740993"],
        ["2024-01-01T00:00:00.1234567Z"],
        ["2024-01-01 00:00:00.1234567"],
    ],
    ids=lambda values: values[0],
)
def test_texts_that_numbers_and_times_would_not_give_back_stay_text(
    ingesting: Ingesting, values: list[str]
) -> None:
    """V3."""
    facts = ingesting.facts(paths=ingesting.write("\n".join(["a", *values])))
    assert ingesting.rows("a") == sorted(values, key=repr)
    assert facts["warnings"][0].startswith("column 'a' became text: ")


def test_a_last_line_without_a_newline_belongs_to_the_sample(ingesting: Ingesting) -> None:
    ingesting.ingest(paths=ingesting.write("a\n1\nx"))
    assert ingesting.rows("a") == ["1", "x"]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["12.50", "0"], [0.0, 12.5]),
        (["1e-05", "0.1", "1.5E10"], [0.1, 15_000_000_000.0, 1e-05]),
        (["1e5", "2.5e6"], [100_000.0, 2_500_000.0]),
        ([" 5", "-7"], [-7, 5]),
        (["9007199254740993"], [9007199254740993]),
        (["0.10000000000000001"], [0.1]),
    ],
    ids=lambda values: str(values[0]),
)
def test_numbers_are_inferred_where_they_are_what_is_written(
    ingesting: Ingesting, values: list[str], read: list[float]
) -> None:
    ingesting.ingest(paths=ingesting.write("\n".join(["a", *values])))
    assert ingesting.rows("a") == read


def test_more_digits_of_a_second_are_read_if_they_are_0(ingesting: Ingesting) -> None:
    text = "a,b,c\n2024-01-01T00:00:00.1234560Z,2024-01-01 00:00:00.500000000,05:06:07.1234560\n"
    path = ingesting.write(text + "2024-01-01T00:00:00.1234567Z,2024-01-01,05:06:07\n")
    schema = {"a": "timestamptz", "b": "timestamp", "c": "time"}
    jobs = ingesting.ingest(paths=path, schema=schema, on_bad_rows="quarantine")
    assert ingesting.read().to_pylist() == [
        {
            "a": datetime(2024, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC),
            "b": datetime(2024, 1, 1, 0, 0, 0, 500_000),  # noqa: DTZ001 - a time without a zone
            "c": time(5, 6, 7, 123_456),
        }
    ]
    (entry,) = quarantined(ingesting, jobs)
    assert "'2024-01-01T00:00:00.1234567Z'" in entry["reason"]
    assert entry["reason"].endswith("more than six digits of a second")


def test_a_sample_of_all_files_decides_about_types(ingesting: Ingesting) -> None:
    paths = [ingesting.write(f"a,b\n{index},\n", f"{index:02}.csv") for index in range(20)]
    ingesting.write("a,b\n1.5,x\n", "19.csv")
    ingesting.ingest(paths=paths)
    assert {field.name: str(field.type) for field in ingesting.read().schema} == {
        "a": "double",
        "b": "large_string",
    }


def test_long_integers_of_one_file_lose_no_digits_to_the_fractions_of_another(ingesting: Ingesting) -> None:
    paths = [ingesting.write(f"a,b\n{a},{a}\n", f"{a}.csv") for a in ("1.5", "12345678901234567")]
    ingesting.write("a,b\n1.5,2\n", "1.5.csv")
    ingesting.ingest(paths=paths)
    assert ingesting.rows("a", "b") == [("1.5", 2), ("12345678901234567", 12345678901234567)]


def test_null_values_count_unquoted_in_every_type(ingesting: Ingesting) -> None:
    text = 'i,s\n,\nNULL,NULL\n1,""\n2,"NULL"\nnull,x\n3,NA\n'
    ingesting.ingest(paths=ingesting.write(text))
    assert ingesting.rows("i", "s") == sorted(
        [(None, None), (None, None), (1, ""), (2, "NULL"), (None, "x"), (3, "NA")], key=repr
    )


DECLARED = {
    "a": ("int", "1", 1),
    "b": ("decimal(9,2)", "2.50", Decimal("2.50")),
    "c": ("timestamptz", "2013-01-01 05:00:00", datetime(2013, 1, 1, 5, tzinfo=UTC)),
    "d": ("string not null", "007", "007"),
    "e": ("float", "1.5", 1.5),
    "f": ("time", "05:06", time(5, 6)),
    "g": ("date", "2013-01-02", date(2013, 1, 2)),
    "h": ("timestamp", "2013-01-01T00:00:00", datetime(2013, 1, 1)),  # noqa: DTZ001 - a time without a zone
    "i": ("boolean", "1", True),
}


def test_declared_types_are_read(ingesting: Ingesting) -> None:
    schema = {name: kind for name, (kind, _, _) in DECLARED.items()}
    line = ",".join(written for _, written, _ in DECLARED.values())
    ingesting.ingest(paths=ingesting.write(f"{','.join(schema)}\n{line}\n"), schema=schema)
    assert ingesting.read().to_pylist() == [{name: value for name, (_, _, value) in DECLARED.items()}]
    assert ingesting.table.iceberg().schema().find_field("d").required


def test_times_with_and_without_a_zone_can_share_a_column(ingesting: Ingesting) -> None:
    """Without a zone: UTC."""
    path = ingesting.write(
        "t\n2013-01-01T05:00:00Z\n2013-01-01 06:00:00\n2013-01-01\n2013-01-01 05:00:00-02:00\n"
    )
    ingesting.ingest(paths=path, schema={"t": "timestamptz"})
    assert [moment.hour for moment in sorted(ingesting.read()["t"].to_pylist())] == [0, 5, 6, 7]


# -- the table ---------------------------------------------------------------------------------------


def test_the_types_of_the_table_decide_where_it_has_any(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["zip: string", "n: double", "note: string"]})
    ingesting.ingest(paths=ingesting.write("n,zip\n1,02134\n"))
    assert ingesting.read().to_pylist() == [{"zip": "02134", "n": 1.0, "note": None}]
    ingesting.ingest(paths=ingesting.write("zip,note\n7,x\n", "b.csv"))
    assert ingesting.rows("zip", "n", "note") == [("02134", 1.0, None), ("7", None, "x")]


USUAL = "zip,note\n1,2\n"


@pytest.mark.parametrize(
    ("text", "argument", "field", "says"),
    [
        ("zip,Note\n1,2\n", {}, "paths", "no column 'Note'.*has 'note'"),
        (USUAL, {"columns": ["zip", "nota"]}, "columns", "source has no column 'nota'"),
        ("note\n1\n", {}, "paths", "requires a column 'zip'"),
        (USUAL, {"columns": ["note"]}, "columns", "requires a column 'zip'"),
        (USUAL, {"schema": {"zip": "string", "no": "int"}}, "schema", "source has no column 'no'"),
        ("zip,note,no\n1,2,3\n", {"schema": {"zip": "string"}}, "schema", "'no' that --schema does not name"),
        (USUAL, {"schema": {"zip": "text"}}, "schema", "unknown type 'text'"),
        (USUAL, {"schema": {"zip": "string", "note": "double"}}, "schema", "cannot become"),
        ("zip,zip\n1,2\n", {}, "paths", "two columns 'zip'"),
        ("zip,\n1,2\n", {}, "columns", "column 2 of the source has no name"),
        (USUAL, {"filter": "nope = 1"}, "filter", "source has no column 'nope'"),
        (USUAL, {"filter": "zip >"}, "filter", "cannot be parsed"),
        ('zip,note\n1,"a\nb"\n', {}, "multiline", "newline within quotes"),
        (USUAL, {"format": "parquet"}, "paths", "is not a Parquet file"),
        (USUAL.encode("utf-16"), {}, "paths", "UTF-16"),
        (b"z\xffp,note\n1,2\n", {}, "paths", "header that cannot be read"),
        ('zip,"no"te\n1,2\n', {}, "paths", "header that cannot be read"),
    ],
)
def test_options_that_do_not_fit_a_csv_file_are_refused_at_the_start(
    tmp_path: Path, text: str | bytes, argument: dict[str, Any], field: str, says: str
) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["zip: string not null", "note: string"]})
    with refused(field, says):
        ingesting.start(paths=ingesting.write(text), **argument)


def test_text_cannot_fill_columns_of_bytes(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["a: binary"]})
    with pytest.raises(InvalidArgument, match="column 'a': CSV cannot hold"):
        ingesting.start(paths=ingesting.write("a\n1\n"))


def test_a_later_file_with_other_columns_fails(ingesting: Ingesting) -> None:
    first = ingesting.write("a,b\n1,x\n")
    # When the operation starts, only the header of the first file counts.
    missing = ingesting.write("a\n1\n", "b.csv")
    with refused(error=JobFailed, match="'b', only 'a'", file=f"file://{missing}"):
        ingesting.run(ingesting.start(paths=[first, missing]))
    extra = ingesting.write("a,b,c\n2,y,z\n", "c.csv")
    with refused(error=JobFailed, match="'c'", file=f"file://{extra}"):
        ingesting.run(ingesting.start(paths=[first, extra]))
    facts = ingesting.facts(paths=[first, extra], on_new_columns="ignore")
    assert facts["ignoredColumns"] == ["c"]
    assert ingesting.rows("a", "b") == [(1, "x"), (2, "y")]


def test_columns_can_be_chosen_and_filtered_by_others(ingesting: Ingesting) -> None:
    text = "a,b,c,\n1,x,10,\n2,y,20,\n3,z,,\n"
    jobs = ingesting.ingest(paths=ingesting.write(text), columns=["b", "a"], filter="c >= 20 or b = 'x'")
    assert ingesting.read().column_names == ["b", "a"]
    assert ingesting.rows("a", "b") == [(1, "x"), (2, "y")]
    assert (jobs["0"].result["rowsRead"], jobs["0"].result["rows"]) == (3, 2)


# -- bad rows ----------------------------------------------------------------------------------------

BAD = {
    3: b"x,2,2013-01-01\n",
    5: b"1\n",
    6: b"1,2,2013-01-01,4\n",
    8: b"1,99999999999,2013-01-01\n",
    10: b"1,2,2013-02-30\n",
    11: b"1,\xff,2013-01-01\n",
    12: b'"1"2,2,2013-01-01\n',
    13: b'1,2,"2013-01-01\n',
    14: b"1,2,2013-01-01\r9,9,2013-01-01\n",
    16: b"1.5,2,2013-01-01\n",
}


def with_bad_rows(lines: int = 20) -> bytes:
    """Line 1 is the header, line 4 is blank, the others are good where they are not bad."""
    return b"a,b,c\n" + b"".join(
        b"\n" if number == 4 else BAD.get(number, b"%d,2,2013-01-01\n" % number)
        for number in range(2, lines + 1)
    )


SCHEMA = {"a": "long", "b": "int", "c": "date"}


@pytest.mark.parametrize("split_bytes", [1 << 20, 1024])
def test_bad_rows_go_to_quarantine_and_good_ones_to_the_table(ingesting: Ingesting, split_bytes: int) -> None:
    path = ingesting.write(with_bad_rows(500))
    with refused(error=BadRow, match="column 'a'", line=3):
        ingesting.ingest(paths=path, schema=SCHEMA)
    jobs = ingesting.ingest(paths=path, schema=SCHEMA, on_bad_rows="quarantine", split_bytes=split_bytes)
    good = [number for number in range(2, 501) if number != 4 and number not in BAD]
    assert sorted(ingesting.read()["a"].to_pylist()) == good
    entries = quarantined(ingesting, jobs)
    assert sorted(entry["line"] for entry in entries) == sorted(BAD)
    assert sum(job.result["badRows"] for job in jobs.values()) == len(BAD)
    assert {entry["file"] for entry in entries} == {f"file://{path}"}
    by_line = {entry["line"]: entry for entry in entries}
    assert by_line[3]["raw"] == "x,2,2013-01-01"
    assert by_line[3]["reason"] == "column 'a': invalid value 'x' for int64"
    assert by_line[5]["reason"] == "3 columns expected, 1 found"
    assert by_line[11]["raw"] == "1,\\xff,2013-01-01"
    assert "never closed" in by_line[13]["reason"]
    assert "carriage return" in by_line[14]["reason"]
    assert by_line[12]["reason"] == "text follows the closing quote of a value"
    path = ingesting.write(gzip.compress(with_bad_rows()), "a.csv.gz")
    jobs = ingesting.ingest(paths=path, schema=SCHEMA, on_bad_rows="quarantine")
    assert sorted(entry["line"] for entry in quarantined(ingesting, jobs)) == sorted(BAD)


@pytest.mark.parametrize("line", sorted(BAD))
@pytest.mark.parametrize("split_bytes", [1 << 20, 1024])
def test_a_bad_row_fails_a_job_with_file_and_line(ingesting: Ingesting, line: int, split_bytes: int) -> None:
    rows = [b"%d,2,2013-01-01\n" % number for number in range(2, 400)]
    rows[300] = BAD[line]
    path = ingesting.write(b"a,b,c\r\n" + b"".join(rows))
    arg = ingesting.start(paths=path, schema=SCHEMA, split_bytes=split_bytes)
    with refused(error=BadRow, file=f"file://{path}", line=302):
        ingesting.run(arg)


def test_a_required_column_without_a_value_is_a_bad_row(ingesting: Ingesting) -> None:
    path = ingesting.write("a,b\n1,x\n,y\n")
    with refused(error=BadRow, match="column 'a' is required", line=3):
        ingesting.ingest(paths=path, schema={"a": "long not null", "b": "string"})
    ingesting.ingest(paths=path, schema={"a": "long not null", "b": "string"}, filter="b != 'y'")
    assert ingesting.rows("a", "b") == [(1, "x")]


def test_numbers_that_a_type_cannot_hold_are_bad_rows_and_infinite_ones_are_not(ingesting: Ingesting) -> None:
    """C2: Arrow's parser makes both infinite."""
    path = ingesting.write("a,b\n1.5,1\n1e300,2\ninf,3\n-inf,1e400\n16777217,4\n0.1,9007199254740993\n")
    jobs = ingesting.ingest(paths=path, schema={"a": "float", "b": "double"}, on_bad_rows="quarantine")
    assert ingesting.rows("a", "b") == [(1.5, 1.0), (float("inf"), 3.0)]
    entries = {entry["line"]: entry["reason"] for entry in quarantined(ingesting, jobs)}
    assert entries == {
        3: "column 'a': 1e300 is too large for float",
        5: "column 'b': 1e400 is too large for double",
        6: "column 'a': 16777217 is no float: the nearest one is 16777216",
        7: "column 'b': 9007199254740993 is no double: the nearest one is 9007199254740992",
    }


@pytest.mark.parametrize("written", ["0x1F", "0X00ff", " 0xFFFFFFFFFFFFFFFF", '"0x1F"'])
def test_hexadecimal_numbers_are_bad_rows_where_integers_are_wanted(
    ingesting: Ingesting, written: str
) -> None:
    """Arrow's parser reads them. Rows beside them stay good."""
    lines = ["i,f,s", " 1,0.5,0x1F", f"{written},1.5,x", "2,0.10000000000000001,0X1F"]
    schema = {"i": "long", "f": "double", "s": "string"}
    path = ingesting.write("\n".join(lines))
    jobs = ingesting.ingest(paths=path, schema=schema, on_bad_rows="quarantine")
    assert ingesting.rows("i", "f", "s") == [(1, 0.5, "0x1F"), (2, 0.1, "0X1F")]
    (entry,) = quarantined(ingesting, jobs)
    value = written.replace('"', "").strip()
    assert entry["reason"] == f"column 'i': invalid value {value!r} for int64"


# -- newlines within values --------------------------------------------------------------------------

TEXTS = {"a": "string", "b": "string"}
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=6)


@settings(max_examples=25)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40))
def test_with_multiline_values_may_hold_anything(rows: list[tuple[str, str]]) -> None:
    text = StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("a", "b"), *rows])
    with TemporaryDirectory() as folder:
        ingesting = Ingesting(Path(folder))
        path = ingesting.write(text.getvalue())
        arg = ingesting.start(paths=path, multiline=True, split_bytes=1024, schema=TEXTS)
        assert arg.partition_count == 1
        ingesting.finish(arg, ingesting.run(arg))
        assert ingesting.rows("a", "b") == sorted(rows, key=repr)


def test_bad_rows_among_multiline_ones_are_found(ingesting: Ingesting) -> None:
    text = 'a,b\n1,"x\ny"\nbad,"x\ny"\n3,"x"\n4,"open\n5,z\n'
    jobs = ingesting.ingest(
        paths=ingesting.write(text),
        schema={"a": "int", "b": "string"},
        multiline=True,
        on_bad_rows="quarantine",
    )
    assert ingesting.rows("a", "b") == [(1, "x\ny"), (3, "x")]
    assert [(entry["line"], entry["raw"]) for entry in quarantined(ingesting, jobs)] == [
        (4, 'bad,"x\ny"'),
        (7, '4,"open\n5,z'),
    ]


def test_quoted_newlines_are_bad_rows_where_they_were_ruled_out(ingesting: Ingesting) -> None:
    text = 'a,b\n1,"x\ny,z"\n2,w\n'
    with refused(error=BadRow, match="--multiline", line=2):
        ingesting.ingest(paths=ingesting.write(text), multiline=False, schema=TEXTS)


# -- any content -------------------------------------------------------------------------------------

LINES = st.lists(
    st.sampled_from(["1,x", "2,", "3,NA", '4,"q"', '5,"a,b"', "", "6,é漢", '7,""', '8,5" pipe']), max_size=60
)


@settings(max_examples=25)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1024, 1200), st.integers(0, 1100))
def test_every_row_is_read_once_for_any_content_and_split_size(
    lines: list[str], newline: str, last: bool, split_bytes: int, padding: int
) -> None:
    # The padding moves the rows across the places where the file is cut.
    rows = [f"0,{'p' * padding}", *lines]
    text = newline.join(["a,b", *rows]) + (newline if last else "")
    wanted = [tuple(row) for row in csv.reader(StringIO(text.replace(newline, "\n"))) if row][1:]
    with TemporaryDirectory() as folder:
        ingesting = Ingesting(Path(folder))
        path = ingesting.write(text)
        ingesting.ingest(paths=path, split_bytes=split_bytes, null_values=["none"], schema=TEXTS)
        assert ingesting.rows("a", "b") == sorted(wanted, key=repr)


BYTES = st.lists(
    st.sampled_from(
        [b",", b'"', b"\r", b"\n", b"1", b"x", b"\xff", b" ", b"1,x\n", b'2,"y"\n', b"NA", b'""']
    ),
    max_size=60,
).map(b"".join)


@settings(max_examples=25)
@given(BYTES, st.integers(950, 1024))
def test_a_row_is_good_or_bad_whatever_stands_beside_it(content: bytes, padding: int) -> None:
    """Cutting the file elsewhere, or not at all, gives the same rows and the same bad lines."""
    text = b"a,b\n0," + b"p" * padding + b"\n" + content + b"\n" + b"9,z\n" * 200
    found = []
    for split_bytes in (1 << 20, 1024):
        with TemporaryDirectory() as folder:
            ingesting = Ingesting(Path(folder))
            path = ingesting.write(text)
            jobs = ingesting.ingest(
                paths=path,
                split_bytes=split_bytes,
                schema={"a": "int", "b": "string"},
                multiline=False,
                on_bad_rows="quarantine",
            )
            entries = quarantined(ingesting, jobs)
            bad = sorted((entry["line"], entry["raw"], entry["reason"]) for entry in entries)
            found.append((ingesting.rows("a", "b"), bad))
    assert found[0] == found[1]
    rows, bad = found[0]
    assert len(rows) + len(bad) == sum(1 for line in text.split(b"\n")[1:] if line.strip(b"\r"))
