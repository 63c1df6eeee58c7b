"""Parquet files into a table."""

import json
import re
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.errors import BadRow, InvalidArgument, JobFailed, SourceUnreadable
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined


def write(ingesting: Ingesting, table: pa.Table, name: str = "a.parquet", *, group_size: int = 1000) -> str:
    path = ingesting.folder / "source" / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, row_group_size=group_size)
    return str(path)


def test_a_large_file_is_cut_between_row_groups(ingesting: Ingesting) -> None:
    path = write(ingesting, pa.table({"a": range(10_000), "b": ["x" * 10] * 10_000}))
    size = Path(path).stat().st_size
    arg = ingesting.start(paths=path, split_bytes=max(1024, size // 4))
    assert arg.argument["files"] == [["a.parquet", size, arg.argument["files"][0][2], 10]]
    assert 2 <= arg.partition_count <= 10
    jobs = ingesting.run(arg)
    ingesting.finish(arg, jobs)
    assert sorted(ingesting.read()["a"].to_pylist()) == list(range(10_000))
    assert all(job.result["rowsRead"] > 0 for job in jobs.values())


def test_small_files_are_packed_together_and_read_with_all_their_row_groups(ingesting: Ingesting) -> None:
    paths = [
        write(ingesting, pa.table({"a": range(n * 100, n * 100 + 100)}), f"{n}.parquet", group_size=10)
        for n in range(5)
    ]
    arg = ingesting.start(paths=paths)
    assert arg.partition_count == 1
    ingesting.finish(arg, ingesting.run(arg))
    assert sorted(ingesting.read()["a"].to_pylist()) == list(range(500))


MIDNIGHT = datetime(2013, 1, 1)  # noqa: DTZ001 - a time without a zone
NESTED = {"x": 1, "y": [None, "a"]}
TYPES = {
    "u32": (pa.array([2**32 - 1], pa.uint32()), 2**32 - 1),
    "u64": (pa.array([2**64 - 1], pa.uint64()), Decimal(2**64 - 1)),
    "ns": (pa.array([MIDNIGHT], pa.timestamp("ns")), MIDNIGHT),
    "cat": (pa.array(["x"]).dictionary_encode(), "x"),
    "bytes": (pa.array([b"\x00\xff"]), b"\x00\xff"),
    "dec": (pa.array([Decimal("1.50")]), Decimal("1.50")),
    "list": (pa.array([[1, 2]]), [1, 2]),
    "struct": (pa.array([NESTED]), NESTED),
    "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), [("k", 1)]),
    "id": (pa.array([uuid.UUID(int=7).bytes], pa.uuid()), uuid.UUID(int=7)),
}


def test_types_become_those_of_a_table(ingesting: Ingesting) -> None:
    ingesting.ingest(paths=write(ingesting, pa.table({name: given for name, (given, _) in TYPES.items()})))
    assert ingesting.read().to_pylist() == [{name: value for name, (_, value) in TYPES.items()}]


def test_files_may_differ_in_the_width_of_a_type(ingesting: Ingesting) -> None:
    paths = [
        write(ingesting, pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), "a.parquet"),
        write(ingesting, pa.table({"b": ["y"], "a": pa.array([2**40], pa.int64())}), "b.parquet"),
    ]
    ingesting.ingest(paths=paths)
    assert ingesting.rows("a", "b") == [(1, "x"), (2**40, "y")]


def test_values_that_do_not_fit_the_table_are_bad_rows(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["a: int", "b: timestamp"]})
    values = list(range(3000))
    values[1234] = 2**40
    times = [0] * 3000
    times[2500] = 1
    table = pa.table({"a": values, "b": pa.array(times, pa.timestamp("ns"))})
    path, types = write(ingesting, table), {"a": "int", "b": "timestamp"}
    with refused(error=BadRow, match="column 'a'", file=f"file://{path}", row=1235):
        ingesting.ingest(paths=path, schema=types)
    jobs = ingesting.ingest(paths=path, schema=types, on_bad_rows="quarantine", split_bytes=1024)
    assert len(jobs) == 3
    assert ingesting.read().num_rows == 2998
    entries = quarantined(ingesting, jobs)
    assert [entry["row"] for entry in entries] == [1235, 2501]
    assert '"a": 1099511627776' in entries[0]["raw"]


