"""Compaction from plan to sweep: rows stay, files become few, and what others do meanwhile stays done."""

import math
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType

from distop.coordinator.schedules.due import measured
from distop.errors import HeadConflict, InvalidArgument, JobFailed, PreconditionFailed
from distop.lake.cleanup.inspection import view_table
from distop.lake.iceberg.metadata_files import is_live
from distop.lake.layout.model import Layout
from distop.lake.rewriting.modes import IcebergOverwrite, IcebergOverwritePartitions
from distop.metastore.records.table import TableRecord
from distop.spark_jobs.compact.operation import Compact
from distop.spark_jobs.compact.planning import Candidate, Choice, plan_of
from distop.spark_jobs.delete.operation import Delete
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots, RemoveOrphans, Rollback
from distop.spark_jobs.tables import EqualityDeletes, SnapshotGroups, open_snapshot
from support.refusals import refused
from support.tables.deletes import (
    delete_positions,
    equality_deletes,
    position_deletes,
    publish_deletes,
    without_partition,
)
from support.tables.maintaining import Run
from support.tables.partition_values import VALUES, append_values, by_partition
from support.tables.publishing import (
    ROWS,
    Table,
    alter,
    drop_partitioning,
    filled,
    left_over,
    local,
    new_table,
    rows,
    table_of,
)
from support.tables.trees import age

NUMBERS = pa.schema([("id", pa.int64()), ("x", pa.float64())])


def _rounded(self: DoubleReader, decoder: BinaryDecoder) -> float:
    """A double as earlier versions have read it when they merged manifests: as a 32-bit float."""
    with np.errstate(over="ignore"):
        return float(np.float32(struct.unpack("<d", decoder.read(8))[0]))


def rounded_table(folder: Path, values: Sequence[float]) -> Table:
    """A table by ``x`` with a file for each value, most of them listed under what 32 bits hold of it: the
    manifests of the last ones were not merged, and are exact."""
    layout = Layout.create(NUMBERS, ["x"], {"commit.manifest.min-count-to-merge": "2"})
    table = Table("numbers", f"file://{folder}/numbers", layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DoubleReader, "read", _rounded)
        for number, value in enumerate(values):
            table.append({"id": [number], "x": [value]}, NUMBERS)
    return table


def compacting(table: Table, *, partitions: list[str] | None = None, **argument: Any) -> Run:
    return Run.of(table, Compact(), partitions=partitions, **{"min_files": 2, **argument})


def test_small_files_become_few_and_the_rows_stay(tmp_path: Path) -> None:
    """Issue 4, 8: a replace snapshot of the same rows; the past can still be read."""
    table = filled(tmp_path)
    before = table.record().snapshot_id
    facts = compacting(table).finish()
    assert table.ids() == list(range(60))
    assert len(table.data_files()) == 3
    counted = {name: facts[name] for name in ("rows", "filesBefore", "filesAfter", "partitions")}
    assert counted == {"rows": 60, "filesBefore": 18, "filesAfter": 3, "partitions": 3}
    assert 0 < facts["bytesAfter"] < facts["bytesBefore"]
    summary = table.summary()
    assert table.operation() == Operation.REPLACE
    told = ("total-records", "total-data-files", "deleted-data-files", "distop.operation")
    assert [summary[name] for name in told] == ["60", "3", "18", "flights/compact/7"]
    assert table.ids(snapshot_id=before) == list(range(60))
    assert left_over(table) == set()


def test_nothing_to_do_is_a_success_without_a_snapshot(tmp_path: Path) -> None:
    """P10: of a table that was never published to, one of few files, and one that was compacted before."""
    assert compacting(new_table(tmp_path / "new")).staged.arg.partition_count == 0
    table = filled(tmp_path / "few", 4)
    head = table.head
    assert Run.of(table, Compact()).finish()["filesBefore"] == 0
    assert table.head == head
    compacting(table).finish()
    head = table.head
    assert compacting(table).finish()["filesBefore"] == 0
    assert table.head == head


