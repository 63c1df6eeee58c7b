"""What a table's files tell that were published after the head that etcd has (P11, O27)."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate

from distop.lake.iceberg import provenance
from distop.lake.iceberg.ahead import Ahead, Unclear, find_ahead
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import file_io, load_metadata
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.operation import RequestNote, WatermarkMove
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head
from support.tables.publishing import Staged, Table, local, new_table, rows


def head_of(kv: KeyValue) -> Head:
    return decode(kv.value, Head, kv.key)


def ahead_of(table: Table, kv: KeyValue, uuid: str = "", **options: Any) -> Ahead:
    """What the table is ahead of a head that it had."""
    head = head_of(kv)
    found = find_ahead(table.location, uuid, head.metadata_location, head.snapshot_id, **options)
    assert found is not None
    return found


def operation(table: Table, start: int, before: str | None, after: str, **fields: Any) -> Staged:
    """One that has staged ten rows, and moves a watermark."""
    staged = table.start(watermarks={"files": {"p": WatermarkMove(before=before, after=after)}})
    staged.arg = msgspec.structs.replace(staged.arg, **fields)
    staged.run("0", [rows(start, 10)])
    return staged


def written(table: Table, *updates: Any) -> None:
    """A metadata file with other changes, published."""
    head = table.record()
    metadata = load_metadata(head.metadata_location)
    draft = Draft(file_io(table.location), TableFile.of(metadata, head.metadata_location))
    location = draft.write(*updates)
    table.replace(location, load_metadata(location).current_snapshot_id)


@pytest.fixture
def backup(table: Table) -> KeyValue:
    """The table's head after the first of its operations."""
    table.publish(operation(table, 0, None, "1"))
    return table.head


