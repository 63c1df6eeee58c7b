"""Places in a table's history: what a streaming query has read, and what it reads next."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyspark.sql.types import StructType

from distop.errors import Conflict, PreconditionFailed
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import load_metadata
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.spark.source import ALL, History, Offset, SnapshotStreamReader
from distop.spark.target import read_options
from support.tables.formats import in_format
from support.tables.publishing import Table, local, new_table, rows


def history(table: Table, *, ignore_overwrites: bool = False) -> History:
    metadata = load_metadata(table.record().metadata_location)
    return History(metadata, {}, ignore_overwrites=ignore_overwrites)


def appended(table: Table, start: int, jobs: int) -> int:
    """Append a file of two rows for each job; the snapshot."""
    table.publish(table.staged(*([rows(start + 2 * job, 2)] for job in range(jobs))))
    snapshot = table.record().snapshot_id
    assert snapshot is not None
    return snapshot


def expire(table: Table, *snapshots: int) -> None:
    """Expire snapshots as pyiceberg does: those that follow them have no parent then."""
    file = TableFile.of(table.iceberg().metadata, table.record().metadata_location)
    expiry: dict[str, Any] = {"snapshot-ids": list(snapshots)}
    table.replace(Draft(table.iceberg().io, file).write(RemoveSnapshotsUpdate(**expiry)))


def test_batches_are_bounded_and_lose_and_double_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    first = appended(table, 0, 5)
    appended(table, 10, 1)
    last = appended(table, 20, 4)
    known, start = history(table), Offset(snapshot=first, files=0, whole=True)
    place, found, sizes = start, [], []
    while (then := known.advance(place, last, 3)) != place:
        batch = [file.path for file in known.range(place, then)]
        assert batch == [file.path for file in history(table).range(place, then)], "the same when asked again"
        found += batch
        sizes.append(len(batch))
        place = Offset.from_json(then.to_json())
    assert sizes == [3, 3, 3, 1]
    assert sorted(found) == table.data_files()
    assert place == Offset(snapshot=last)
    assert [file.path for file in known.range(start, place)] == found


@pytest.mark.parametrize(("option", "value"), [("snapshotId", "1"), ("asOf", "2026-01-01"), ("branch", "b")])
def test_what_a_stream_cannot_read_is_refused_and_not_the_table_read_instead(option: str, value: str) -> None:
    """P12: rows of the table are none of a branch."""
    with pytest.raises(PreconditionFailed) as refused:
        SnapshotStreamReader(read_options({"table": "t", option: value}), StructType())
    assert refused.value.details == {"field": option}


def test_a_query_may_begin_with_nothing_or_after_a_snapshot(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    first = appended(table, 0, 2)
    before = set(table.data_files())
    last = appended(table, 10, 2)
    known = history(table)
    end = known.advance(Offset(), last, None)
    assert len(list(known.range(Offset(), end))) == 4
    after = {file.path for file in known.range(Offset(snapshot=first), end)}
    assert after == set(table.data_files()) - before
    assert known.advance(end, last, None) == end


def test_a_snapshot_that_removes_rows_is_refused_or_passed_over(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    first = appended(table, 0, 1)
    table.publish(table.staged([rows(50, 2)]), IcebergOverwrite())
    last = appended(table, 100, 1)
    with pytest.raises(Conflict, match="ignoreOverwrites"):
        history(table).advance(Offset(snapshot=first), last, None)
    tolerant = history(table, ignore_overwrites=True)
    end = tolerant.advance(Offset(snapshot=first), last, 1)
    assert end.files in (1, ALL)
    assert sum(file.rows for file in tolerant.range(Offset(snapshot=first), end)) == 2


def test_a_past_that_was_rolled_back_or_has_expired_is_said(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    appended(table, 0, 1)
    known = history(table)
    for start in (Offset(snapshot=7), Offset(snapshot=7, files=0)):
        with pytest.raises(PreconditionFailed, match="rolled back, or"):
            known.advance(start, table.record().snapshot_id, None)


def test_snapshots_that_expired_before_a_query_that_began_with_nothing_read_them_are_said(
    tmp_path: Path,
) -> None:
    """Expiry takes the parent from the oldest snapshot that it leaves: it looks like the first one."""
    table = new_table(tmp_path)
    first, last = appended(table, 0, 1), appended(table, 10, 1)
    assert len(list(history(table).range(Offset(), Offset(snapshot=last)))) == 2
    expire(table, first)
    for end in (Offset(snapshot=last), Offset(snapshot=last, files=0)):
        with pytest.raises(PreconditionFailed, match="since no snapshot"):
            list(history(table).range(Offset(), end))
    with pytest.raises(PreconditionFailed, match="since no snapshot"):
        history(table).advance(Offset(), last, None)
    assert history(table).advance(Offset(snapshot=last), last, None) == Offset(snapshot=last)


def test_a_first_snapshot_is_the_first_if_others_were_only_on_a_branch(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    ahead = table.staged([rows(100, 1)])
    ahead.arg.argument["branch"] = "b"
    table.publish(ahead)
    last = appended(table, 0, 1)
    assert len(list(history(table).range(Offset(), Offset(snapshot=last)))) == 1


def test_the_first_snapshot_of_a_table_of_format_1_is_known_by_its_earliest_metadata(tmp_path: Path) -> None:
    """Its snapshots have no sequence numbers; the promise is the same."""
    table = new_table(tmp_path)
    first = appended(table, 0, 1)
    table.publish(table.staged([rows(50, 2)]), IcebergOverwrite())
    last = appended(table, 10, 1)
    whole, end = table.apart(), Offset(snapshot=last)
    whole.replace(in_format(1, table.record().metadata_location))
    assert whole.iceberg().metadata.format_version == 1
    known = history(whole, ignore_overwrites=True)
    assert sum(file.rows for file in known.range(Offset(), end)) == 4
    assert known.advance(Offset(), last, None) == end
    with pytest.raises(Conflict, match="ignoreOverwrites"):
        list(history(whole).range(Offset(), end))
    present = table.snapshot().parent_snapshot_id
    assert present is not None
    expire(table, first, present)
    table.replace(in_format(1, table.record().metadata_location))
    with pytest.raises(PreconditionFailed, match="since no snapshot"):
        history(table).advance(Offset(), last, None)
    assert history(table).advance(end, last, None) == end


@pytest.mark.parametrize("gone", ["the file", "the entry"])
def test_a_table_of_format_1_whose_earliest_metadata_is_gone_has_no_proof(tmp_path: Path, gone: str) -> None:
    table = new_table(tmp_path)
    appended(table, 0, 1)
    last = appended(table, 10, 1)
    location = in_format(1, table.record().metadata_location)
    raw = json.loads(local(location).read_text())
    if gone == "the file":
        local(raw["metadata-log"][0]["metadata-file"]).unlink()
    else:
        kept = local(location).with_name("kept.metadata.json")
        kept.write_text(json.dumps(raw))
        entry = {"timestamp-ms": raw["last-updated-ms"], "metadata-file": f"file://{kept}"}
        local(location).write_text(json.dumps(raw | {"metadata-log": [entry]}))
    table.replace(location)
    with pytest.raises(PreconditionFailed, match="since no snapshot"):
        history(table).advance(Offset(), last, None)


def test_snapshots_that_expired_before_a_table_was_upgraded_are_said(tmp_path: Path) -> None:
    """The numbers of its snapshots begin with 1 then, as those of a new table."""
    table = new_table(tmp_path)
    first = appended(table, 0, 1)
    table.replace(in_format(2, table.record().metadata_location))
    last = appended(table, 10, 1)
    assert table.snapshot().sequence_number == 1
    assert len(list(history(table).range(Offset(), Offset(snapshot=last)))) == 2
    expire(table, first)
    with pytest.raises(PreconditionFailed, match="since no snapshot"):
        history(table).advance(Offset(), last, None)