def test_rows_appended_during_a_compaction_stay(tmp_path: Path) -> None:
    """P6, P7: also when the commit was prepared before, and is prepared again."""
    table = filled(tmp_path)
    run = compacting(table)
    table.publish(table.staged([rows(100, 5)]))
    lost = run.step().prepare(table.context(run.staged))
    table.publish(table.staged([rows(200, 5)]))
    assert not table.apply(lost.txn)
    lost.discard()
    facts = run.finish()
    assert table.ids() == [*range(60), *range(100, 105), *range(200, 205)]
    assert facts["filesBefore"] == 18
    assert left_over(table) == set()


def test_a_partition_that_was_overwritten_meanwhile_is_left_out(tmp_path: Path) -> None:
    """P6: the others count; the overwritten rows do not come back, and nothing of the rewrite is left."""
    table = filled(tmp_path)
    run = compacting(table)
    other = table.staged([rows(300, 9, kinds=1)])
    table.publish(other, IcebergOverwritePartitions())
    facts = run.finish()
    assert table.ids() == sorted([*(n for n in range(60) if n % 3), *range(300, 309)])
    assert (facts["filesBefore"], facts["partitions"]) == (12, 2)
    assert facts["droppedPartitions"] == ["kind=k0"]
    by = {"snapshot": str(table.iceberg().metadata.snapshots[-2].snapshot_id), "by": str(other.arg.id)}
    assert facts["conflicts"] == [by]
    assert left_over(table) == set()


@pytest.mark.parametrize("step", [IcebergOverwrite, IcebergOverwritePartitions])
def test_a_compaction_is_nothing_that_an_overwrite_would_lose(
    tmp_path: Path, step: type[IcebergOverwrite | IcebergOverwritePartitions]
) -> None:
    """P6: the rows are those that it was to replace; what is appended as well is a conflict as ever."""
    table = filled(tmp_path, 3)
    expected = {"expectedSnapshotId": str(table.record().snapshot_id)}
    overwriting, late = table.staged([rows(300, 9)]), table.staged([rows(400, 9)])
    compacting(table).finish()
    table.publish(overwriting, step(expected))
    assert table.ids() == list(range(300, 309))
    with pytest.raises(HeadConflict):
        table.publish(late, step(expected))


def test_a_past_that_has_expired_is_not_taken_for_the_one_that_was_planned_on(tmp_path: Path) -> None:
    """P6: the table was empty when the overwrite began; what was appended since must not be lost."""
    table = filled(tmp_path, 3)
    compacting(table).finish()
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    with pytest.raises(HeadConflict):
        table.publish(table.staged([rows(300, 9)]), IcebergOverwrite({"expectedSnapshotId": None}))


def test_a_compaction_brings_back_no_rows_rolled_back_meanwhile(tmp_path: Path) -> None:
    """P6, P11: files of snapshots that are undone are not in the table any more."""
    table = filled(tmp_path)
    second = str(table.iceberg().metadata.snapshots[1].snapshot_id)
    run = compacting(table)
    Run.of(table, Rollback(), snapshot=second).finish()
    with pytest.raises(HeadConflict):
        run.commit()
    assert table.ids() == list(range(20))


def test_files_that_expire_before_they_are_read_are_no_failure(tmp_path: Path) -> None:
    """P13: only what the table does not hold any more expires; a job that was to read it says so."""
    table = filled(tmp_path)
    request = Run.of(table, Compact(), jobs=False, min_files=2)
    table.publish(table.staged([rows(300, 3, kinds=1)]), IcebergOverwritePartitions())
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    request.run_jobs()
    facts = request.finish()
    assert facts["droppedPartitions"] == ["kind=k0"]
    assert table.ids() == sorted([*(n for n in range(60) if n % 3), *range(300, 303)])
    assert left_over(table) == set()


