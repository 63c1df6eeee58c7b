"""Deletion from plan to sweep: rows that match are removed, all others stay, also with concurrent writers."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

from distop.errors import HeadConflict, InvalidArgument, JobFailed, PreconditionFailed
from distop.lake.layout.model import Layout
from distop.lake.rewriting import plan as deleting_files
from distop.lake.rewriting.modes import IcebergOverwrite, IcebergOverwritePartitions
from distop.lake.writing import file_lists
from distop.lake.writing.writer import StagedWriter
from distop.metastore.records.operation import JobRecord, OperationArg
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord, decode_watermarks
from distop.operations.api import PlanRequest, make_plan
from distop.operations.job import staging_folder, staging_stem
from distop.spark_jobs.compact.operation import Compact
from distop.spark_jobs.delete.operation import Delete, DeleteArgument
from distop.spark_jobs.maintenance.snapshots import Rollback
from distop.spark_jobs.tables import open_snapshot
from support.refusals import refused
from support.tables.deletes import delete_positions, equality_deletes, publish_deletes
from support.tables.maintaining import Run
from support.tables.partition_values import VALUES, append_values, by_partition, literal_of
from support.tables.publishing import (
    ROWS,
    Table,
    drop_partitioning,
    filled,
    left_over,
    local,
    new_table,
    rows,
    table_of,
)


def deleting(table: Table, where: str, *, jobs: bool = True, **argument: Any) -> Run:
    return Run.of(table, Delete(), jobs=jobs, where=where, **argument)


@pytest.mark.parametrize("where", ["fare > 1.5", "fare in (2.5, 3.500)"])
def test_a_decimal_may_have_fewer_digits_than_its_column(tmp_path: Path, where: str) -> None:
    """A read with the predicate shows what will go."""
    schema = pa.schema([("id", pa.int64()), ("fare", pa.decimal128(9, 2))])
    table = table_of(tmp_path, schema)
    fares = [Decimal("0.50"), Decimal("1.50"), Decimal("2.50"), Decimal("3.50")]
    table.append({"id": range(4), "fare": fares}, schema)
    snapshot = open_snapshot(table.record().metadata_location)
    [batch] = snapshot.batches(snapshot.plan_files(where), where=where)
    assert batch["id"].to_pylist() == [2, 3]
    assert deleting(table, where).finish()["removedRows"] == 2
    assert table.ids() == [0, 1]


WHOLE_NUMBERS = [
    ("n in (5, 3000000000)", [0]),
    ("n not in (3000000000, -3000000000)", [0, 1, 2, 3]),
    ("n != 5.5", [0, 1, 2, 3]),
    ("not n < 5.5", [1, 2]),
    ("n in (3000000000, -3000000000)", []),
    ("n not in (5, 3000000000)", [1, 2, 3]),
    ("n in (5.5, 6.0)", [1]),
    ("n not in (5.5, 6.0)", [0, 2, 3]),
    ("n = 5.5", []),
    ("n <= 5.5", [0, 3]),
    ("n < 5.5", [0, 3]),
    ("n > 5.5", [1, 2]),
    ("n >= 5.5", [1, 2]),
]


@pytest.mark.parametrize("partition_by", [[], ["n"]])
def test_whole_numbers_are_not_compared_with_other_numbers_than_the_predicate_names(
    tmp_path: Path, partition_by: list[str]
) -> None:
    """Fractions are not rounded, and what a column cannot hold is not the greatest that it can."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    table = table_of(tmp_path, schema, *partition_by)
    values = [5, 6, 2**31 - 1, -(2**31), None]
    table.append({"id": range(5), "n": values}, schema)
    snapshot = open_snapshot(table.record().metadata_location)
    for where, gone in WHOLE_NUMBERS:
        read = snapshot.batches(snapshot.plan_files(where), where=where)
        assert sorted(number for batch in read for number in batch["id"].to_pylist()) == gone, where
    for where, gone in WHOLE_NUMBERS[:4] if partition_by else WHOLE_NUMBERS:
        deletes_exactly(table, 5, where, gone)


