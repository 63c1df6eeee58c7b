"""Modes that look at what the table holds: replace partitions, append only to nothing, or leave it alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update import RemoveSchemasUpdate, SetSnapshotRefUpdate

from distop.errors import HeadConflict, PreconditionFailed, TableNotEmpty
from distop.lake.cleanup.staged import sweep
from distop.lake.iceberg.branch_steps import IcebergPublishBranch
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.rollback import IcebergRollback
from distop.lake.iceberg.snapshots import Draft
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.lake.layout.model import Layout, file_io
from distop.lake.rewriting.modes import (
    IcebergAppendIfEmpty,
    IcebergAppendOrIgnore,
    IcebergOverwrite,
    IcebergOverwritePartitions,
)
from distop.metastore.etcd.txn import unchanged
from distop.metastore.records.operation import WatermarkMove
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots
from support.refusals import refused
from support.tables.maintaining import Run
from support.tables.publishing import ROWS, Staged, Table, drop_partitioning, local, new_table, rows, table_of


def of_kinds(start: int, *kinds: str | None) -> pa.RecordBatch:
    """One row of each kind."""
    return pa.record_batch({"id": range(start, start + len(kinds)), "kind": list(kinds)}, schema=ROWS)


def expecting(table: Table) -> dict[str, str | None]:
    """The argument that refuses what is written from now on."""
    snapshot_id = table.record().snapshot_id if table.head.exists else None
    return {"expectedSnapshotId": None if snapshot_id is None else str(snapshot_id)}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table by kind, that nothing was published to."""
    return new_table(tmp_path, ["kind"])


# -- overwrite partitions ----------------------------------------------------------------------------


def test_exactly_the_partitions_of_the_new_rows_are_replaced(table: Table) -> None:
    """P5: the others keep their files, and the former state can still be read."""
    table.publish(table.staged([of_kinds(0, "a", "b", "c")], [of_kinds(10, "a", "b", "c")]))
    table.publish(table.staged([of_kinds(20, "c", "d")]))
    before, kept = table.record().snapshot_id, set(table.data_files())
    step = IcebergOverwritePartitions(expecting(table))
    facts = table.publish(table.staged([of_kinds(100, "a")], [of_kinds(200, "c", "e")]), step).facts
    assert table.ids() == [1, 11, 21, 100, 200, 201]
    assert (facts["removedFiles"], facts["removedRows"], facts["replacedPartitions"]) == (5, 5, 3)
    assert len(kept & set(table.data_files())) == 3
    told = table.summary()
    assert (told["total-records"], told["total-data-files"], told["deleted-data-files"]) == ("6", "6", "5")
    assert table.ids(snapshot_id=before) == [0, 1, 2, 10, 11, 12, 20, 21]
    assert table.ids(row_filter="kind = 'b'") == [1, 11]


def test_ten_files_of_a_partition_then_three_leave_three(table: Table) -> None:
    """P5"""
    table.publish(table.staged(*([of_kinds(i, "a", "b")] for i in range(0, 20, 2))))
    table.publish(table.staged(*([of_kinds(100 + i, "a")] for i in range(3))), IcebergOverwritePartitions())
    assert len(table.data_files()) == 10 + 3
    assert table.ids() == [*range(1, 20, 2), 100, 101, 102]


def test_manifests_of_other_partitions_are_not_rewritten(table: Table) -> None:
    """P4: replacing one day costs one day, not the table."""
    for kind in ("a", "b", "c"):
        table.publish(table.staged([of_kinds(0, kind)]))

    def paths() -> dict[str, int]:
        return {one.manifest_path: one.deleted_files_count or 0 for one in table.manifests()}

    before = paths()
    table.publish(table.staged([of_kinds(10, "b")]), IcebergOverwritePartitions())
    after = paths()
    assert len(before.keys() & after.keys()) == 2
    assert sorted(after.values()) == [0, 0, 0, 1]
    (removed,) = (entry for entry in table.entries() if entry.status == ManifestEntryStatus.DELETED)
    assert (removed.snapshot_id, removed.sequence_number) == (table.record().snapshot_id, 2)


def test_null_and_nan_are_partitions_like_any_other(table: Table, tmp_path: Path) -> None:
    """P5"""
    table.publish(table.staged([of_kinds(0, None, "a", "")]))
    table.publish(table.staged([of_kinds(10, None)]), IcebergOverwritePartitions())
    assert table.ids() == [1, 2, 10]
    nan, schema = float("nan"), pa.schema([("id", pa.int64()), ("x", pa.float64())])
    floats = table_of(tmp_path / "floats", schema, "x")
    floats.append({"id": [0, 1, 2], "x": [nan, 1.5, -0.0]}, schema)
    floats.append({"id": [10], "x": [nan]}, schema)
    again = pa.record_batch({"id": [20], "x": [nan]}, schema=schema)
    floats.publish(floats.staged([again]), IcebergOverwritePartitions())
    assert floats.ids() == [1, 2, 20]