def _nested(kind: str, texts: pa.Array) -> pa.Array:
    each = range(len(texts) + 1)
    match kind:
        case "list":
            return pa.ListArray.from_arrays(each, texts)
        case "struct":
            return pa.StructArray.from_arrays([texts], ["x"])
        case "map":
            return pa.MapArray.from_arrays(each, texts, texts)
    return texts


@pytest.mark.parametrize(
    ("kind", "column", "raw"),
    [
        ("text", "b", "m\\xff"),
        ("list", "b.element", ["m\\xff"]),
        ("struct", "b.x", {"x": "m\\xff"}),
        ("map", "b.key", [["m\\xff", "m\\xff"]]),
    ],
)
def test_a_text_that_is_not_utf_8_is_a_bad_row(
    ingesting: Ingesting, kind: str, column: str, raw: object
) -> None:
    """C2: nobody could read the table. The rows beside it are good."""
    texts = pa.array([b"a", b"m\xff", b"z"]).view(pa.string())
    path = write(ingesting, pa.table({"a": [1, 2, 3], "b": _nested(kind, texts)}))
    reason = f"column {column!r}: b'm\\xff' is not UTF-8"
    with pytest.raises(BadRow, match=re.escape(f"a.parquet, row 2: {reason}")):
        ingesting.ingest(paths=path)
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine")
    [entry] = quarantined(ingesting, jobs)
    assert (entry["row"], entry["reason"]) == (2, reason)
    assert json.loads(entry["raw"]) == {"a": 2, "b": raw}
    assert ingesting.read()["b"].to_pylist() == _nested(kind, texts.take([0, 2])).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        (pa.array([10**17], pa.timestamp("ms")), "timestamp", "100000000000000000"),
        (pa.array([253_402_300_800_000_000], pa.timestamp("us")), "timestamp", "10000-01-01 00:00:00.000000"),
        (pa.array([10**8], pa.date32()), "date", "100000000"),
        (pa.array([86_400_000_000]).view(pa.time64("us")), "time", "86400000000"),
        (pa.array([b"\xff"]).view(pa.string()), "string", "\\xff"),
    ],
)
def test_any_bad_row_is_shown(ingesting: Ingesting, values: pa.Array, kind: str, shown: str) -> None:
    """V1: Arrow has dates, times and texts that Python does not have, or that are other ones in Python."""
    good = pa.table({"a": [1], "b": pa.nulls(1, values.type)})
    path = write(ingesting, pa.concat_tables([good, pa.table({"a": [2**40], "b": values})]))
    jobs = ingesting.ingest(paths=path, schema={"a": "int", "b": kind}, on_bad_rows="quarantine")
    [entry] = quarantined(ingesting, jobs)
    assert entry["row"] == 2
    assert json.loads(entry["raw"]) == {"a": 2**40, "b": shown}
    assert ingesting.rows("a") == [1]


@pytest.mark.parametrize("columns", [None, ["a"]])
def test_parquet_columns_can_be_chosen_and_rows_filtered(
    ingesting: Ingesting, columns: list[str] | None
) -> None:
    path = write(ingesting, pa.table({"a": range(10), "b": [None, *range(1, 10)]}))
    ingesting.ingest(paths=path, columns=columns, filter="b not in (3, 4) and not a > 6")
    assert ingesting.rows("a") == [1, 2, 5, 6]
    assert ingesting.read().column_names == (columns or ["a", "b"])


def test_types_that_do_not_go_together_are_refused_at_the_start(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["a: int"]})
    with refused("columns", "'b'"):
        ingesting.start(paths=write(ingesting, pa.table({"a": [1], "b": [1]})), columns=["a", "b"])
    with pytest.raises(InvalidArgument, match="column 'a': large_list"):
        ingesting.start(paths=write(ingesting, pa.table({"a": [[1]]})))
    with pytest.raises(InvalidArgument, match="column 'd'"):
        Ingesting(tmp_path).start(paths=write(ingesting, pa.table({"d": pa.array([1], pa.duration("s"))})))


