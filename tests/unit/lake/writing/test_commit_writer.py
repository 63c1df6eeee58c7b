"""What a job writes: Parquet files in their final place and one manifest, described without reading back."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator
from pyiceberg.manifest import DataFile
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType, LongType

from distop.errors import BadRow, InvalidArgument
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.schemas import parse_schema
from distop.lake.writing.file_lists import MAX_RESULT_BYTES, IcebergFileList, WrittenFile
from distop.lake.writing.manifests import TaskManifest, adopt
from distop.lake.writing.writer import StagedWriter

SCHEMA = pa.schema([("id", pa.int64()), ("time", pa.timestamp("us")), ("name", pa.string())])


def in_folder(folder: Path) -> Callable[[str, str], str]:
    return lambda suffix, kind: f"file://{folder}/{kind}/op-1/0-a{suffix}"


def batch(start: int, count: int) -> pa.RecordBatch:
    """One row every six hours from 2013 on."""
    first = datetime(2013, 1, 1)  # noqa: DTZ001 - a timestamp without zone
    ids = range(start, start + count)
    times = [first + timedelta(hours=6 * i) for i in ids]
    names = [f"n{i % 5}" if i % 7 else None for i in ids]
    return pa.record_batch({"id": list(ids), "time": times, "name": names}, schema=SCHEMA)


def listed(folder: Path, layout: Layout, result: dict[str, Any]) -> list[DataFile]:
    """The data files in the manifest that a result tells of."""
    path, length = f"file://{folder}/metadata/op-1/{result['manifest']}", result["manifestLength"]
    manifest = TaskManifest(path=path, length=length, files=result["files"], rows=result["rows"])
    io = file_io(manifest.path)
    entries = adopt(io, manifest, layout.spec.spec_id, 42).fetch_manifest_entry(io)
    assert {entry.snapshot_id for entry in entries} == {42}
    return [entry.data_file for entry in entries]


def on_disk(folder: Path, suffix: str = "") -> list[Path]:
    return sorted(path for path in folder.rglob(f"*{suffix}") if path.is_file())


def test_rows_are_split_by_partition_into_described_files(tmp_path: Path) -> None:
    """P1, P14: what the manifest says of a file is what is in it."""
    layout = Layout.create(SCHEMA, ["month(time)"])
    writer = StagedWriter(layout, in_folder(tmp_path))
    for start in range(0, 400, 40):
        writer.write(batch(start, 40))
    result = writer.finish()
    files = listed(tmp_path, layout, result)
    assert (result["rows"], result["files"]) == (400, 4)
    assert sorted(file.partition[0] for file in files) == [516, 517, 518, 519]
    for file in files:
        path = Path(file.file_path.removeprefix("file://"))
        table = pq.read_table(path)
        assert file.record_count == table.num_rows
        assert file.file_size_in_bytes == path.stat().st_size
        assert file.value_counts[1] == table.num_rows
        assert file.null_value_counts[3] == table["name"].null_count
        ids = table["id"].to_pylist()
        assert from_bytes(LongType(), file.lower_bounds[1]) == min(ids)
        assert from_bytes(LongType(), file.upper_bounds[1]) == max(ids)
        assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
        assert pq.read_schema(path).field("time").metadata[b"PARQUET:field_id"] == b"2"
    assert result["bytes"] == sum(file.file_size_in_bytes for file in files)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_nan_is_counted_for_every_column_of_floats(tmp_path: Path, kind: str) -> None:
    """P14, V4: bounds leave NaN out. An engine that knows of none removes the file unread, with its NaN."""
    layout = Layout.create(parse_schema({"x": kind, "s": "string"}))
    values = [[1.5, math.nan], [math.nan, -2.5]]
    writer = StagedWriter(layout, in_folder(tmp_path), row_group_bytes=1)
    for some in values:
        writer.write(pa.table({"x": some, "s": ["a"] * len(some)}))
    [file] = listed(tmp_path, layout, writer.finish())
    assert (file.value_counts[1], file.null_value_counts[1], dict(file.nan_value_counts)) == (4, 0, {1: 2})
    bounds = (file.lower_bounds[1], file.upper_bounds[1])
    type_ = {"float": FloatType(), "double": DoubleType()}[kind]
    assert bounds == (to_bytes(type_, -2.5), to_bytes(type_, 1.5))
    assert not _StrictMetricsEvaluator(layout.schema, parse("x < 5.0")).eval(file)


def test_floats_whose_nan_nobody_has_counted_have_no_bounds(tmp_path: Path) -> None:
    """Files that Spark writes are described by their footers, which do not count NaN."""
    layout = Layout.create(parse_schema({"x": "double", "y": "double", "n": "long"}))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.0], "y": [1.0], "n": [1]}, schema=layout.arrow_schema), path)
    files = IcebergFileList(layout)
    files.add(WrittenFile(str(path), (), path.stat().st_size, pq.read_metadata(path), {"y": 0}))
    result = {"files": 1, "rows": 1} | files.write(file_io(str(tmp_path)), f"{tmp_path}/metadata/op-1/m.avro")
    [file] = listed(tmp_path, layout, result)
    assert (dict(file.nan_value_counts), [*file.lower_bounds], [*file.upper_bounds]) == (
        {2: 0},
        [2, 3],
        [2, 3],
    )
    assert dict(file.value_counts) == {1: 1, 2: 1, 3: 1}


def test_no_rows_leave_no_file(tmp_path: Path) -> None:
    """P10"""
    writer = StagedWriter(Layout.create(SCHEMA, ["name"]), in_folder(tmp_path))
    writer.write(batch(0, 0))
    assert writer.finish() == {"rows": 0, "files": 0, "bytes": 0}
    assert on_disk(tmp_path) == []


@pytest.mark.parametrize("finished", [False, True])
def test_abort_removes_everything_and_never_raises(tmp_path: Path, finished: bool) -> None:
    """O12, P2: open files as well as complete ones; twice is fine."""
    layout = Layout.create(SCHEMA, ["bucket[4](id)"])
    writer = StagedWriter(layout, in_folder(tmp_path), row_group_bytes=1, target_file_bytes=2000)
    writer.write(batch(0, 100))
    writer.write(batch(100, 100))
    assert on_disk(tmp_path)
    if finished:
        writer.finish()
    writer.abort()
    writer.abort()
    assert on_disk(tmp_path) == []
    with pytest.raises(RuntimeError):
        writer.write(batch(0, 1))


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    """O12"""

    def job() -> None:
        with StagedWriter(Layout.create(SCHEMA), in_folder(tmp_path), row_group_bytes=1) as writer:
            writer.write(batch(0, 10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert on_disk(tmp_path) == []


def test_abort_survives_files_that_are_gone(tmp_path: Path) -> None:
    """O12, P9: a collector may have been faster."""
    writer = StagedWriter(Layout.create(SCHEMA), in_folder(tmp_path), row_group_bytes=1)
    writer.write(batch(0, 10))
    for path in on_disk(tmp_path):
        path.unlink()
    writer.abort()


def test_large_output_is_cut_into_files_of_the_target_size(tmp_path: Path) -> None:
    """P4"""
    layout = Layout.create(SCHEMA)
    writer = StagedWriter(layout, in_folder(tmp_path), target_file_bytes=3000, row_group_bytes=1)
    for start in range(0, 2000, 100):
        writer.write(batch(start, 100))
    result = writer.finish()
    sizes = [file.file_size_in_bytes for file in listed(tmp_path, layout, result)]
    assert len(sizes) > 2
    assert max(sizes) < 3 * 3000


def test_open_files_and_waiting_rows_are_bounded(tmp_path: Path) -> None:
    """P4: rows scattered over more partitions than may be open make more files, and lose nothing."""
    layout = Layout.create(SCHEMA, ["bucket[50](id)"])
    writer = StagedWriter(layout, in_folder(tmp_path), buffer_bytes=2000, max_open_files=3)
    for start in range(0, 600, 100):
        writer.write(batch(start, 100))
        assert len(writer._open) <= 3
        assert writer._waiting_bytes <= 2000
    result = writer.finish()
    files = listed(tmp_path, layout, result)
    assert result["files"] > 50
    tables = pa.concat_tables(pq.read_table(path, columns=["id"]) for path in on_disk(tmp_path, ".parquet"))
    assert sorted(tables["id"].to_pylist()) == list(range(600))
    assert sum(file.record_count for file in files) == 600


def test_the_result_is_small_whatever_was_written(tmp_path: Path) -> None:
    """O5, P4: 1 KiB a job. Summaries that have no room stay in the manifest."""
    schema = pa.schema([(f"column_{i}", pa.string()) for i in range(12)])
    layout = Layout.create(schema, schema.names)
    writer = StagedWriter(layout, in_folder(tmp_path))
    long = pa.array(["x" * 100, "y" * 100])
    writer.write(pa.table([long] * 12, schema=schema))
    result = writer.finish()
    assert len(json.dumps(result)) < MAX_RESULT_BYTES
    assert "partitions" not in result
    assert [file.partition[11] for file in listed(tmp_path, layout, result)] == ["x" * 100, "y" * 100]


def test_columns_in_another_order_or_narrower_type_are_taken(tmp_path: Path) -> None:
    """U3"""
    layout = Layout.create(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    writer = StagedWriter(layout, in_folder(tmp_path))
    writer.write(pa.table({"b": ["x"], "a": pa.array([1], pa.int16())}))
    writer.finish()
    (path,) = on_disk(tmp_path, ".parquet")
    assert pq.read_table(path).to_pylist() == [{"a": 1, "b": "x"}]


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """U3: other columns; values out of range; nulls where a value is required."""
    layout = Layout.create(parse_schema(["a: int not null", "b: string"]))
    writer = StagedWriter(layout, in_folder(tmp_path))
    with pytest.raises(InvalidArgument, match="rows have the columns a, c"):
        writer.write(pa.table({"a": [1], "c": ["x"]}))
    with pytest.raises(BadRow, match="do not fit"):
        writer.write(pa.table({"a": [2**40], "b": ["x"]}))
    with pytest.raises(BadRow, match="'a' is required, but 1 rows"):
        writer.write(pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", "y"]}))
    with pytest.raises(InvalidArgument):
        writer.write(pa.table({"a": [[1]], "b": ["x"]}))
    assert writer.rows == 0


def test_numbers_too_large_for_a_float_are_refused_and_infinite_ones_are_taken(tmp_path: Path) -> None:
    layout = Layout.create(pa.schema([("f", pa.float32())]), [])
    with StagedWriter(layout, in_folder(tmp_path)) as writer:
        for values in ([1.0, None, 1e300], ["-1e300"], [Decimal(10) ** 60]):
            with pytest.raises(BadRow, match="too large for float"):
                writer.write(pa.table({"f": values}))
        writer.write(pa.table({"f": [1e38, float("inf"), float("nan"), None]}))
        writer.write(pa.table({"f": ["-inf", None]}))
        assert writer.rows == 6


def test_every_primitive_type_can_be_written_and_partitioned_by(tmp_path: Path) -> None:
    """P14"""
    values: dict[str, Any] = {
        "boolean": True,
        "int": 1,
        "long": 2**40,
        "float": 1.5,
        "double": 2.5,
        "date": datetime(2013, 1, 1).date(),  # noqa: DTZ001
        "time": datetime(2013, 1, 1, 12).time(),  # noqa: DTZ001
        "timestamp": datetime(2013, 1, 1),  # noqa: DTZ001
        "timestamptz": 1_357_000_000_000_000,
        "string": "a b/c",
        "uuid": b"0123456789abcdef",
        "fixed[3]": b"abc",
        "binary": b"\x00\xff",
        "decimal(9, 2)": Decimal("1.25"),
    }
    schema = parse_schema({kind: kind for kind in values})
    for name in values:
        layout = Layout.create(schema, [name])
        arrow = layout.arrow_schema
        columns = [
            pa.ExtensionArray.from_storage(field.type, pa.array([values[field.name], None], pa.binary(16)))
            if field.name == "uuid"
            else pa.array([values[field.name], None], field.type)
            for field in arrow
        ]
        folder = tmp_path / name
        writer = StagedWriter(layout, in_folder(folder))
        writer.write(pa.Table.from_arrays(columns, schema=arrow))
        files = listed(folder, layout, writer.finish())
        assert len(files) == 2
        assert {file.partition[0] is None for file in files} == {True, False}


# -- sort orders -------------------------------------------------------------------------------------


def sorted_layout(*fields: SortField) -> Layout:
    layout = Layout.create(pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    return replace(layout, sort_order=SortOrder(*fields, order_id=3))


ID = SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST)
X = SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST)


@pytest.mark.parametrize(("row_group_bytes", "order_id"), [(1 << 20, 3), (1, None)])
def test_files_are_sorted_as_the_table_says(
    tmp_path: Path, row_group_bytes: int, order_id: int | None
) -> None:
    """P14: as other engines expect. A file whose row groups overlap is not said to be sorted."""
    layout = sorted_layout(X, ID)
    assert Layout.from_json(layout.to_json()) == layout
    assert Layout.of(layout.new_metadata("file:///t")).sort_order == layout.sort_order
    writer = StagedWriter(layout, in_folder(tmp_path), row_group_bytes=row_group_bytes)
    for start in (0, 4):
        values = [None, 1.0, float("nan"), 1.0]
        rows = pa.record_batch({"id": list(range(start + 3, start - 1, -1)), "x": values})
        writer.write(rows)
    (file,) = listed(tmp_path, layout, writer.finish())
    assert file.sort_order_id == order_id
    parquet = pq.ParquetFile(file.file_path.removeprefix("file://"))
    found = [parquet.read_row_group(group)["id"].to_pylist() for group in range(parquet.num_row_groups)]
    assert found == ([[1, 5, 0, 2, 4, 6, 3, 7]] if order_id else [[1, 0, 2, 3], [5, 4, 6, 7]])


def test_a_sort_order_by_a_transform_is_not_kept(tmp_path: Path) -> None:
    layout = sorted_layout(SortField(1, BucketTransform(4), SortDirection.ASC, NullOrder.NULLS_FIRST))
    writer = StagedWriter(layout, in_folder(tmp_path))
    writer.write(pa.record_batch({"id": [3, 1, 2], "x": [0.0] * 3}))
    (file,) = listed(tmp_path, layout, writer.finish())
    assert file.sort_order_id is None
    assert pq.read_table(file.file_path.removeprefix("file://"))["id"].to_pylist() == [3, 1, 2]
