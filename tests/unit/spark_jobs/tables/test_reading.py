"""Planning the files of a snapshot, and reading their rows."""

import json
import math
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import update
from pyiceberg.types import LongType, NestedField, StringType

from distop.errors import CorruptRecord, InvalidArgument, PreconditionFailed
from distop.lake.layout.model import Layout, file_io, load_metadata
from distop.lake.rewriting import replace_partitions
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.lake.rewriting.replace_partitions import equality_fields
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord
from distop.operations.api import PlanRequest, make_plan
from distop.spark_jobs.compact.operation import Compact
from distop.spark_jobs.delete.operation import Delete
from distop.spark_jobs.index.operation import BuildIndex
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots, RemoveOrphans, Rollback
from distop.spark_jobs.maintenance.validate import Validate
from distop.spark_jobs.tables import TableSnapshot, open_snapshot
from support.refusals import refused
from support.tables.deletes import deletion_vector, equality_deletes, publish_deletes
from support.tables.formats import as_format_3
from support.tables.maintaining import Run
from support.tables.partition_values import VALUES, append_as_hive, append_values, by_partition, literal_of
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
        ("x >= 1", [0, 1, 3, 4]),
        ("not x < 1", [0, 1, 3, 4]),
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


def test_an_open_snapshot_can_be_sent_to_another_process(tmp_path: Path) -> None:
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


KEYS: list[tuple[str, pa.DataType, list[Any], list[Any], list[int]]] = [
    ("n", pa.int64(), [1, 2, None, 2], [2], [0, 2]),
    ("n", pa.int64(), [1, 2, None, 2], [None, 5], [0, 1, 3]),
    ("x", pa.float64(), [1.5, math.nan, None, -math.inf], [math.nan, -math.inf], [0, 2]),
    ("t", pa.string(), ["", None, "\U0010ffff", "a"], ["", "\U0010ffff"], [1, 3]),
    ("b", pa.binary(), [b"", b"\x00", None, b"a"], [b"\x00"], [0, 2, 3]),
    (
        "d",
        pa.decimal128(38, 2),
        [Decimal("1.10"), Decimal("1.1"), None, Decimal(-9)],
        [Decimal("1.10")],
        [2, 3],
    ),
    ("at", pa.timestamp("us", "UTC"), [0, -1, None, 1], [-1], [0, 2, 3]),
]


@pytest.mark.parametrize(("name", "kind", "values", "deleted", "left"), KEYS)
def test_rows_that_equality_deletes_name_are_not_there(
    tmp_path: Path, name: str, kind: pa.DataType, values: list[Any], deleted: list[Any], left: list[int]
) -> None:
    """P14, V5: NULL equals NULL, NaN equals NaN, whatever columns and filters are asked for."""
    schema = pa.schema([("id", pa.int64()), (name, kind)])
    table = table_of(tmp_path, schema)
    table.append({"id": range(4), name: pa.array(values, kind)}, schema)
    publish_deletes(table, equality_deletes(table.iceberg(), name, pa.array(deleted, kind), None))
    table.append({"id": [9], name: pa.array(deleted[:1], kind)}, schema)
    snapshot = opened(table)
    assert ids(snapshot) == [*left, 9]
    assert ids(snapshot, "id < 9") == left
    assert ids(snapshot, f"{name} is null or id >= 0") == [*left, 9]
    [file] = snapshot.plan_files("id < 9")
    read = pa.Table.from_batches(snapshot.batches([file], columns=["id"]))
    assert read.to_pydict() == {"id": left}