def test_expiry_and_orphans_leave_a_compaction_alone(tmp_path: Path) -> None:
    """P13: what it reads is in the table, what it writes is in a folder that is known."""
    table = filled(tmp_path)
    run = compacting(table)
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    age(local(table.location))
    Run.of(table, RemoveOrphans(), run.staged.arg, older_than="1d", dry_run=False).finish()
    run.finish()
    assert table.ids() == list(range(60))
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    assert set(local(table.location).rglob("*.parquet")) == {local(path) for path in table.data_files()}
    assert table.ids() == list(range(60))


def test_a_file_that_the_table_holds_and_the_disk_does_not_is_said(tmp_path: Path) -> None:
    """U3: a damaged table is not mended by forgetting."""
    table = filled(tmp_path)
    run = Run.of(table, Compact(), jobs=False, min_files=2)
    local(table.data_files()[0]).unlink()
    run.run_jobs()
    with pytest.raises(PreconditionFailed, match="does not exist"):
        run.commit()


def test_rows_are_counted_before_anything_counts(tmp_path: Path) -> None:
    """U3: in the job, and once more in the commit."""
    table = filled(tmp_path)
    run = compacting(table)
    name = run.staged.arg.partition_names()[0]
    run.staged.jobs[name].result["rows"] -= 1
    with pytest.raises(PreconditionFailed, match=r"20 rows .*19"):
        run.commit()
    path = local(table.data_files()[0])
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(JobFailed, match=r"3 rows, .*4"):
        Run.of(table, Compact(), min_files=2)
    assert left_over(table) == {name for name in left_over(table) if name.startswith("kind=")}


def test_only_the_partitions_that_are_named_and_the_files_that_fit_the_filter(tmp_path: Path) -> None:
    """O6"""
    table = filled(tmp_path)
    assert compacting(table, partitions=["kind=k1"]).finish()["partitions"] == 1
    assert compacting(table, filter="kind = 'k2' and id < 30").finish()["filesBefore"] == 3
    assert table.ids() == list(range(60))
    with pytest.raises(InvalidArgument, match="kind=k7"):
        compacting(table, partitions=["kind=k7"])


def test_partitions_may_have_the_same_path(tmp_path: Path) -> None:
    """NULL is written as the text ``null`` is."""
    table = new_table(tmp_path, ["kind"])
    for start in (0, 10):
        table.append({"id": [start, start + 1, start + 2], "kind": [None, "null", "a"]}, ROWS)
    run = compacting(table)
    assert run.staged.arg.partition_names() == ["kind=a", "kind=null", "kind=null#2"]
    facts = run.finish()
    assert (facts["filesBefore"], facts["filesAfter"], facts["partitions"]) == (6, 3, 3)
    read = table.iceberg().scan().to_arrow()
    assert dict(zip(read["id"].to_pylist(), read["kind"].to_pylist(), strict=True)) == {
        start + number: kind for start in (0, 10) for number, kind in enumerate([None, "null", "a"])
    }


def test_a_partition_of_many_files_is_done_by_several_jobs(tmp_path: Path) -> None:
    """O8: and each may be left out on its own."""
    table = filled(tmp_path, 8, partition_by=())
    size = max(local(path).stat().st_size for path in table.data_files())
    run = compacting(table, max_bytes_per_job=2 * size + 100, target_file_size=1 << 20)
    assert run.staged.arg.partition_names() == ["all", "all#2", "all#3", "all#4"]
    run.finish()
    assert (len(table.data_files()), table.ids()) == (4, list(range(80)))