@pytest.mark.parametrize("hive", [False, True], ids=["in the files", "in the partition only"])
@pytest.mark.parametrize("kind", VALUES)
def test_rows_of_a_partition_go_by_its_value(tmp_path: Path, kind: str, hive: bool) -> None:
    """P3: the files need not have the column. What stays of one is written with it."""
    table, values = by_partition(tmp_path, kind)
    append_values(table, values, hive=hive)
    where = f"p = {literal_of(values[0])}"
    assert deleting(table, f"{where} and id = 3").finish()["removedRows"] == 1
    snapshot = open_snapshot(table.record().metadata_location)
    rows = [row for batch in snapshot.batches(snapshot.plan_files()) for row in batch.to_pylist()]
    assert {row["id"]: row["p"] for row in rows} == {number: values[number] for number in range(3)}
    assert deleting(table, where).finish()["removedRows"] == 1
    assert deleting(table, "p is null").finish()["removedRows"] == 1
    snapshot = open_snapshot(table.record().metadata_location)
    assert [row["id"] for batch in snapshot.batches(snapshot.plan_files()) for row in batch.to_pylist()] == [
        1
    ]


def deletes_exactly(table: Table, count: int, where: str, gone: list[int]) -> None:
    """Of a table of so many rows, without changing the table itself."""
    apart = table.apart()
    assert deleting(apart, where).finish()["removedRows"] == len(gone), where
    assert apart.ids() == [number for number in range(count) if number not in gone], where


def test_the_rows_go_and_all_others_stay(tmp_path: Path) -> None:
    """P3, P11: in one snapshot; the past can still be read, files without such rows are not touched."""
    table = filled(tmp_path, 3)
    before, files = table.record().snapshot_id, set(table.data_files())
    facts = deleting(table, "id >= 5 and id < 12").finish()
    assert table.ids() == [*range(5), *range(12, 30)]
    assert (facts["removedRows"], facts["removedFiles"], facts["droppedFiles"]) == (7, 5, 0)
    summary = table.summary()
    assert table.operation() == Operation.OVERWRITE
    assert (summary["total-records"], summary["distop.operation"]) == ("23", "flights/delete/4")
    assert len(files & set(table.data_files())) == 4
    assert table.ids(snapshot_id=before) == list(range(30))
    assert left_over(table) == set()


def test_files_of_which_all_rows_go_are_not_read(tmp_path: Path) -> None:
    """Their statistics prove it: no job, and a snapshot that says so."""
    table = filled(tmp_path, 3)
    run = deleting(table, "kind = 'k1' and id >= 10")
    assert run.staged.arg.partition_count == 0
    facts = run.finish()
    assert (facts["removedRows"], facts["removedFiles"], facts["droppedFiles"]) == (7, 2, 2)
    assert table.ids() == [n for n in range(30) if n < 10 or n % 3 != 1]
    assert table.operation() == Operation.DELETE


def test_nothing_matched_is_a_success_without_a_snapshot(tmp_path: Path) -> None:
    """P10: no file can hold such a row; files could, and do not; the table is empty, or new."""
    table = filled(tmp_path, 3, partition_by=())
    head = table.head
    empty = deleting(table, "id > 100")
    assert not empty.staged.arg.partition_count
    assert empty.finish()["removedRows"] == 0
    facts = deleting(table, "kind = 'k00'").finish()
    assert (facts["removedRows"], facts["removedFiles"]) == (0, 0)
    assert table.head == head
    assert left_over(table) == set()
    assert deleting(new_table(tmp_path / "new"), "id = 1").finish()["removedRows"] == 0


def test_all_rows_can_go(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    # On the command line, --arg where=true is JSON.
    assert Run.of(table, Delete(), where=True).finish()["removedRows"] == 30
    assert (table.ids(), table.data_files()) == ([], [])
    table.publish(table.staged([rows(0, 3)]))
    assert table.ids() == [0, 1, 2]


COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("x", pa.float64()), ("t", pa.string())])


def with_unknown(folder: Path, partition_by: tuple[str, ...] = ()) -> Table:
    """A table with NULL and NaN where they hurt, in two files."""
    table = table_of(folder, COLUMNS, *partition_by)
    values = (
        {
            "id": [0, 1, 2, 3],
            "n": [1, 2, None, 4],
            "x": [1.0, math.nan, None, 4.0],
            "t": ["a", None, "ab", "c"],
        },
        {"id": [4, 5, 6, 7], "n": [None] * 4, "x": [math.nan] * 4, "t": ["c", "c", None, None]},
    )
    for one in values:
        table.append(one, COLUMNS)
    return table