def test_partitions_of_numbers_are_replaced_by_the_very_same_numbers(tmp_path: Path) -> None:
    """P5: 0.1 is no number of 32 bits, and stays what it is when manifests are merged."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    layout = Layout.create(schema, ["x"], {"commit.manifest.min-count-to-merge": "2"})
    table = Table("t", f"file://{tmp_path}/t", layout)
    numbers = [0.1, 0.2, float(np.float32(0.1)), -1 / 3]
    for id, x in enumerate(numbers):
        table.append({"id": [id], "x": [x]}, schema)
    again = pa.record_batch({"id": [10, 13], "x": [numbers[0], numbers[3]]}, schema=schema)
    facts = table.publish(table.staged([again]), IcebergOverwritePartitions()).facts
    assert facts["removedFiles"] == 2
    assert table.ids() == [1, 2, 10, 13]


@pytest.mark.parametrize("term", ["month(day)", "bucket[4](id)", "truncate[2](id)", "day"])
def test_partitions_of_every_transform_are_told_apart(tmp_path: Path, term: str) -> None:
    """P5: dates, hashes and numbers compare as they are stored."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    table = table_of(tmp_path, schema, term)

    def batch(ids: list[int]) -> pa.RecordBatch:
        days = pa.array([30 * i for i in ids], pa.date32())
        return pa.record_batch({"id": ids, "day": days}, schema=schema)

    table.publish(table.staged([batch(list(range(12)))]))
    before = {task.file.file_path: task.file.record_count for task in table.iceberg().scan().plan_files()}
    table.publish(table.staged([batch([3])]), IcebergOverwritePartitions())
    gone = set(before) - set(table.data_files())
    assert len(gone) == 1
    assert len(table.ids()) == 12 - sum(before[path] for path in gone) + 1


def test_without_partitioning_everything_is_one_partition(tmp_path: Path) -> None:
    """P5"""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 5)]))
    table.publish(table.staged([rows(10, 2)]), IcebergOverwritePartitions())
    assert table.ids() == [10, 11]


def test_no_rows_replace_no_partition(table: Table) -> None:
    """P10: and there is no snapshot."""
    table.publish(table.staged([rows(0, 5)]))
    head = table.head
    table.publish(table.staged([]), IcebergOverwritePartitions(expecting(table)))
    assert table.head == head


def test_files_of_another_partitioning_are_refused(table: Table) -> None:
    """P5, U3: which of their rows would have to go is not known, and no row is lost by guessing."""
    table.publish(table.staged([rows(0, 3)]))
    present = table.iceberg().metadata
    spec = Layout.create(ROWS, ["bucket[2](id)"]).spec
    other = type(spec)(*(field.model_copy(update={"field_id": 1001}) for field in spec.fields), spec_id=1)
    evolved = present.model_copy(
        update={"partition_specs": [*present.partition_specs, other], "default_spec_id": 1}
    )
    location = Draft(file_io(table.location), TableFile.of(evolved, table.record().metadata_location)).write()
    table.replace(location)
    table.layout = Layout.of(evolved)
    with pytest.raises(PreconditionFailed, match="partition spec 0"):
        table.publish(table.staged([rows(0, 1)]), IcebergOverwritePartitions())
    table.publish(table.staged([rows(50, 1)]), IcebergOverwrite())
    assert table.ids() == [50]


def ids_alone(start: int, count: int = 1) -> pa.RecordBatch:
    """Rows without a kind."""
    return rows(start, count).select(["id"])


def test_files_partitioned_by_a_column_that_was_dropped_are_overwritten(table: Table) -> None:
    """P5: its type is known from an earlier schema; the snapshot tells which files went."""
    table.publish(table.staged([rows(0, 6)]))
    drop_partitioning(table)
    table.publish(table.staged([ids_alone(10)]))
    with pytest.raises(PreconditionFailed, match="partition spec 0"):
        table.publish(table.staged([ids_alone(20)]), IcebergOverwritePartitions())
    facts = table.publish(table.staged([ids_alone(20)]), IcebergOverwrite()).facts
    assert (facts["removedFiles"], facts["removedRows"]) == (4, 7)
    assert table.ids() == [20]
    gone = [entry.data_file for entry in table.entries() if entry.status == ManifestEntryStatus.DELETED]
    assert sorted(file.partition[0] for file in gone if file.spec_id == 0) == ["k0", "k1", "k2"]