def test_a_head_that_is_named_otherwise_is_followed(table: Table) -> None:
    """Such as one of Hadoop's catalog that was registered: its successors are counted from zero."""
    table.publish(operation(table, 0, None, "1"))
    named = local(table.record().metadata_location)
    table.replace(f"file://{named.rename(named.with_name('v12.metadata.json'))}")
    backed_up = table.head
    for start in (10, 20):
        table.publish(operation(table, start, str(start // 10), str(start // 10 + 1)))
    found = ahead_of(table, backed_up, str(table.iceberg().metadata.table_uuid))
    assert found.location == table.record().metadata_location
    assert [one.rows for one in found.publications] == [10, 10]


def test_snapshots_published_since_the_backup_are_listed_in_order(table: Table, backup: KeyValue) -> None:
    note = RequestNote(digest="d", call="c", forget_at=9.0)
    table.publish(operation(table, 10, "1", "2", run="r", request_note=note))
    table.publish(operation(table, 20, "2", "3", batches=["a", "b"]))
    called = RequestNote(call="x")
    table.publish(operation(table, 30, "3", "4", unordered="u", run="x", request_note=called))
    ahead = ahead_of(table, backup)
    assert ahead.location == table.record().metadata_location
    assert ahead.snapshot_id == table.record().snapshot_id
    assert (ahead.watermarks, ahead.doubts) == ({"files": {"p": "4"}}, ())
    asked, batched, alone = ahead.publications
    assert asked.request == provenance.Request(id="r", digest="d", call="c", forget_at=9.0)
    assert (asked.operation, asked.rows, asked.started_by) == ("flights/ingest/2", 10, "ada")
    assert (batched.batches, batched.request) == (("a", "b"), None)
    assert (alone.unordered, alone.request) == ("u", None)


def test_a_head_that_is_the_newest_is_ahead_of_nothing(table: Table, backup: KeyValue) -> None:
    head = head_of(backup)
    assert find_ahead(table.location, "", head.metadata_location, head.snapshot_id) is None


def test_metadata_that_lost_its_race_counts_as_not_published(table: Table, backup: KeyValue) -> None:
    """Its leader was killed before it could remove the file."""
    lost = operation(table, 1000, "1", "lost")
    IcebergAppend().prepare(table.context(lost))
    table.publish(operation(table, 10, "1", "2"))
    table.publish(operation(table, 20, "2", "3"))
    ahead = ahead_of(table, backup)
    assert ahead.location == table.record().metadata_location
    assert lost.arg.uuid not in {one.uuid for one in ahead.publications}


def test_a_person_decides_which_of_two_last_snapshots_was_published(table: Table, backup: KeyValue) -> None:
    IcebergAppend().prepare(table.context(operation(table, 1000, "1", "lost")))
    table.publish(operation(table, 10, "1", "2"))
    with pytest.raises(Unclear, match="unclear"):
        ahead_of(table, backup)
    named = table.record().metadata_location.rpartition("/")[2]
    ahead = ahead_of(table, backup, choose=[named])
    assert ahead.watermarks == {"files": {"p": "2"}}


def test_two_attempts_at_one_publication_are_the_same(table: Table, backup: KeyValue) -> None:
    """A leader dies when it has written the file; the next one writes another one."""
    twice = operation(table, 10, "1", "2")
    IcebergAppend().prepare(table.context(twice))
    table.publish(twice)
    ahead = ahead_of(table, backup)
    assert [one.uuid for one in ahead.publications] == [twice.arg.uuid]


def test_snapshots_that_expired_since_are_found_in_earlier_metadata(table: Table, backup: KeyValue) -> None:
    table.publish(operation(table, 10, "1", "2"))
    between = table.record()
    table.publish(operation(table, 20, "2", "3"))
    old = [head_of(backup).snapshot_id, between.snapshot_id]
    written(table, RemoveSnapshotsUpdate(**{"snapshot-ids": old}))
    ahead = ahead_of(table, backup)
    assert (len(ahead.publications), ahead.doubts) == (2, ())
    uuid = str(load_metadata(ahead.location).table_uuid)
    for path in local(table.location).glob("metadata/*.metadata.json"):
        if not table.record().metadata_location.endswith(path.name):
            path.unlink()
    ahead = ahead_of(table, backup, uuid)
    assert "expired" in ahead.doubts[0]


def test_a_rollback_leaves_it_open_where_watermarks_stood(table: Table) -> None:
    table.publish(operation(table, 0, None, "1"))
    first = table.record().snapshot_id
    table.publish(operation(table, 10, "1", "2"))
    backup = table.head
    branch = {"ref-name": "main", "type": "branch", "snapshot-id": first}
    written(table, SetSnapshotRefUpdate(**branch))
    ahead = ahead_of(table, backup)
    assert ahead.snapshot_id == first
    assert "rolled back" in ahead.doubts[0]


def test_watermarks_that_were_too_many_for_a_summary_are_not_known(
    table: Table, backup: KeyValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_SUMMARY_WATERMARKS_BYTES", 10)
    table.publish(operation(table, 10, "1", "2"))
    ahead = ahead_of(table, backup)
    assert "does not say which watermarks" in ahead.doubts[0]


def test_counts_of_another_program_may_be_no_numbers(table: Table, backup: KeyValue) -> None:
    table.publish(operation(table, 10, "1", "2"))
    file = local(table.record().metadata_location)
    file.write_text(file.read_text().replace('"added-records":"10"', '"added-records":"ten"'))
    ahead = ahead_of(table, backup)
    assert ([one.rows for one in ahead.publications], ahead.watermarks) == ([0], {"files": {"p": "2"}})


def test_a_table_that_was_registered_anew_is_told_from_its_first_snapshot_on(table: Table) -> None:
    table.publish(operation(table, 0, None, "1"))
    table.publish(operation(table, 10, "1", "2"))
    ahead = ahead_of(table, table.head, anew=True)
    assert (len(ahead.publications), ahead.watermarks) == (2, {"files": {"p": "2"}})


def test_files_gone_or_of_another_table_are_not_taken(table: Table, backup: KeyValue, tmp_path: Path) -> None:
    """Dropped after the backup; and perhaps made anew there."""
    shutil.rmtree(local(table.location))
    with pytest.raises(Unclear, match="is gone"):
        ahead_of(table, backup)
    anew = new_table(tmp_path)
    for start in range(2):
        anew.publish(operation(anew, 10 * start, None if not start else "1", str(start + 1)))
    with pytest.raises(Unclear, match="another table's"):
        ahead_of(table, backup)
