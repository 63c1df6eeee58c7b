"""Publishing the output of an operation as one snapshot, read back with pyiceberg."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IntegerType

from distop.errors import Conflict, CorruptRecord, HeadConflict, PreconditionFailed
from distop.lake.iceberg import takeover
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import Layout, file_io, load_metadata
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.metastore.etcd.txn import KeyValue, unchanged
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head
from support.refusals import refused
from support.tables.publishing import ROWS, Table, local, new_table, rows


def metadata_files(table: Table) -> set[str]:
    return {path.name for path in local(table.location).glob("metadata/*") if path.is_file()}


def metadata_of(table: Table) -> TableMetadata:
    return load_metadata(table.record().metadata_location)


# -- append ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 3, 12], ids=["one", "few, adopted", "many, joined"])
def test_two_appends_are_both_there_once(tmp_path: Path, jobs: int) -> None:
    """P1, P5, P14"""
    table = new_table(tmp_path, ["kind"])
    table.publish(table.staged(*([rows(10 * i, 10)] for i in range(jobs))))
    contribution = table.publish(table.staged(*([rows(1000 + 10 * i, 10)] for i in range(jobs))))
    assert table.ids() == [*range(10 * jobs), *range(1000, 1000 + 10 * jobs)]
    found = table.ids(row_filter="kind = 'k1' and id >= 1000")
    assert found == [i for i in range(1000, 1000 + 10 * jobs) if i % 3 == 1]
    assert contribution.facts["rows"] == 10 * jobs
    assert contribution.facts["snapshotId"] == str(table.record().snapshot_id)


def test_published_files_stay_where_jobs_wrote_them(table: Table, tmp_path: Path) -> None:
    """P1: no byte is copied, nothing is renamed."""
    operation = table.staged(*([rows(i, 1)] for i in range(6)))
    staged = operation.files()["data"]
    inodes = {path.name: path.stat().st_ino for path in Path(tmp_path).rglob("*.parquet")}
    table.publish(operation)
    assert {Path(path).name for path in table.data_files()} == staged
    assert {path.name: path.stat().st_ino for path in Path(tmp_path).rglob("*.parquet")} == inodes


def test_lists_in_the_records_of_jobs_become_one_manifest(tmp_path: Path) -> None:
    """P1, P4: a job of one file writes nothing else, and the commit reads no file."""
    table = new_table(tmp_path, ["kind"])
    operation = table.start(30)
    for job in range(29):
        operation.run(str(job), [rows(job * 10, 10, kinds=1)], inline=True)
    operation.run("29", [rows(290, 10, kinds=3)])
    assert operation.files()["metadata"] == {"29-7-29.avro"}
    table.publish(operation)
    assert table.ids() == list(range(300))
    listed = {manifest.added_files_count: manifest.added_rows_count for manifest in table.manifests()}
    assert listed == {3: 10, 29: 290}
    found = table.iceberg().scan(row_filter="kind == 'k2'").plan_files()
    assert sum(task.file.record_count for task in found) == 4


@pytest.mark.parametrize("change", [{"header": "00000000"}, {"entries": "0000000000"}])
def test_a_list_of_another_encoding_is_refused(table: Table, change: dict[str, str]) -> None:
    """C11: the record shows it; rows are not lost silently."""
    operation = table.start(1)
    operation.run("0", [rows(0, 10)], inline=True)
    operation.jobs["0"].result.update(change)
    with pytest.raises(CorruptRecord):
        table.publish(operation)
    assert not table.head.exists


def test_large_manifests_are_adopted_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: copying them would cost more than reading them."""
    table = new_table(tmp_path, ["id"])
    operation = table.staged([rows(0, 60)], *([rows(1000 + i, 1)] for i in range(9)))
    large, small = (operation.jobs[name].result["manifestLength"] for name in ("0", "1"))
    monkeypatch.setattr(takeover, "ADOPT_FROM_BYTES", (large + small) // 2)
    contribution = table.publish(operation)
    assert [manifest.added_files_count for manifest in table.manifests()] == [60, 9]
    assert contribution.facts["adoptedFrom"] == (large + small) // 2
    assert len(table.ids()) == 69


def test_joined_manifests_stay_below_the_target_size(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4"""
    monkeypatch.setattr(takeover, "JOINED_BYTES", 10_000)
    table.publish(table.staged(*([rows(i, 1)] for i in range(20))))
    assert 1 < len(table.manifests()) < 20
    assert table.ids() == list(range(20))


def test_a_snapshot_tells_who_made_it_and_what_it_holds(table: Table) -> None:
    """P11: operation, who, watermarks, and the counts that Iceberg readers expect."""
    table.publish(table.staged([rows(0, 4)]))
    operation = table.start(watermarks={"files": {"2013-02": WatermarkMove(after="done")}})
    operation.run("0", [rows(10, 5)])
    table.publish(operation)
    first, second = metadata_of(table).snapshots
    told = table.summary()
    assert told["distop.operation"] == "flights/ingest/2"
    assert told["distop.uuid"] == operation.arg.uuid
    assert told["distop.started-by"] == "ada"
    assert json.loads(told["distop.watermarks"]) == {"files": {"2013-02": "done"}}
    assert (told["added-data-files"], told["added-records"], told["total-records"]) == ("1", "5", "9")
    assert told["total-data-files"] == "2"
    assert second.summary is not None
    assert second.summary.operation.value == "append"
    assert (second.parent_snapshot_id, second.sequence_number) == (first.snapshot_id, 2)


def test_a_moved_head_is_built_upon(table: Table) -> None:
    """P6, P7, P8: the first attempt loses and is taken back, but for jobs' files; the second holds both."""
    table.publish(table.staged([rows(0, 3)]))
    mine, other = table.staged(*([rows(100 + i, 1)] for i in range(8))), table.staged([rows(50, 3)])
    lost, staged = IcebergAppend().prepare(table.context(mine)), mine.files()
    table.publish(other)
    assert not table.apply(lost.txn)
    before = metadata_files(table)
    lost.discard()
    lost.discard()
    assert len(before - metadata_files(table)) == 3  # metadata, manifest list, joined manifest
    assert mine.files() == staged
    table.publish(mine)
    assert table.ids() == [0, 1, 2, 50, 51, 52, *range(100, 108)]


def test_the_contribution_compares_the_head_it_was_built_on(table: Table) -> None:
    """P3: pointer, bookkeeping and watermarks are one transaction."""
    context = table.context(table.staged([rows(0, 1)]))
    contribution = IcebergAppend().prepare(context)
    assert contribution.txn.compares == (unchanged(context.head),)
    (put,) = contribution.txn.then
    head = decode(getattr(put, "value", b""), Head)
    assert head.operation == "flights/ingest/1"
    assert load_metadata(head.metadata_location).current_snapshot_id == head.snapshot_id


# -- nothing to write --------------------------------------------------------------------------------


def test_nothing_written_makes_no_snapshot(table: Table) -> None:
    """P10: success, and the head stays as it is."""
    table.publish(table.staged([rows(0, 3)]))
    before = metadata_files(table)
    contribution = table.publish(table.staged([rows(0, 0)], []))
    assert (contribution.txn.compares, contribution.txn.then) == ((), ())
    assert contribution.facts == {"rows": 0, "files": 0, "bytes": 0}
    assert metadata_files(table) == before


def test_the_first_operation_makes_the_table_even_without_rows(tmp_path: Path) -> None:
    """P10, P14: from then on it can be read."""
    table = new_table(tmp_path, ["kind"])
    table.publish(table.staged([]))
    assert table.record().snapshot_id is None
    assert table.ids() == []
    assert metadata_of(table).snapshots == []
    table.publish(table.staged([rows(0, 3)]))
    assert table.ids() == [0, 1, 2]


# -- overwrite ---------------------------------------------------------------------------------------


def test_overwrite_leaves_exactly_the_new_files(table: Table) -> None:
    """P5: ten files, then three, leave three; the former state can still be read."""
    table.publish(table.staged(*([rows(i, 1)] for i in range(6))))
    table.publish(table.staged(*([rows(10 + i, 1)] for i in range(4))))
    assert len(table.data_files()) == 10
    before = table.record().snapshot_id
    contribution = table.publish(table.staged(*([rows(100 + i, 2)] for i in range(3))), IcebergOverwrite())
    assert len(table.data_files()) == 3
    assert table.ids() == [100, 101, 101, 102, 102, 103]
    assert (contribution.facts["removedFiles"], contribution.facts["removedRows"]) == (10, 10)
    assert table.ids(snapshot_id=before) == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13]


def test_overwrite_records_what_it_removes(tmp_path: Path) -> None:
    """P5, P13, P14: expiry finds the files to delete by these entries."""
    table = new_table(tmp_path, ["kind"])
    table.publish(table.staged([rows(0, 9)]))
    table.publish(table.staged([rows(100, 1)]), IcebergOverwrite())
    deleted = [entry for entry in table.entries() if entry.status == ManifestEntryStatus.DELETED]
    made_by = table.record().snapshot_id
    assert [(entry.snapshot_id, entry.sequence_number) for entry in deleted] == [(made_by, 1)] * 3
    told = table.summary()
    assert (told["deleted-data-files"], told["deleted-records"]) == ("3", "9")
    assert (told["total-data-files"], told["total-records"]) == ("1", "1")


def test_overwriting_with_nothing_empties_the_table(table: Table) -> None:
    """P5, P10: and once it is empty there is nothing to do."""
    table.publish(table.staged([rows(0, 3)]))
    table.publish(table.staged([]), IcebergOverwrite())
    assert table.ids() == []
    head = table.head
    table.publish(table.staged([]), IcebergOverwrite())
    assert table.head == head


def test_an_unexpected_snapshot_refuses_an_overwrite(table: Table) -> None:
    """P5, P6: in the mode that refuses, the conflict names the snapshot and who made it."""
    table.publish(table.staged([rows(0, 3)]), IcebergAppend({"expectedSnapshotId": None}))
    expected = table.record().snapshot_id
    mine = table.staged([rows(10, 3)])
    table.publish(table.staged([rows(50, 3)]))
    for given in (expected, str(expected), None):
        with pytest.raises(HeadConflict) as caught:
            IcebergOverwrite({"expectedSnapshotId": given}).prepare(table.context(mine))
        assert caught.value.details["snapshot"] == str(table.record().snapshot_id)
        assert caught.value.details["by"] == "flights/ingest/3"
    with refused(error=HeadConflict, expected=""):
        IcebergAppend({"expectedSnapshotId": None}).prepare(table.context(mine))
    now = {"expectedSnapshotId": str(table.record().snapshot_id)}
    table.publish(mine, IcebergOverwrite(now))
    assert table.ids() == [10, 11, 12]


# -- what does not fit -------------------------------------------------------------------------------


def test_two_first_operations_that_disagree_conflict(table: Table) -> None:
    """P6: the table keeps the schema and the partitioning of the first."""
    table.publish(table.staged([rows(0, 3)]))
    for layout in (Layout.create(ROWS.append(pa.field("x", pa.int8()))), Layout.create(ROWS, ["kind"])):
        other = Table("flights", table.location, layout)
        other.head = table.head
        operation = other.start(0)
        with pytest.raises(Conflict, match=r"with (schema|partition spec) 0, which table 'flights'"):
            IcebergAppend().prepare(other.context(operation))


def test_files_of_an_earlier_schema_are_still_taken(table: Table) -> None:
    """P6: someone adds a column while the operation runs; Iceberg reads its files with nulls there."""
    table.publish(table.staged([rows(0, 2)]))
    operation = table.staged([rows(10, 2)])
    table.change_schema(lambda update: update.add_column("x", IntegerType()))
    table.publish(operation)
    assert table.ids() == [0, 1, 10, 11]
    assert table.iceberg().scan().to_arrow()["x"].null_count == 4


def test_a_table_of_another_format_is_refused(table: Table, tmp_path: Path) -> None:
    """U3"""
    metadata = table.layout.new_metadata(table.location)
    old = Draft(file_io(table.location), TableFile.of(metadata))
    raw = load_metadata(old.write()).model_dump()
    path = tmp_path / "v1.metadata.json"
    raw |= {"format-version": 1, "schema": raw["schemas"][0], "partition-spec": []}
    path.write_text(json.dumps(raw, default=str))
    table.head = KeyValue(table.keys.head, encode(Head(metadata_location=str(path))), 9, 9)
    with pytest.raises(PreconditionFailed, match="format 1"):
        IcebergAppend().prepare(table.context(table.staged([rows(0, 1)])))


def test_an_operation_is_never_published_twice(table: Table) -> None:
    """O17, P7: its snapshot's id is its own; finding it says that etcd has lost something."""
    operation = table.staged([rows(0, 3)])
    table.publish(operation)
    with pytest.raises(CorruptRecord, match="not published"):
        IcebergAppend().prepare(table.context(operation))


def test_a_missing_manifest_is_reported_and_leaves_nothing(table: Table, tmp_path: Path) -> None:
    """C6, P2"""
    operation = table.staged(*([rows(i, 1)] for i in range(8)))
    next(Path(tmp_path).rglob("metadata/ingest-*/*.avro")).unlink()
    with pytest.raises(CorruptRecord, match="is missing"):
        IcebergAppend().prepare(table.context(operation))
    assert metadata_files(table) == set()


def test_results_that_are_not_a_writers_are_reported(table: Table) -> None:
    """C11: rows without a manifest are not silently lost."""
    operation = table.staged([rows(0, 1)])
    operation.jobs["0"].result.pop("manifest")
    with pytest.raises(CorruptRecord, match="job 0 of flights/ingest/1"):
        IcebergAppend().prepare(table.context(operation))
    operation.arg.argument.pop("layout")
    with pytest.raises(CorruptRecord, match="no layout"):
        IcebergAppend().prepare(table.context(operation))