def test_a_table_of_format_3_is_read_and_no_operation_begins_on_it(tmp_path: Path) -> None:
    """V5: deletion vectors are applied; whatever would have to write its metadata is refused by name."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 6)], [rows(6, 6)]))
    [file] = [task.file for task in table.iceberg().scan("id = 7").plan_files()]
    publish_deletes(table, deletion_vector(table.iceberg(), file, [0, 5]))
    before = table.apart()
    assert ids(opened(table)) == [*range(6), *range(7, 11)]
    path = Path(table.record().metadata_location.removeprefix("file://"))
    newer = json.loads(path.read_text()) | {"format-version": 3, "next-row-id": 12}
    written = path.with_name("00009-newer.metadata.json")
    written.write_text(json.dumps(newer))
    table.replace(f"file://{written}")
    assert ids(opened(table), "id > 3") == [4, 5, *range(7, 11)]
    started: list[tuple[Any, dict[str, Any]]] = [
        (Compact(), {}),
        (Delete(), {"where": "id = 1"}),
        (Rollback(), {"snapshot": str(table.record().snapshot_id)}),
    ]
    started += [(ExpireSnapshots(), {}), (RemoveOrphans(), {}), (Validate(), {"rules": ["id > 0"]})]
    for kind, argument in started:
        with pytest.raises(PreconditionFailed, match="format 3"):
            Run.of(table, kind, **argument)
    assert Run.of(before, Compact(), min_files=99).finish()["deletedRows"] == 2
    assert before.ids() == [*range(6), *range(7, 11)]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_in_int96_have_their_value_in_any_year(tmp_path: Path, zone: str | None) -> None:
    """V5: those before 1677 and after 2262 were other times, to every reader and to what rewrites files."""
    zoned = None if zone is None else UTC
    times = [datetime(year, 7, 1, 12, 0, 0, 123_456, zoned) for year in (1, 1677, 1969, 2262, 9999)]
    schema = pa.schema(
        [("id", pa.int64()), ("t", pa.timestamp("us", zone)), ("l", pa.list_(pa.timestamp("us", zone)))]
    )
    table = table_of(tmp_path, schema)
    table.append({"id": range(6), "t": [*times, None], "l": [*([time] for time in times), []]}, schema)
    [file] = table.data_files()
    path = file.removeprefix("file://")
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    snapshot = opened(table)
    [batch] = snapshot.batches(snapshot.plan_files())
    assert batch["t"].to_pylist() == [*times, None]
    assert batch["l"].to_pylist() == [*([time] for time in times), []]
    suffix = "Z" if zone else ""
    assert ids(snapshot, f"t = '0001-07-01T12:00:00.123456{suffix}'") == [0]
    assert ids(snapshot, f"t > '2262-07-01T12:00:00.123456{suffix}'") == [4]
    [planned] = table.iceberg().scan().plan_files()
    publish_deletes(table, deletion_vector(table.iceberg(), planned.file, [0, 2]))
    snapshot = opened(table)
    [batch] = snapshot.batches(snapshot.plan_files())
    assert batch["t"].to_pylist() == [times[1], times[3], times[4], None]


NOON = datetime(2017, 11, 16, 12, 0, 0, 123_456)  # noqa: DTZ001 - a time without a zone
DEFAULTS: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("int", 7, 7),
    ("long", 2**60 + 1, 2**60 + 1),
    ("float", 0.5, 0.5),
    ("double", 0.1, 0.1),
    ("decimal(38,2)", "9" * 36 + ".20", Decimal("9" * 36 + ".20")),
    ("date", "0001-01-01", date(1, 1, 1)),
    ("time", "22:31:08.123456", time(22, 31, 8, 123_456)),
    ("timestamp", "2017-11-16T12:00:00.123456", NOON),
    ("timestamptz", "2017-11-16T12:00:00.123456+00:00", NOON.replace(tzinfo=UTC)),
    ("string", "", ""),
    ("uuid", str(UUID(int=7)), UUID(int=7)),
    ("fixed[4]", "000102ff", b"\x00\x01\x02\xff"),
    ("binary", "", b""),
]


@pytest.mark.parametrize("required", [True, False])
def test_rows_of_files_without_a_column_have_its_default(tmp_path: Path, required: bool) -> None:
    """V5: as the specification says of ``initial-default``, also where rows are filtered by it."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 3)]))
    added = [
        {
            "name": f"c{at}",
            "type": kind,
            "initial-default": default,
            "write-default": None,
            "required": required,
        }
        for at, (kind, default, _) in enumerate(DEFAULTS)
    ]
    inner = {"id": 90, "name": "x", "type": "int", "required": False, "initial-default": 3}
    added.append({"name": "s", "type": {"type": "struct", "fields": [inner]}})
    location = as_format_3(table, *added)
    snapshot = pickle.loads(pickle.dumps(open_snapshot(location)))
    names = [column["name"] for column in added]
    [batch] = snapshot.batches(snapshot.plan_files(), columns=names)
    values = {f"c{at}": value for at, (_, _, value) in enumerate(DEFAULTS)}
    assert batch.to_pylist() == [{**values, "s": None}] * 3
    assert ids(snapshot, "c1 = 7 and c10 = '' and c0 = true") == [0, 1, 2]
    assert ids(snapshot, "c1 is null or c1 != 7 or c4 > 0.1") == []


def test_nested_fields_have_their_defaults(tmp_path: Path) -> None:
    """V5"""
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    table = table_of(tmp_path, schema)
    table.append({"id": [1, 2], "s": [{"a": 5}, None]}, schema)
    location = as_format_3(table)
    path = Path(location.removeprefix("file://"))
    newer = json.loads(path.read_text())
    within = newer["schemas"][0]["fields"][1]["type"]["fields"]
    within.append({"id": 50, "name": "b", "type": "int", "required": True, "initial-default": 8})
    path.write_text(json.dumps(newer))
    snapshot = open_snapshot(location)
    [batch] = snapshot.batches(snapshot.plan_files())
    assert batch.to_pylist() == [{"id": 1, "s": {"a": 5, "b": 8}}, {"id": 2, "s": None}]