def test_files_that_do_not_fit_into_a_plan_are_left_to_the_next_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O5: a plan is never longer than a start can be; however many files there are, each round does some."""
    monkeypatch.setattr("distop.spark_jobs.compact.planning.MAX_FILES_PER_JOB", 4)
    monkeypatch.setattr("distop.spark_jobs.compact.planning.MAX_PLAN_BYTES", 2000)
    table = filled(tmp_path, 12, partition_by=())
    first = compacting(table)
    assert len(msgspec.json.encode(first.staged.arg.argument)) < 2000
    told = first.finish()
    assert 0 < told["filesBefore"] < 12
    assert told["passedOver"] == {"later": 12 - told["filesBefore"]}
    rounds = 1
    while compacting(table).finish()["filesBefore"]:
        rounds += 1
    assert (len(table.data_files()), table.ids()) == (1, list(range(120)))
    assert rounds > 2


@pytest.mark.parametrize("runs", [False, True])
def test_rows_are_sorted_and_it_is_known(tmp_path: Path, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort order, statistics; ``runs``: with as little memory as can be."""
    if runs:
        sizes = {"run_bytes": 1, "batch_bytes": 64, "fan_in": 2}
        monkeypatch.setattr("distop.lake.writing.sorting.sort_rows.__kwdefaults__", sizes)
    table = filled(tmp_path, partition_by=())
    run = compacting(table, sort_by=["kind desc", "id"])
    run.finish()
    (path,) = table.data_files()
    found = pq.read_table(local(path)).to_pylist()
    assert found == sorted(found, key=lambda row: (-int(row["kind"][1:]), row["id"]))
    metadata = table.iceberg().metadata
    (order,) = [one for one in metadata.sort_orders if one.order_id == 1]
    assert str(order.fields[0]) == "2 DESC NULLS LAST"
    assert metadata.default_sort_order_id == 0
    (task,) = table.iceberg().scan().plan_files()
    assert task.file.sort_order_id == 1
    assert (task.file.record_count, task.file.null_value_counts[1]) == (60, 0)
    # The same order again is the one that is known; what has it is not sorted once more.
    assert compacting(table, sort_by="kind desc, id", min_files=1).staged.arg.partition_count == 0
    assert compacting(table, sort_by=["id"], min_files=1).staged.arg.argument["sortOrder"]["order-id"] == 2


def test_values_of_every_type_and_partitions_of_every_kind_survive(tmp_path: Path) -> None:
    """NULL, NaN, nested ones; partition values of dates, times, texts, decimals and numbers."""
    zoned = pa.timestamp("us", tz="UTC")
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("ratio", pa.float64()),
            ("day", pa.date32()),
            ("at", zoned),
            ("price", pa.decimal128(9, 2)),
            ("text", pa.string()),
            ("raw", pa.binary()),
            ("inner", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])),
            ("map", pa.map_(pa.string(), pa.int64())),
        ]
    )
    terms = ["ratio", "day", "month(at)", "bucket[3](price)", "truncate[2](text)", "raw"]
    table = table_of(tmp_path, columns, *terms)
    values: list[dict[str, Any]] = [
        {
            "id": 1,
            "ratio": math.nan,
            "day": date(1969, 12, 31),
            "at": datetime(2013, 1, 1, tzinfo=UTC),
            "price": Decimal("1.50"),
            "text": "a/b=ü",
            "raw": b"\x00\xff",
            "inner": {"x": 1, "tags": ["p", None]},
            "map": [("k", 1)],
        },
        {column.name: None for column in columns} | {"id": 2},
    ]
    for _ in range(3):
        table.publish(table.staged([pa.RecordBatch.from_pylist(values, columns)]))
    before = table.iceberg().scan().to_arrow()
    facts = compacting(table, sort_by=["id", "text"]).finish()
    assert (facts["filesBefore"], facts["filesAfter"]) == (6, 2)
    after = table.iceberg().scan().to_arrow()
    assert sorted(map(repr, after.to_pylist())) == sorted(map(repr, before.to_pylist()))
    assert left_over(table) == set()


def by_bucket(table: Table) -> None:
    """Partition the table in another way from now on."""
    alter(table, {"change": "partition_by", "terms": ["bucket[2](id)"]})