def test_a_branch_partitioned_by_a_column_that_was_dropped_is_rebased(table: Table) -> None:
    """P7: its files become files of the table, in the partitions that they were written to."""
    table.publish(table.staged([rows(0, 6)]))
    ahead = table.staged([rows(100, 3)])
    ahead.arg.argument["branch"] = "b"
    table.publish(ahead)
    drop_partitioning(table)
    table.publish(table.staged([ids_alone(10)]))
    table.publish(table.start(0), IcebergPublishBranch({"branch": "b", "onConflict": "rebase"}))
    assert table.ids() == [*range(6), 10, *range(100, 103)]
    rebased = table.iceberg().scan(row_filter="id >= 100").plan_files()
    assert {task.file.partition[0] for task in rebased} == {"k0", "k1", "k2"}


def test_branches_keep_the_settings_that_another_program_gave_them(tmp_path: Path) -> None:
    """P14: how long their snapshots are kept, whatever moves them."""
    table = new_table(tmp_path)
    for start in range(2):
        table.publish(table.staged([rows(start, 1)]))
    first = table.iceberg().metadata.snapshots[0].snapshot_id
    given: dict[str, Any] = {"min-snapshots-to-keep": 5, "max-snapshot-age-ms": 6, "max-ref-age-ms": 7}
    named: dict[str, Any] = {"type": "branch", "snapshot-id": table.record().snapshot_id, **given}
    updates = (SetSnapshotRefUpdate(**named, **{"ref-name": name}) for name in ("main", "b"))
    table.replace(table.draft().write(*updates))

    def settings(name: str) -> dict[str, Any]:
        ref = table.iceberg().metadata.refs[name]
        return ref.model_dump(by_alias=True, exclude={"snapshot_id", "snapshot_ref_type"})

    ahead = table.staged([rows(100, 1)])
    ahead.arg.argument["branch"] = "b"
    table.publish(ahead)
    assert (settings("main"), settings("b")) == (given, given)
    table.publish(table.start(0), IcebergPublishBranch({"branch": "b"}))
    assert settings("main") == given
    back = {"snapshotId": str(first), "expectedSnapshotId": str(table.record().snapshot_id)}
    table.publish(table.start(0), IcebergRollback({**back, "watermarks": "keep"}))
    assert settings("main") == given
    table.publish(table.staged([rows(200, 1)]))
    assert (table.ids(), settings("main")) == ([0, 200], given)


def test_a_spec_whose_schema_was_removed_is_neither_written_nor_in_the_way(tmp_path: Path) -> None:
    """U3: another program has removed the only schema with its column; appends go on."""
    table = new_table(tmp_path, ["kind"], **{"commit.manifest.min-count-to-merge": "2"})
    for start in range(4):
        table.publish(table.staged([rows(start, 1)]))
    drop_partitioning(table)
    columns, present = table.iceberg().schemas(), table.iceberg().schema().schema_id
    removed: dict[str, Any] = {"schema-ids": [number for number in columns if number != present]}
    table.replace(table.draft().write(RemoveSchemasUpdate(**removed)))
    for start in range(10, 14):
        table.publish(table.staged([ids_alone(start)]))
    assert table.ids() == [*range(4), *range(10, 14)]
    with pytest.raises(PreconditionFailed, match="partition spec 0"):
        table.publish(table.staged([ids_alone(20)]), IcebergOverwrite())


def test_an_overwrite_of_partitions_is_rebased_on_changes_of_other_partitions(table: Table) -> None:
    """P6: the refusal goes by partition."""
    table.publish(table.staged([of_kinds(0, "a", "b")]))
    mine, step = table.staged([of_kinds(10, "a")]), IcebergOverwritePartitions(expecting(table))
    for i in range(12):  # manifests are merged meanwhile
        table.publish(table.staged([of_kinds(20 + i, "c")]))
    table.publish(table.staged([of_kinds(50, "b")]), IcebergOverwritePartitions())
    table.publish(mine, step)
    assert table.ids() == [10, *range(20, 32), 50]


def test_an_overwrite_of_partitions_refuses_or_replaces_concurrent_changes_of_them(table: Table) -> None:
    """P6: added or removed meanwhile; the conflict names the snapshot and who made it."""
    table.publish(table.staged([of_kinds(0, "a", "b")]))
    mine, argument = table.staged([of_kinds(10, "a")]), expecting(table)
    table.publish(table.staged([of_kinds(20, "a")]))
    culprit = table.record().snapshot_id
    table.publish(table.staged([of_kinds(30, "b")]))
    with refused(error=HeadConflict, snapshot=culprit, by="flights/ingest/3"):
        IcebergOverwritePartitions(argument).prepare(table.context(mine))
    table.publish(mine, IcebergOverwritePartitions())
    assert table.ids() == [1, 10, 30]

    late, argument = table.staged([of_kinds(40, "a")]), expecting(table)
    table.publish(table.staged([of_kinds(50, "z")]), IcebergOverwrite())
    with pytest.raises(HeadConflict):
        IcebergOverwritePartitions(argument).prepare(table.context(late))