@pytest.mark.parametrize(
    ("kind", "default"),
    [("double", "NaN"), ("float", 1e39), ("int", 2**40), ("decimal(9,2)", "1.005"), ("string", 5)],
)
def test_a_default_that_is_no_value_of_its_column_is_refused_by_name(
    tmp_path: Path, kind: str, default: Any
) -> None:
    """V5: no row gets another value, and none is NULL instead."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 1)]))
    inner = {"id": 90, "name": "v", "type": kind, "required": False, "initial-default": default}
    for column in (
        {"name": "v", "type": kind, "initial-default": default},
        {"name": "s", "type": {"type": "struct", "fields": [inner]}},
    ):
        with pytest.raises((CorruptRecord, PreconditionFailed)) as caught:
            open_snapshot(as_format_3(table, column))
        assert "'v' has the default value" in str(caught.value)


def test_a_column_with_a_default_has_no_index(tmp_path: Path) -> None:
    """V5: the index would leave out files without it."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 1)]))
    table.replace(as_format_3(table, {"name": "v", "type": "int", "initial-default": 7}))
    request = PlanRequest(
        table=TableRecord(name=table.name, location=table.location),
        object=BuildIndex().object_of({"column": "v"}),
        head=decode(table.head.value, Head),
        watermarks={},
        argument={"column": "v"},
    )
    with refused("column", "column 'v' has a default value"):
        make_plan(BuildIndex(), request)


def test_row_ids_in_files_are_no_columns(tmp_path: Path) -> None:
    """V5: programs that keep the lineage of rows write it into files that they rewrite."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 3)]))
    [file] = table.data_files()
    path = file.removeprefix("file://")
    found = pq.read_table(path)
    for name, number in (("_row_id", 2147483540), ("_last_updated_sequence_number", 2147483539)):
        field = pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        found = found.append_column(field, pa.array(range(3), pa.int64()))
    pq.write_table(found, path)
    snapshot = open_snapshot(as_format_3(table))
    for where in (None, "id >= 0"):
        [batch] = snapshot.batches(snapshot.plan_files(where), where=where)
        assert batch.schema.names == ["id", "kind"]
    with pytest.raises(InvalidArgument, match="no column '_row_id'"):
        snapshot.projection(["_row_id"])


def test_equality_deletes_of_several_columns_and_of_others_count_together(tmp_path: Path) -> None:
    """V5: a row goes if all columns of one delete equal; in its partition, or everywhere, by its spec."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 12)]))
    iceberg = table.iceberg()
    pairs = {"kind": ["k1", "k1", "k9", None]}
    publish_deletes(table, equality_deletes(iceberg, "id", [1, 2, 5, 6], None, more=pairs))
    publish_deletes(table, equality_deletes(iceberg, "kind", ["k0"], None))
    publish_deletes(table, equality_deletes(iceberg, "id", [11], None))
    assert ids(opened(table)) == [2, 4, 5, 7, 8, 10]


def test_each_delete_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O5: not for each data file, of which a stream of changes has as many."""
    looked: list[str] = []

    def fields(file: DataFile, schema: Schema) -> list[int] | None:
        looked.append(file.file_path)
        return equality_fields(file, schema)

    monkeypatch.setattr(replace_partitions, "equality_fields", fields)
    table = new_table(tmp_path)
    for start in range(0, 10, 2):
        table.publish(table.staged([rows(start, 2)]))
        publish_deletes(table, equality_deletes(table.iceberg(), "id", [start], None))
    files = opened(table).plan_files()
    assert [len(file.delete_files) for file in files] == [5, 4, 3, 2, 1]
    assert len(looked) == 5


def test_keys_of_equality_deletes_widen_with_their_column(tmp_path: Path) -> None:
    """V5: those of a file that was written before have the narrower type."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    table = table_of(tmp_path, schema)
    table.append({"id": range(3), "n": pa.array([7, 8, None], pa.int32())}, schema)
    keys = pa.array([8], pa.int32())
    publish_deletes(table, equality_deletes(table.iceberg(), "n", keys, None))
    table.change_schema(lambda update: update.update_column("n", LongType()))
    assert ids(opened(table)) == [0, 2]


def test_names_of_columns_may_contain_dots(tmp_path: Path) -> None:
    """P14: beside paths within a struct."""
    schema = pa.schema([("id", pa.int64()), ("a.b", pa.int64()), ("c", pa.struct([("d", pa.int64())]))])
    table = table_of(tmp_path, schema)
    table.append({"id": range(3), "a.b": [5, 6, 7], "c": [{"d": n} for n in range(3)]}, schema)
    snapshot = opened(table)
    for where, found in (("id > 0", [1, 2]), ('"a.b" > 5', [1, 2]), ("a.b = 7 or c.d = 0", [0, 2])):
        assert ids(snapshot, where) == found
    [batch] = snapshot.batches(snapshot.plan_files(), columns=["a.b", "c.d"], where="id = 1")
    assert batch.to_pylist() == [{"a.b": 6, "c": {"d": 1}}]
    Run.of(table, Delete(), where='"a.b" = 6').finish()
    assert ids(opened(table)) == [0, 2]


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
