"""Planning the files of a snapshot, and reading their rows."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import update
from pyiceberg.types import NestedField, StringType

from distop.commit.iceberg.append import IcebergOverwrite
from distop.commit.layout.model import Layout, file_io, load_metadata
from distop.errors import CorruptRecord, InvalidArgument, PreconditionFailed
from distop.spark_jobs.tables.snapshot import TableSnapshot, open_snapshot
from support.refusals import refused
from support.tables.partition_values import (
    VALUES,
    WITHOUT_LITERALS,
    append_as_hive,
    append_values,
    by_partition,
    literal_of,
)
from support.tables.publishing import Table, new_table, rows, table_of


def opened(table: Table, **which: Any) -> TableSnapshot:
    return open_snapshot(table.record().metadata_location, **which)


def ids(snapshot: TableSnapshot, where: str | None = None) -> list[int]:
    files = snapshot.plan_files(where)
    return sorted(i for batch in snapshot.batches(files, where=where) for i in batch["id"].to_pylist())


def test_the_present_snapshot_is_read_whole(tmp_path: Path) -> None:
    """P14"""
    table = new_table(tmp_path, ["kind"])
    table.publish(table.staged([rows(0, 30)], [rows(30, 30)]))
    snapshot = opened(table)
    files = snapshot.plan_files()
    assert [file.path for file in files] == table.data_files()
    assert sum(file.rows for file in files) == 60
    assert all(file.size == Path(file.path.removeprefix("file://")).stat().st_size for file in files)
    assert {file.partition[0] for file in files} == {"k0", "k1", "k2"}
    assert ids(snapshot) == list(range(60))
    (file,) = snapshot.plan_files("id = 1 and kind = 'k1'")
    [batch] = snapshot.batches([file], columns=["kind", "id"], where="id = 1")
    assert batch.to_pydict() == {"kind": ["k1"], "id": [1]}


def test_a_filter_leaves_out_files_by_partition_and_by_statistics(tmp_path: Path) -> None:
    table = new_table(tmp_path, ["kind"])
    table.publish(table.staged([rows(0, 30)], [rows(30, 30)]))
    snapshot = opened(table)
    assert len(snapshot.plan_files()) == 6
    assert {file.partition[0] for file in snapshot.plan_files("kind = 'k1'")} == {"k1"}
    assert len(snapshot.plan_files("kind = 'k1' and id >= 30")) == 1
    assert snapshot.plan_files("id > 1000") == []
    assert ids(snapshot, "kind = 'k1' and id >= 30") == [i for i in range(30, 60) if i % 3 == 1]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("x is nan", [1, 3]),
        ("x is not nan", [0, 4]),
        ("x != 1", [1, 3, 4]),
        ("x not in (1, 2)", [1, 3]),
        ("x > 5 or x is nan", [1, 3]),
        ("x >= 1", [0, 4]),
        ("not x < 1", [0, 4]),
        ("id > 0 and x is nan", [1, 3]),
    ],
)
def test_statistics_leave_nan_out_but_filters_do_not(tmp_path: Path, where: str, found: list[int]) -> None:
    """The first file seems to hold nothing but 1.0; its reader would skip it."""
    columns = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = table_of(tmp_path, columns)
    for numbers, values in (([0, 1], [1.0, math.nan]), ([2, 3], [None, math.nan]), ([4], [2.0])):
        table.append({"id": numbers, "x": values}, columns)
    assert ids(opened(table), where) == found
    snapshot = opened(table)
    read = snapshot.batches(snapshot.plan_files(where), columns=["x"], where=where)
    assert {name for batch in read for name in batch.schema.names} == {"x"}


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("x in (0.0, 7.5)", [0, 1, 3]),
        ("x in (0.0, 1.5)", [0, 1, 2, 3]),
        ("x not in (0.0, 7.5)", [2]),
        ("x in (1.5, 7.5)", [2]),
    ],
)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_lists_with_a_zero_have_both(tmp_path: Path, kind: pa.DataType, where: str, found: list[int]) -> None:
    columns = pa.schema([("id", pa.int64()), ("x", kind)])
    table = table_of(tmp_path, columns)
    for numbers, values in (([0], [0.0]), ([1], [-0.0]), ([2, 3], [1.5, -0.0])):
        table.append({"id": numbers, "x": values}, columns)
    assert ids(opened(table), where) == found


@pytest.mark.parametrize(
    ("where", "found"),
    [("x is null or x < 5", [0, 1, 3]), ("x >= 5 or id = 3", [2, 3]), ("x not in (1, 7) or id = 1", [1])],
)
def test_a_partition_of_null_is_compared_as_in_sql(tmp_path: Path, where: str, found: list[int]) -> None:
    columns = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    table = table_of(tmp_path, columns, "x")
    rows = pa.record_batch({"id": range(4), "x": [1, None, 7, None]}, schema=columns)
    table.publish(table.staged([rows]))
    assert ids(opened(table), where) == found


@pytest.mark.parametrize("hive", [False, True], ids=["in the files", "in the partition only"])
@pytest.mark.parametrize("kind", VALUES)
def test_the_values_of_a_partition_column_are_read_and_found(tmp_path: Path, kind: str, hive: bool) -> None:
    """P14: of every type, also if the files do not have the column (Iceberg spec, "Column Projection")."""
    table, values = by_partition(tmp_path, kind)
    append_values(table, values, hive=hive)
    snapshot = opened(table)
    rows = [row for batch in snapshot.batches(snapshot.plan_files()) for row in batch.to_pylist()]
    assert {row["id"]: row["p"] for row in rows} == values
    alone = snapshot.batches(snapshot.plan_files(), columns=["p"])
    assert sum(batch.num_rows for batch in alone) == len(values)
    if kind != "uuid":  # whose rows Arrow cannot compare
        assert ids(snapshot, "p is null") == [2]
        assert ids(snapshot, "p is not null and id < 3") == [0, 1]
    if kind not in WITHOUT_LITERALS:
        for value, found in ((values[0], [0, 3]), (values[1], [1])):
            where = f"p = {literal_of(value)}"
            assert len(snapshot.plan_files(where)) == 1
            assert ids(snapshot, where) == found


@pytest.mark.parametrize("hive", [False, True], ids=["in the files", "in the partition only"])
def test_files_of_a_uuid_are_planned(tmp_path: Path, hive: bool) -> None:
    """P14: by the bytes of the value, in manifest lists and in manifests."""
    table, values = by_partition(tmp_path, "uuid")
    append_values(table, values, hive=hive)
    snapshot = opened(table)
    for value in (values[0], values[1]):
        [file] = snapshot.plan_files(f"p = '{value}'")
        assert file.partition[0] == value.bytes
    assert snapshot.plan_files(f"p = '{UUID(int=7)}'") == []
    assert len(snapshot.plan_files(f"p != '{values[0]}'")) == 1


def test_a_required_column_may_be_in_the_partition_only(tmp_path: Path) -> None:
    layout = Layout.create(pa.schema([pa.field("id", pa.int64()), pa.field("p", pa.int32(), False)]), ["p"])
    table = Table("t", f"file://{tmp_path}/t", layout)
    append_as_hive(table, pa.table({"id": [0, 1], "p": pa.array([7, 8], pa.int32())}))
    snapshot = opened(table)
    read = snapshot.batches(snapshot.plan_files("p = 8"))
    assert [row for batch in read for row in batch.to_pylist()] == [{"id": 1, "p": 8}]


def test_an_earlier_snapshot_by_id_and_by_time(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 3)]))
    first = table.record().snapshot_id
    table.publish(table.staged([rows(3, 3)]))
    table.publish(table.staged([rows(100, 1)]), IcebergOverwrite())
    history = load_metadata(table.record().metadata_location).snapshots
    at = history[0].timestamp_ms
    newest = [one.snapshot_id for one in history if one.timestamp_ms <= at][-1]
    assert ids(opened(table)) == [100]
    assert ids(opened(table, snapshot_id=first)) == [0, 1, 2]
    assert ids(opened(table, branch="main")) == [100]
    assert opened(table, as_of_ms=at).id == newest
    assert opened(table, as_of_ms=at + 10_000_000).id == table.record().snapshot_id
    for which in ({"snapshot_id": 7}, {"as_of_ms": at - 1}, {"branch": "nobody"}):
        with pytest.raises(PreconditionFailed):
            opened(table, **which)
    with pytest.raises(InvalidArgument):
        opened(table, snapshot_id=first, as_of_ms=at)


def test_the_files_that_one_snapshot_has_added(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 3)]))
    before = set(table.data_files())
    table.publish(table.staged([rows(3, 3)], [rows(6, 3)]))
    added = opened(table).plan_added()
    assert {file.path for file in added} == set(table.data_files()) - before
    assert sum(file.rows for file in added) == 6


def test_it_travels_to_another_process(tmp_path: Path) -> None:
    table = new_table(tmp_path, ["kind"])
    table.publish(table.staged([rows(0, 30)]))
    snapshot = opened(table)
    files = snapshot.plan_files("kind = 'k2'")
    there, sent = pickle.loads(pickle.dumps((snapshot, files)))
    assert sent == files
    read = pa.Table.from_batches(there.batches(sent, columns=["id"]))
    assert sorted(read["id"].to_pylist()) == [i for i in range(30) if i % 3 == 2]


def test_renamed_and_added_columns_are_right_in_older_files(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 2)]))
    metadata = load_metadata(table.record().metadata_location)
    fields = metadata.schema().fields
    newer = Schema(
        NestedField(fields[0].field_id, "number", fields[0].field_type, required=fields[0].required),
        fields[1],
        NestedField(9, "remark", StringType(), required=False),
        schema_id=1,
    )
    changes = (update.AddSchemaUpdate(schema_=newer), update.SetCurrentSchemaUpdate(schema_id=-1))
    location = f"{tmp_path}/changed.metadata.json"
    changed = update.update_table_metadata(metadata, changes)
    with file_io(location).new_output(location).create() as stream:
        stream.write(changed.model_dump_json().encode())
    present = open_snapshot(location)
    [batch] = present.batches(present.plan_files())
    assert batch.to_pydict() == {"number": [0, 1], "kind": ["k0", "k1"], "remark": [None, None]}
    then = open_snapshot(location, snapshot_id=table.record().snapshot_id)
    [batch] = then.batches(then.plan_files())
    assert batch.schema.names == ["id", "kind"]


@pytest.mark.parametrize("where", ["nothing = 1", "id >", "id = 'x'"])
def test_a_filter_that_makes_no_sense_is_refused(tmp_path: Path, where: str) -> None:
    """U3"""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 1)]))
    with refused("filter"):
        opened(table).plan_files(where)


def test_a_missing_metadata_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecord, match="nowhere"):
        open_snapshot(f"file://{tmp_path}/nowhere.metadata.json")