def test_a_partition_written_while_the_table_was_still_new_is_refused(table: Table) -> None:
    """P6"""
    mine, argument = table.staged([of_kinds(10, "a")]), expecting(table)
    other, _ = table.staged([of_kinds(20, "b")]), table.publish(table.staged([of_kinds(0, "b")]))
    table.publish(mine, IcebergOverwritePartitions(argument))
    with pytest.raises(HeadConflict):
        IcebergOverwritePartitions(argument).prepare(table.context(other))


# -- error if exists, ignore -------------------------------------------------------------------------


def moving(table: Table, mode: str = "ignore") -> Staged:
    operation = table.start(watermarks={"files": {"m": WatermarkMove(after="1")}})
    operation.arg.argument["mode"] = mode
    operation.run("0", [rows(100, 2)])
    return operation


def test_one_of_two_operations_that_require_an_empty_table_wins(tmp_path: Path) -> None:
    """P5: the error of the other names the snapshot and its operation. What counts is data, not whether
    there was a commit."""
    table = new_table(tmp_path)
    one, two = table.staged([rows(0, 1)]), table.staged([rows(1, 1)])
    table.publish(one, IcebergAppendIfEmpty())
    with refused(error=TableNotEmpty, snapshot=table.record().snapshot_id, by="flights/ingest/1"):
        IcebergAppendIfEmpty().prepare(table.context(two))
    assert table.ids() == [0]
    table.publish(table.staged([]), IcebergOverwrite())
    table.publish(two, IcebergAppendIfEmpty())
    assert table.ids() == [1]


def test_data_that_appeared_meanwhile_makes_it_do_nothing(tmp_path: Path) -> None:
    """P5, C8: no snapshot, no watermark, and all that was staged is swept."""
    table = new_table(tmp_path)
    mine = moving(table)
    table.publish(table.staged([rows(0, 1)]))
    head = table.head
    contributions = [step.prepare(table.context(mine)) for step in (WatermarkStep(), IcebergAppendOrIgnore())]
    assert [contribution.txn.then for contribution in contributions] == [(), ()]
    assert contributions[1].txn.compares == (unchanged(head),)
    facts = contributions[1].facts
    assert facts == {"ignored": True, "rows": 0, "files": 0, "bytes": 0}
    assert sweep(mine.arg, mine.history(facts), mine.jobs) == 2
    assert table.ids() == [0]


def test_without_data_ignore_is_an_append(tmp_path: Path) -> None:
    """P5"""
    table = new_table(tmp_path)
    mine = moving(table)
    facts = table.publish(mine, IcebergAppendOrIgnore()).facts
    assert "ignored" not in facts
    # The watermark step sees the base that the other one saw, not what it made of it.
    before = replace(table.context(mine), head=type(table.head).missing(table.keys.head))
    assert WatermarkStep().prepare(before).txn.then != ()
    assert sweep(mine.arg, mine.history(facts), mine.jobs) == 0
    assert table.ids() == [100, 101]


# -- earlier metadata --------------------------------------------------------------------------------


def test_metadata_that_fell_out_of_the_log_is_removed_after_the_commit(tmp_path: Path) -> None:
    """P4, P8: the commit reports it and the sweep after it removes it: not before the commit is certain."""
    bounded = {"previous-versions-max": "2", "delete-after-commit.enabled": "true"}
    table = new_table(tmp_path, **{f"write.metadata.{name}": value for name, value in bounded.items()})
    folder = local(table.location) / "metadata"
    for i in range(6):
        operation = table.staged([rows(i, 1)])
        facts = table.publish(operation).facts
        assert len(list(folder.glob("*.metadata.json"))) == min(i + 1, 4)
        sweep(operation.arg, operation.history(facts), operation.jobs)
        sweep(operation.arg, operation.history(facts), operation.jobs)
        assert len(list(folder.glob("*.metadata.json"))) == min(i + 1, 3)
    assert table.ids() == list(range(6))
    logged = {entry.metadata_file for entry in table.iceberg().metadata.metadata_log}
    left = {f"file://{path}" for path in folder.glob("*.metadata.json")}
    assert left == logged | {table.record().metadata_location}


def test_a_snapshot_that_expired_meanwhile_refuses_to_guess(table: Table) -> None:
    """P6, P13: the content of the partitions at the start is unknown once its snapshot has expired."""
    table.publish(table.staged([of_kinds(0, "a")]))
    mine, other = table.staged([of_kinds(10, "a")]), table.staged([of_kinds(11, "a")])
    step = IcebergOverwritePartitions(expecting(table))
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    step.prepare(table.context(mine)).discard()  # the present one never expires
    table.publish(table.staged([of_kinds(20, "b")]))
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    with pytest.raises(HeadConflict):
        step.prepare(table.context(other))
    assert table.ids() == [0, 20]