def test_files_of_an_earlier_partitioning_come_into_the_present_one(tmp_path: Path) -> None:
    """Whatever their number and size, so that partitions can be overwritten again."""
    table = filled(tmp_path, 2)
    by_bucket(table)
    table.publish(table.staged([rows(20, 10)]))
    with pytest.raises(PreconditionFailed, match="partition spec 0"):
        table.publish(table.staged([rows(30, 1)]), IcebergOverwritePartitions())
    some = Run.of(table, Compact(), partitions=["spec-0/kind=k1"])
    assert (some.staged.arg.partition_names(), some.staged.arg.version) == (["spec-0/kind=k1"], 3)
    facts = some.finish()
    assert (facts["filesBefore"], facts["filesAfter"], facts["rows"]) == (2, 2, 7)
    facts = Run.of(table, Compact(), smaller_than="1k").finish()
    assert (facts["filesBefore"], facts["partitions"], "passedOver" in facts) == (4, 2, False)
    assert {task.file.spec_id for task in table.iceberg().scan().plan_files()} == {1}
    assert table.ids() == list(range(30))
    assert table.operation() == Operation.REPLACE
    assert Run.of(table, Compact(), min_files=99).finish()["filesBefore"] == 0
    table.publish(table.staged([rows(30, 20)]), IcebergOverwritePartitions())
    assert table.ids() == list(range(30, 50))
    assert left_over(table) == set()


def test_files_of_a_partition_column_that_was_dropped_come_into_the_present_partitioning(
    tmp_path: Path,
) -> None:
    table = filled(tmp_path, 2)
    drop_partitioning(table)
    facts = Run.of(table, Compact()).finish()
    assert (facts["filesBefore"], facts["rows"]) == (6, 20)
    assert table.ids() == list(range(20))
    table.publish(table.staged([rows(30, 2).select(["id"])]), IcebergOverwritePartitions())
    assert table.ids() == [30, 31]


def test_an_earlier_partition_that_changes_meanwhile_is_left_out(tmp_path: Path) -> None:
    """P6: the others count, and the next compaction takes the rest."""
    table = filled(tmp_path, 2)
    by_bucket(table)
    run = Run.of(table, Compact())
    delete_positions(table, "elsewhere", [0], "k1", spec_id=0)
    facts = run.finish()
    assert facts["droppedPartitions"] == ["spec-0/kind=k1"]
    assert facts["filesBefore"] == 4
    facts = Run.of(table, Compact()).finish()
    assert (facts["filesBefore"], facts["deleteFiles"]) == (2, 1)
    assert table.ids() == list(range(20))