def test_a_later_file_with_other_types_fails(ingesting: Ingesting) -> None:
    paths = [write(ingesting, pa.table({"a": [index]}), f"{index:03}.parquet") for index in range(40)]
    odd = write(ingesting, pa.table({"a": [b"x"]}), "017.parquet")
    arg = ingesting.start(paths=paths)
    with pytest.raises(JobFailed, match=r"binary in column 'a', .*int64"):
        ingesting.run(arg)
    assert odd in paths


def test_damaged_files_are_named(ingesting: Ingesting) -> None:
    path = write(ingesting, pa.table({"a": range(10_000)}), group_size=10_000)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:-20])
    with refused("paths", "not a Parquet file", SourceUnreadable, path=f"file://{path}"):
        ingesting.start(paths=path)
    middle = len(whole) // 2
    Path(path).write_bytes(whole[: middle - 4000] + b"\xff" * 8000 + whole[middle + 4000 :])
    arg = ingesting.start(paths=path)
    with pytest.raises(JobFailed, match=r"a\.parquet is damaged"):
        ingesting.run(arg)


# -- times in INT96 ----------------------------------------------------------------------------------

UTC_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
]
TIMES = [time.replace(tzinfo=None) for time in UTC_TIMES]


def int96(ingesting: Ingesting, table: pa.Table, name: str = "a.parquet") -> str:
    """A file as Spark and Hive write it."""
    path = write(ingesting, pa.table({}), name)
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=2)
    return path


def test_times_in_int96_have_their_value_in_any_year(ingesting: Ingesting, tmp_path: Path) -> None:
    """C2: beyond 1677 and 2262 they were bad rows with another time, and the value was lost. They are points
    in time, unless the table says otherwise."""
    times = pa.array([*TIMES, None], pa.timestamp("us"))
    rows = pa.table(
        {"a": range(4), "t": times, "l": [[time] for time in times], "s": [{"x": time} for time in times]}
    )
    path = int96(ingesting, rows)
    ingesting.ingest(paths=path)
    utc = [*UTC_TIMES, None]
    read = ingesting.read().sort_by("a")
    assert read["t"].to_pylist() == utc
    assert read["l"].to_pylist() == [[time] for time in utc]
    assert read["s"].to_pylist() == [{"x": time} for time in utc]
    local = Ingesting(tmp_path / "local", {"schema": ["a: long", "t: timestamp"]})
    local.ingest(paths=path, on_new_columns="ignore")
    assert local.read().sort_by("a")["t"].to_pylist() == [*TIMES, None]


def test_nanoseconds_in_int96_are_bad_rows(ingesting: Ingesting) -> None:
    """C2: nothing is cut off without a word."""
    times = pa.array([10**18 + 1000, 10**18 + 123, None, 10**18, 1], pa.timestamp("ns"))
    maps = pa.array(
        [[("k", 2000), ("l", None)], None, [("k", 7)], [], None], pa.map_(pa.string(), times.type)
    )
    path = int96(ingesting, pa.table({"a": range(5), "t": times, "m": maps}))
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine")
    lost = "nanoseconds would be lost beyond microseconds"
    assert [(entry["row"], entry["reason"]) for entry in quarantined(ingesting, jobs)] == [
        (2, f"column 't': 123 {lost}"),
        (3, f"column 'm': 7 {lost}"),
        (5, f"column 't': 1 {lost}"),
    ]
    assert ingesting.rows("a") == [0, 3]


def test_files_with_times_in_int96_and_others_have_one_type(ingesting: Ingesting) -> None:
    old = int96(ingesting, pa.table({"t": TIMES}), "1.parquet")
    new = write(ingesting, pa.table({"t": pa.array(TIMES, pa.timestamp("us"))}), "2.parquet")
    ingesting.ingest(paths=[old, new])
    assert sorted(ingesting.read()["t"].to_pylist()) == sorted(TIMES * 2)