UNKNOWN = [
    ("not n < 3", [3]),
    ("not (n in (1, 2) or t = 'c')", []),
    ("n != 99999999999", [0, 1, 3]),
    ("n is null and t = 'c'", [4, 5]),
    ("t not like 'a%'", [3, 4, 5]),
    ("x is not nan", [0, 3]),
    ("x != 1.0", [1, 3, 4, 5, 6, 7]),
    ("n < 3", [0, 1]),
    ("n != 2", [0, 3]),
    ("n not in (1, 2)", [3]),
    ("n < 99999999999", [0, 1, 3]),
    ("n is null", [2, 4, 5, 6, 7]),
    ("n is not null", [0, 1, 3]),
    ("n = 1 or t = 'c'", [0, 3, 4, 5]),
    ("t like 'a%'", [0, 2]),
    ("x is nan", [1, 4, 5, 6, 7]),
    ("x > 1.5", [1, 3, 4, 5, 6, 7]),
    ("x < 1.5", [0]),
    ("t < 'b'", [0, 2]),
    ("false", []),
]


@pytest.mark.parametrize("partition_by", [(), ("t",), ("bucket(4, n)",)])
def test_rows_of_which_the_predicate_is_unknown_stay(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    """SQL's three values, whether partitions, statistics or the rows themselves decide."""
    table = with_unknown(tmp_path, partition_by)
    for where, gone in UNKNOWN[:7] if partition_by else UNKNOWN:
        deletes_exactly(table, 8, where, gone)


REFUSED = [
    "",
    "nobody = 1",
    "lower(kind) = 'k1'",
    "id in (select id from t)",
    "random() < 0.5",
    "id = 'one'",
    "id = ",
    "id = 1 and (id = 2 or (" * 150 + "id = 3" + "))" * 150,
    "id in (" + ", ".join(map(str, range(40_000))) + ")",
    "kind like 'k\\'",
]


def test_a_predicate_that_cannot_be_taken_is_refused_by_its_field(tmp_path: Path) -> None:
    """O4, S1: neither functions nor queries are part of the language."""
    table = filled(tmp_path, 1)
    for where in REFUSED:
        with refused("where"):
            deleting(table, where)


def test_a_delete_with_partitions_unknown_fields_or_a_missing_branch_is_refused(tmp_path: Path) -> None:
    """O4"""
    table = filled(tmp_path, 1)
    with refused("partitions"):
        Run.of(table, Delete(), partitions=["kind=k1"], where="id = 1")
    with pytest.raises(InvalidArgument, match="wher"):
        Run.of(table, Delete(), wher="id = 1")
    with pytest.raises(PreconditionFailed, match="no branch 'aside'"):
        deleting(table, "id = 1", branch="aside")
    with refused("branch"):  # a variable that was not set: never the table itself
        deleting(table, "id = 1", branch="")


def test_rows_are_deleted_by_a_column_below_a_struct(tmp_path: Path) -> None:
    """P3: a struct itself cannot be compared."""
    columns = pa.schema([("id", pa.int64()), ("s", pa.struct([("b", pa.int32())])), ("b", pa.int32())])
    table = table_of(tmp_path, columns)
    table.append({"id": [1, 2, 3], "s": [{"b": 1}, {"b": 2}, None], "b": [2, 1, 1]}, columns)
    with refused("where", "nested"):
        deleting(table, "s is null")
    assert deleting(table, "s.b = 1").finish()["removedRows"] == 1
    assert table.ids() == [2, 3]


# -- beside others ---------------------------------------------------------------------------------------


def test_rows_appended_during_a_delete_are_not_touched(tmp_path: Path) -> None:
    """P6, P7: also when the commit was prepared before, and is prepared again."""
    table = filled(tmp_path, 3)
    run = deleting(table, "id < 5 or id >= 100")
    table.publish(table.staged([rows(100, 5)]))
    lost = run.step().prepare(table.context(run.staged))
    table.publish(table.staged([rows(200, 5)]))
    assert not table.apply(lost.txn)
    lost.discard()
    run.finish()
    assert table.ids() == [*range(5, 30), *range(100, 105), *range(200, 205)]
    assert left_over(table) == set()


@pytest.mark.parametrize("change", ["overwrite", "partitions", "compact", "delete", "rollback"])
def test_the_first_of_two_changes_of_the_same_files_wins(tmp_path: Path, change: str) -> None:
    """P6: nothing is published, the error names the snapshot; started again, it does what is left."""
    table = filled(tmp_path, 3)
    first = str(table.iceberg().metadata.snapshots[0].snapshot_id)
    runs = {where: deleting(table, where) for where in ("id < 5", "kind = 'k0'")}
    match change:
        case "overwrite":
            table.publish(table.staged([rows(0, 9)]), IcebergOverwrite())
        case "partitions":
            table.publish(table.staged([rows(0, 3, kinds=1)]), IcebergOverwritePartitions())
        case "compact":
            Run.of(table, Compact(), min_files=2).finish()
        case "delete":
            deleting(table, "id = 0").finish()
        case "rollback":
            table.publish(table.staged([rows(90, 3)]))
            Run.of(table, Rollback(), snapshot=first).finish()
    head, there = table.head, table.ids()
    for where, run in runs.items():
        run.table = apart = table.apart()
        if change == "rollback" and where == "id < 5":
            # What it is about is in the first snapshot, too.
            assert run.finish()["removedRows"] == 5
            continue
        with pytest.raises(HeadConflict) as refused:
            run.commit()
        if change != "rollback":
            assert refused.value.details["snapshot"] == str(table.record().snapshot_id)
        assert apart.head == head
        deleting(apart, where).finish()
        gone = (lambda n: n < 5) if where == "id < 5" else (lambda n: n % 3 == 0)
        if change != "partitions" or where == "id < 5":
            assert apart.ids() == [n for n in there if not gone(n)]
        run.sweep({})


def test_a_delete_is_rebased_on_changes_of_other_files(tmp_path: Path) -> None:
    """P6: an overwrite of another partition, and a deletion of other rows."""
    table = filled(tmp_path, 3)
    run = deleting(table, "id < 5 and kind = 'k1'")
    table.publish(table.staged([rows(300, 9, kinds=1)]), IcebergOverwritePartitions())
    deleting(table, "id > 25 and kind = 'k2'").finish()
    assert run.finish()["removedRows"] == 2
    expected = [n for n in range(30) if n % 3 and n not in (1, 4, 26, 29)]
    assert table.ids() == [*expected, *range(300, 309)]


def test_a_plan_holds_as_long_as_others_only_append(tmp_path: Path) -> None:
    """O1: a table that is fed all the time can be planned upon; what has left is a reason to plan again."""
    table = filled(tmp_path, 3)

    def request(where: str = "id < 5") -> PlanRequest:
        return PlanRequest(
            table=TableRecord(name="flights", location=table.location),
            head=decode(table.head.value, Head),
            watermarks=decode_watermarks(table.watermarks.value),
            argument=DeleteArgument(where=where),
        )

    kind, made_on = Delete(), request()
    plan = make_plan(kind, made_on)
    table.publish(table.staged([rows(100, 5)]))
    assert kind.plan_holds(plan, made_on, request())
    assert kind.preview(request()) == {"jobs": 1, "filesToRead": 3, "filesToDrop": 0, "rowsToDrop": 0}
    dropped = {"jobs": 0, "filesToRead": 0, "filesToDrop": 3, "rowsToDrop": 10}
    assert kind.preview(request("kind = 'k1' and id < 100")) == dropped
    deleting(table, "id = 0").finish()
    assert not kind.plan_holds(plan, made_on, request())


def test_the_results_of_the_jobs_are_checked_before_anything_counts(tmp_path: Path) -> None:
    """U3: a row is neither lost nor kept by a result that cannot be."""
    table = filled(tmp_path, 3)
    for name, wrong in (("removed", 4), ("read", 9), ("rows", 1)):
        run = deleting(table, "id < 5")
        run.staged.jobs["0"].result[name] = wrong
        with pytest.raises(PreconditionFailed):
            run.commit()
    path = local(table.data_files()[0])
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(JobFailed, match="the table says"):
        deleting(table, "id >= 0 and id != 4")


def test_a_file_that_is_missing_fails_the_job(tmp_path: Path) -> None:
    """U3"""
    table = filled(tmp_path, 3)
    run = deleting(table, "id < 5", jobs=False)
    for path in table.data_files():
        local(path).unlink()
    with pytest.raises(JobFailed, match="missing"):
        run.run_jobs()


def test_files_are_cut_into_jobs_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O8: each job says of its files which it has changed; a plan that does not fit any more is refused."""
    monkeypatch.setattr(deleting_files, "MAX_FILES_PER_JOB", 2)
    table = filled(tmp_path, 5, partition_by=())
    run = deleting(table, "id in (3, 44) and kind != 'k2' or id = 25", jobs=False)
    assert run.staged.arg.partition_count == 2
    run.run_jobs()
    assert run.finish()["removedFiles"] == 2
    assert table.ids() == [n for n in range(50) if n not in (3, 25)]
    monkeypatch.setattr(deleting_files, "MAX_JOBS", 1)
    with pytest.raises(PreconditionFailed, match="jobs"):
        deleting(table, "kind != 'k1'")
    monkeypatch.setattr(deleting_files, "MAX_JOBS", 100)
    run = deleting(table, "kind != 'k1'", jobs=False)
    monkeypatch.setattr(deleting_files, "MAX_FILES_PER_JOB", 3)
    with pytest.raises(JobFailed, match="those of its plan"):
        run.run_jobs()


# -- tables of every age, and of other engines -----------------------------------------------------------


def test_older_files_are_read_through_the_present_schema(tmp_path: Path) -> None:
    """A column that was added is NULL in them, a renamed one keeps its values, a type is widened."""
    columns = pa.schema([("id", pa.int32()), ("kind", pa.string())])
    table = table_of(tmp_path, columns)
    for number in range(2):
        ids = pa.array([2 * number, 2 * number + 1], pa.int32())
        table.append({"id": ids, "kind": ["a", "b"]}, columns)
    table.change_schema(lambda update: update.update_column("id", LongType()))
    table.change_schema(lambda update: update.rename_column("kind", "sort"))
    table.change_schema(lambda update: update.add_column("kind", StringType()))
    assert deleting(table, "kind = 'a'").finish()["removedRows"] == 0
    assert deleting(table, "kind != 'a'").finish()["removedRows"] == 0
    assert deleting(table, "sort = 'a' and kind is null and id < 1").finish()["removedRows"] == 1
    assert table.ids() == [1, 2, 3]
    assert deleting(table, "kind is null and id < 9999999999 and sort != 'a'").finish()["removedRows"] == 2
    assert table.ids() == [2]


def test_files_of_an_earlier_partitioning(tmp_path: Path) -> None:
    """They are dropped, read, and written anew in the present partitioning."""
    table = filled(tmp_path, 2, partition_by=())
    spec = PartitionSpec(*Layout.create(ROWS, ["kind"]).spec.fields, spec_id=1)
    assert spec.fields[0].transform == IdentityTransform()
    changes = (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1))
    table.replace(table.draft().write(*changes))
    table.layout = Layout.of(table.iceberg().metadata)
    table.publish(table.staged([rows(20, 10)]))
    facts = deleting(table, "id in (1, 2, 25)").finish()
    assert (facts["removedRows"], facts["removedFiles"]) == (3, 2)
    assert table.ids() == [n for n in range(30) if n not in (1, 2, 25)]
    specs = [task.file.spec_id for task in table.iceberg().scan().plan_files()]
    assert sorted(set(specs)) == [0, 1]
    assert deleting(table, "id >= 10").finish()["droppedFiles"] >= 3
    assert table.ids() == [0, *range(3, 10)]


def test_files_partitioned_by_a_column_that_was_dropped(tmp_path: Path) -> None:
    """P14: they are found by the types that an earlier schema tells."""
    table = filled(tmp_path, 2)
    drop_partitioning(table)
    table.publish(table.staged([rows(20, 10).select(["id"])]))
    facts = deleting(table, "id in (1, 2, 25)").finish()
    assert (facts["removedRows"], facts["removedFiles"]) == (3, 3)
    assert table.ids() == [n for n in range(30) if n not in (1, 2, 25)]
    assert deleting(table, "id >= 10 and id < 20").finish()["droppedFiles"] == 3
    assert table.ids() == [n for n in (*range(10), *range(20, 30)) if n not in (1, 2, 25)]


def test_rows_that_position_deletes_have_removed_do_not_come_back(tmp_path: Path) -> None:
    """P14: they are read through, and not counted again."""
    table = filled(tmp_path, 2, partition_by=())
    path = next(one for one in table.data_files() if pq.read_table(local(one))["id"][0].as_py() == 0)
    delete_positions(table, path, [0, 7])
    assert table.ids() == [n for n in range(20) if n not in (0, 7)]
    facts = deleting(table, "id in (5, 7)").finish()
    assert facts["removedRows"] == 1
    assert table.ids() == [n for n in range(20) if n not in (0, 5, 7)]
    facts = deleting(table, "id < 10").finish()
    assert facts["removedRows"] == 7
    assert table.ids() == list(range(10, 20))


def test_rows_that_were_deleted_from_a_partition_of_nan_do_not_come_back(tmp_path: Path) -> None:
    """NaN equals nothing, but there is one partition of it."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = table_of(tmp_path, schema, "x")
    table.append({"id": range(3), "x": [math.nan] * 3}, schema)
    [path] = table.data_files()
    delete_positions(table, path, [0], math.nan)
    snapshot = open_snapshot(table.record().metadata_location)
    read = snapshot.batches(snapshot.plan_files())
    assert [number for batch in read for number in batch["id"].to_pylist()] == [1, 2]
    assert deleting(table, "id = 1").finish()["removedRows"] == 1
    [path] = table.data_files()
    assert pq.read_table(local(path))["id"].to_pylist() == [2]


def test_rows_that_somebody_deletes_meanwhile_are_a_conflict(tmp_path: Path) -> None:
    """P6: the files are there, and what was written anew holds a row that is not."""
    table = filled(tmp_path, 2, partition_by=())
    path = next(one for one in table.data_files() if pq.read_table(local(one))["id"][0].as_py() == 0)
    run, whole = deleting(table, "id = 5"), deleting(table, "id >= 10")
    delete_positions(table, path, [7])
    with pytest.raises(HeadConflict, match="another program"):
        run.commit()
    assert whole.finish()["droppedFiles"] == 1
    assert table.ids() == [n for n in range(10) if n != 7]


def test_a_partition_stays_the_same_when_its_column_is_widened(tmp_path: Path) -> None:
    """P6: whether rows of its files were deleted meanwhile is seen as before."""
    columns = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    table = table_of(tmp_path, columns, "part")
    for part in (1, 2):
        parts = pa.array([part] * 3, pa.int32())
        ids = [10 * part, 10 * part + 1, 10 * part + 2]
        table.append({"id": ids, "part": parts}, columns)
    late, other = deleting(table, "id = 11"), deleting(table, "id = 21")
    table.change_schema(lambda update: update.update_column("part", LongType()))
    [path] = [task.file.file_path for task in table.iceberg().scan("part = 1").plan_files()]
    delete_positions(table, path, [0], 1)
    delete_positions(table, "elsewhere", [0], 1 << 40)
    with pytest.raises(HeadConflict, match="another program"):
        late.commit()
    assert other.finish()["removedRows"] == 1
    assert table.ids() == [11, 12, 20, 22]


def test_rows_that_equality_deletes_have_removed_do_not_come_back(tmp_path: Path) -> None:
    """P14, V5: of older files; and their statistics do not tell what other rows there are."""
    table = filled(tmp_path, 2, partition_by=())
    # Statistics of what it names: nothing that a predicate on other rows may be measured by.
    zero = {1: (0).to_bytes(8, "little")}
    told: dict[str, Any] = {
        "lower_bounds": zero,
        "upper_bounds": zero,
        "value_counts": {1: 1},
        "null_value_counts": {1: 0},
    }
    publish_deletes(table, equality_deletes(table.iceberg(), "id", [0, 7], None, **told))
    table.publish(table.staged([rows(0, 1)]))
    assert deleting(table, "id in (5, 7)").finish()["removedRows"] == 1
    assert deleting(table, "id in (0, 9)").finish()["removedRows"] == 2
    snapshot = open_snapshot(table.record().metadata_location)
    read = snapshot.batches(snapshot.plan_files())
    left = sorted(number for batch in read for number in batch["id"].to_pylist())
    assert left == [n for n in range(1, 20) if n not in (5, 7, 9)]


def test_equality_deletes_that_cannot_be_read_are_refused_where_they_may_count(tmp_path: Path) -> None:
    """P14, V5: before anything is done, and by their name; they count in older files of their partition."""
    table = filled(tmp_path, 2)
    files = [task.file for task in table.iceberg().scan().plan_files()]
    [one, other] = [next(file for file in files if file.partition[0] == kind) for kind in ("k0", "k1")]
    publish_deletes(table, equality_deletes(table.iceberg(), "id", [-1], one, key_metadata=b"k"))
    with pytest.raises(PreconditionFailed, match=r"deletes-.*\.parquet"):
        deleting(table, f"kind = '{one.partition[0]}'")
    gone = sum(file.record_count for file in files if file.partition == other.partition)
    assert deleting(table, f"kind = '{other.partition[0]}'").finish()["removedRows"] == gone


def test_a_branch_is_deleted_from_and_the_table_is_not(tmp_path: Path) -> None:
    """P12"""
    table = filled(tmp_path, 2)
    staged = table.staged([rows(100, 5)])
    staged.arg.argument["branch"] = "aside"
    table.publish(staged)
    facts = deleting(table, "id in (3, 102)", branch="aside").finish()
    assert (facts["removedRows"], facts["branch"]) == (2, "aside")
    assert table.ids() == list(range(20))
    found = table.iceberg().scan().use_ref("aside").to_arrow()["id"].to_pylist()
    assert sorted(found) == [n for n in [*range(20), *range(100, 105)] if n not in (3, 102)]


def test_the_plan_is_what_etcd_gives_back(tmp_path: Path) -> None:
    """O5: it does not grow with the files that are concerned."""
    table = filled(tmp_path, 12)
    few, many = deleting(table, "id = 1", jobs=False), deleting(table, "id != 1", jobs=False)
    sizes = [len(encode(run.staged.arg)) for run in (few, many)]
    assert abs(sizes[0] - sizes[1]) < 50
    assert decode(encode(many.staged.arg), OperationArg) == many.staged.arg


LONG = "x" * 5000
"""Parquet keeps no minimum and maximum of a row group with such a text."""
TEXTS = pa.schema([("id", pa.int64()), ("text", pa.string())])


def with_long_texts(folder: Path) -> Table:
    """One file of two row groups: 100 long texts, and 19,900 that are ``a``."""
    table = Table("texts", f"file://{folder}/texts", Layout.create(TEXTS, ()))
    operation = table.start()
    stem = staging_stem("0", "7-0")

    def path_for(suffix: str, within: str) -> str:
        return f"{staging_folder(operation.arg, within)}/{stem}{suffix}"

    with StagedWriter(table.layout, path_for, inline=True, row_group_bytes=100_000) as writer:
        for ids, text in ((range(100), LONG), (range(100, 20_000), "a")):
            rows = {"id": list(ids), "text": [text] * len(ids)}
            writer.write(pa.record_batch(rows, schema=TEXTS))
        operation.jobs["0"] = JobRecord(state="success", attempt="7-0", result=writer.finish())
    table.publish(operation)
    return table


def test_rows_whose_texts_have_no_statistics_stay_and_are_found(tmp_path: Path) -> None:
    """P3: pyiceberg takes the bounds of the other row groups for those of the file."""
    table = with_long_texts(tmp_path)
    assert table.iceberg().scan(row_filter="text > 'b'").to_arrow().num_rows == 100
    assert deleting(table, "text < 'b'").finish()["removedRows"] == 19_900
    assert table.ids() == list(range(100))


def test_bounds_of_another_program_remove_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: wrong ones, as pyiceberg writes them."""

    def statistics(footer: Any, plan: Any, ids: Any, nans: Any) -> dict[str, Any]:
        return data_file_statistics_from_parquet_metadata(footer, plan, ids).to_serialized_dict()

    monkeypatch.setattr(file_lists, "statistics_of", statistics)
    table = with_long_texts(tmp_path)
    deleting(table, "text < 'b'").finish()
    assert table.ids() == list(range(100))