@pytest.mark.parametrize("kind", VALUES)
def test_files_without_their_partition_column_are_compacted(tmp_path: Path, kind: str) -> None:
    """P3: the new ones have it."""
    table, values = by_partition(tmp_path, kind)
    for _ in range(2):
        append_values(table, values, hive=True)
    assert compacting(table).finish()["filesBefore"] == 6
    snapshot = open_snapshot(table.record().metadata_location)
    rows = [row for batch in snapshot.batches(snapshot.plan_files()) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == sorted([*values, *values])
    assert {row["id"]: row["p"] for row in rows} == values
    assert all("p" in pq.read_schema(local(path)).names for path in table.data_files())


@pytest.mark.parametrize("by", [(), ("t",), ("year(t)",), ("hour(t)",)])
def test_rows_after_the_year_9999_are_compacted(tmp_path: Path, by: tuple[str, ...]) -> None:
    """P3: other engines write such."""
    columns = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    table = table_of(tmp_path, columns, *by)
    years = [300_000_000_000_000_000, -70_000_000_000_000_000, None]
    for start in (0, 3):
        table.append({"id": range(start, start + 3), "t": pa.array(years, columns.field("t").type)}, columns)
    assert compacting(table).finish()["filesAfter"] == (3 if by else 1)
    snapshot = open_snapshot(table.record().metadata_location)
    found = pa.Table.from_batches(snapshot.batches(snapshot.plan_files()))
    assert dict(zip(found["id"].to_pylist(), found["t"].cast(pa.int64()).to_pylist(), strict=True)) == dict(
        enumerate([*years, *years])
    )
    assert len(SnapshotGroups.of(snapshot, 0).partitions) == (3 if by else 1)


def test_files_under_rounded_partition_values_are_found_and_rewritten(tmp_path: Path) -> None:
    """P14: whatever their number and size."""
    values = [0.1, 1e300, 0.5, -1 / 3, 1e-50, math.nan, -0.0, math.inf, 0.7, 0.3]
    table = rounded_table(tmp_path, values)

    def listed() -> dict[str, float]:
        snapshot = open_snapshot(table.record().metadata_location)
        return {file.path: file.partition[0] for file in snapshot.plan_files()}

    def deep() -> set[str]:
        return set(view_table(table.record().metadata_location, deep=True).rounded)

    held = {path: pq.read_table(local(path))["x"][0].as_py() for path in listed()}
    wrong = {path for path, x in listed().items() if repr(x) != repr(held[path])}
    assert {0.1, 1e300, -1 / 3, 1e-50} <= {held[path] for path in wrong}
    assert deep() == wrong
    facts = compacting(table, min_files=100).finish()
    with_infinity = len(wrong) + 1  # which is listed together with what became infinite
    assert facts["filesBefore"] == facts["filesAfter"] == with_infinity
    assert {repr(x) for x in listed().values()} == {repr(x) for x in values}
    assert table.ids() == list(range(len(values)))
    assert deep() == set()


def live_ids(table: Table) -> list[int]:
    """As this project reads it: pyiceberg knows no equality deletes."""
    snapshot = open_snapshot(table.record().metadata_location)
    read = snapshot.batches(snapshot.plan_files(), columns=["id"])
    return sorted(number for batch in read for number in batch["id"].to_pylist())


def delete_files(table: Table) -> int:
    """What a schedule measures."""
    record = TableRecord(name=table.name, location=table.location)
    return measured(record, table.record())["delete_files"]


def files_of(table: Table, kind: str) -> list[DataFile]:
    """The data files of a partition, by their least id."""
    iceberg = table.iceberg()
    files = [task.file for task in iceberg.scan().plan_files() if task.file.partition[0] == kind]
    return sorted(files, key=lambda file: min(pq.read_table(local(file.file_path))["id"].to_pylist()))


def test_rows_that_others_have_deleted_are_left_out_and_their_delete_files_go(tmp_path: Path) -> None:
    """P14, V5: however few and large the files are; a schedule on delete files ends what it began for."""
    table = filled(tmp_path)
    first, second = files_of(table, "k1")[:2]
    publish_deletes(table, position_deletes(table.iceberg(), first, [0, 2], bounds=True))
    publish_deletes(table, equality_deletes(table.iceberg(), "id", [16, 1], second))
    table.publish(table.staged([rows(16, 1, kinds=1).set_column(1, "kind", pa.array(["k1"]))]))
    left = sorted([*(n for n in range(60) if n not in (1, 7, 16)), 16])
    assert (live_ids(table), delete_files(table)) == (left, 2)
    run = compacting(table, min_files=100, smaller_than="1k")
    assert run.staged.arg.partition_names() == ["kind=k1"]
    assert run.staged.arg.version == 3  # 0.2.0 would bring the rows back
    facts = run.finish()
    # The deletion by values is about all older files of the partition, the one by positions about its own.
    counted = {name: facts[name] for name in ("rows", "filesBefore", "deletedRows", "deleteFiles")}
    assert counted == {"rows": 17, "filesBefore": 6, "deletedRows": 3, "deleteFiles": 2}
    assert (table.ids(), delete_files(table), table.operation()) == (left, 0, Operation.REPLACE)
    summary = table.summary()
    totals = ("total-records", "total-position-deletes", "total-equality-deletes")
    assert [summary[name] for name in totals] == ["58", "0", "0"]
    assert not any(one.content == ManifestContent.DELETES for one in table.manifests() if is_live(one))
    head = table.head
    assert compacting(table, min_files=100, smaller_than="1k").finish()["filesBefore"] == 0
    assert table.head == head


def test_a_delete_file_stays_as_long_as_it_concerns_a_file(tmp_path: Path) -> None:
    """P14: what was appended later is not concerned, what a filter leaves out is."""
    table = filled(tmp_path, 2)
    publish_deletes(table, equality_deletes(table.iceberg(), "id", [1], files_of(table, "k1")[0]))
    facts = compacting(table, filter="id < 10", min_files=1).finish()
    assert (facts["deletedRows"], facts["deleteFiles"], delete_files(table)) == (1, 0, 1)
    facts = compacting(table, min_files=10).finish()
    assert (facts["filesBefore"], facts["deleteFiles"], delete_files(table)) == (1, 1, 0)
    assert table.ids() == [0, *range(2, 20)]


def test_each_file_may_have_all_later_delete_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P14: as a stream of changes leaves them; each is read once by a job."""
    table, rounds = new_table(tmp_path, ["kind"]), 12
    like: list[DataFile] = []
    for start in range(0, 2 * rounds, 2):
        table.publish(table.staged([rows(start, 2, kinds=2)]))
        like = like or [files_of(table, kind)[0] for kind in ("k0", "k1")]
        for number, file in enumerate(like):
            publish_deletes(table, equality_deletes(table.iceberg(), "id", [start - 2 + number], file))
    read: list[str] = []

    def counted(deletes: EqualityDeletes, file: DataFile, fields: list[int]) -> pa.Table:
        read.append(file.file_path)
        return read_rows(deletes, file, fields)

    read_rows = EqualityDeletes._read
    monkeypatch.setattr(EqualityDeletes, "_read", counted)
    facts = compacting(table).finish()
    assert (facts["filesBefore"], facts["deleteFiles"]) == (2 * rounds, 2 * rounds)
    assert len(read) == len(set(read)) == 2 * rounds
    assert (table.ids(), delete_files(table)) == ([2 * rounds - 2, 2 * rounds - 1], 0)


def test_a_plan_has_room_for_many_delete_files_of_each_file(tmp_path: Path) -> None:
    """O5: so that each round does some, here all."""
    metadata = new_table(tmp_path).layout.new_metadata("s3://bucket/t")
    count = 1000
    choice = Choice(
        deletes=[
            DataFile.from_args(file_path=f"d{number}", file_format=FileFormat.PARQUET)
            for number in range(count)
        ]
    )
    files = [
        Candidate(number, f"s3://bucket/t/{number}", 1, 1, True, deletes=((number, count),))
        for number in range(1, count)
    ]
    choice.groups[0, ()], choice.paths[0, ()] = [files], ""
    plan = plan_of(choice, metadata)
    assert plan.passed_over == {}
    [job] = plan.jobs
    named = [plan.deletes_of(file) for file in job.files]
    assert named == [{f"d{later}" for later in range(number, count)} for number in range(1, count)]


def test_a_delete_file_that_concerns_nothing_goes_without_a_job(tmp_path: Path) -> None:
    """P14: what it was about was overwritten."""
    table = filled(tmp_path, 2)
    delete_positions(table, "elsewhere", [0], "k9")
    run = compacting(table, min_files=100)
    assert run.staged.arg.partition_count == 0
    assert run.finish()["deleteFiles"] == 1
    assert (table.ids(), delete_files(table)) == (list(range(20)), 0)


def test_files_whose_deletes_cannot_be_applied_are_passed_over(tmp_path: Path) -> None:
    """V5: they are named by whoever reads them, and counted here."""
    table = filled(tmp_path)
    publish_deletes(table, equality_deletes(table.iceberg(), "kind", ["k1"], files_of(table, "k1")[0]))
    drop_partitioning(table)
    facts = compacting(table).finish()
    assert (facts["filesBefore"], facts["passedOver"]) == (12, {"deletes": 6})
    snapshot = open_snapshot(table.record().metadata_location)
    with pytest.raises(PreconditionFailed, match=r"deletes-.* cannot be read here: it compares columns"):
        snapshot.plan_files()
    table = filled(tmp_path / "other")
    like = files_of(table, "k1")[0]
    publish_deletes(table, equality_deletes(table.iceberg(), "id", [1], like, key_metadata=b"k"))
    facts = compacting(table).finish()
    assert (facts["filesBefore"], facts["passedOver"]) == (12, {"deletes": 6})


@pytest.mark.parametrize("void", [False, True])
def test_equality_deletes_without_a_partition_concern_all_files(tmp_path: Path, void: bool) -> None:
    """P14, V5: a partition without values is none (Iceberg specification, "Scan Planning")."""
    table = filled(tmp_path, 2)
    run, deletion = compacting(table), Run.of(table, Delete(), where="id = 5")
    anywhere = without_partition(table, void=void)
    snapshot = publish_deletes(table, equality_deletes(table.iceberg(), "id", [0, 7], anywhere))
    for late in (run, deletion):
        with refused(error=HeadConflict, snapshot=snapshot):
            late.commit()
    left = [n for n in range(20) if n not in (0, 7)]
    assert live_ids(table) == left
    facts = compacting(table, filter="kind = 'k0'").finish()
    assert (facts["deletedRows"], facts["deleteFiles"], live_ids(table)) == (1, 0, left)
    facts = compacting(table).finish()
    assert (facts["deletedRows"], facts["deleteFiles"], table.ids()) == (1, 1, left)


def test_rows_deleted_meanwhile_do_not_come_back(tmp_path: Path) -> None:
    """P6: by the partition that the deletion is about."""
    table = filled(tmp_path)
    run = compacting(table)
    snapshot = delete_positions(table, "elsewhere", [0], "k1")
    facts = run.finish()
    assert facts["droppedPartitions"] == ["kind=k1"]
    assert facts["conflicts"] == [{"snapshot": str(snapshot), "by": "another program"}]


@pytest.mark.parametrize("part", [1, 1 << 40])
def test_rows_deleted_by_others_stay_away_if_the_partition_column_was_widened_meanwhile(
    tmp_path: Path, part: int
) -> None:
    """P6: a partition's value is the same in the wider type, which has others, too."""
    columns = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    table = table_of(tmp_path, columns, "part")
    for start in (0, 10):
        table.append({"id": [start, start + 1], "part": [1, 2]}, columns)
    run = compacting(table)
    table.change_schema(lambda update: update.update_column("part", LongType()))
    delete_positions(table, "elsewhere", [0], part)
    facts = run.finish()
    assert facts.get("droppedPartitions") == (["part=1"] if part == 1 else None)


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"min_files": 0}, "min_files"),
        ({"target_file_size": "big"}, "target_file_size"),
        ({"target_file_size": 1}, "target_file_size"),
        ({"target_file_size": "9" * 400}, "target_file_size"),
        ({"sort_by": ["nothing"]}, "sort_by"),
        ({"sort_by": ["id", "id desc"]}, "sort_by"),
        ({"filter": "nothing = 1"}, "filter"),
        ({"files": 3}, "files"),
        ({"max_bytes_per_job": True}, "max_bytes_per_job"),
    ],
)
def test_a_malformed_argument_names_its_field(tmp_path: Path, argument: dict[str, Any], field: str) -> None:
    """O4"""
    with refused(field):
        compacting(filled(tmp_path, 1), **argument)
