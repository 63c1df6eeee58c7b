"""Rolling back, expiring snapshots, removing orphans: what goes, and above all what stays."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import SetPropertiesUpdate

from distop.errors import HeadConflict, InvalidArgument, LocationNotOwned, PreconditionFailed
from distop.lake.cleanup.inspection import view_table
from distop.lake.cleanup.orphans import find_orphans
from distop.lake.cleanup.purge import check_removal
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.provenance import WATERMARKS, WATERMARKS_BEFORE
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.lake.layout.model import load_metadata
from distop.lake.layout.staging import give_folder_up, owner_file
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.table import TableRecord, decode_watermarks
from distop.operations.api import PlanRequest, make_plan
from distop.operations.registry import Registry
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots, RemoveOrphans, Rollback
from support.refusals import refused
from support.tables.maintaining import TABLE_UUID, Run
from support.tables.publishing import Table, local, new_table, rows
from support.tables.trees import age, names_in


def names(table: Table) -> set[str]:
    return set(names_in(local(table.location)))


def begun(folder: Path) -> tuple[Table, str]:
    """A table with one row, and its snapshot."""
    table = new_table(folder)
    table.publish(table.staged([rows(0, 1)]))
    return table, str(table.record().snapshot_id)


def overwritten(folder: Path, times: int) -> Table:
    """A table with so many snapshots, each of the one row of its number."""
    table = new_table(folder)
    for number in range(times):
        table.publish(table.staged([rows(number, 1)]), IcebergOverwrite())
    return table


# -- rollback ----------------------------------------------------------------------------------------


def moving(table: Table, first: int, before: str | None, after: str) -> None:
    """Append two rows and move a watermark."""
    moves = {"s": {"p": WatermarkMove(before=before, after=after)}}
    operation = table.start(watermarks=moves)
    operation.run("0", [rows(first, 2)])
    table.publish(operation)
    table.publish(operation, WatermarkStep())


def test_a_rollback_takes_rows_and_watermarks_back(tmp_path: Path) -> None:
    """P11: in one transaction; what was undone can be ingested again, and still be read by its snapshot.

    A watermark that did not stand before is gone.
    """
    table, empty = begun(tmp_path)
    moving(table, 1, None, "1")
    first = table.record().snapshot_id
    moving(table, 10, "1", "2")
    moving(table, 20, "2", "3")
    last = table.record().snapshot_id
    facts = Run.of(table, Rollback(), snapshot=str(first)).finish()
    assert table.ids() == [0, 1, 2]
    assert decode_watermarks(table.watermarks.value) == {"s": {"p": "1"}}
    assert facts == {"snapshotId": str(first), "rolledBackFrom": str(last)}
    assert len(table.iceberg().scan(snapshot_id=last).to_arrow()) == 7
    moving(table, 30, "1", "2")
    assert table.ids() == [0, 1, 2, 30, 31]
    assert table.iceberg().metadata.snapshots[-1].parent_snapshot_id == first
    Run.of(table, Rollback(), snapshot=empty).finish()
    assert decode_watermarks(table.watermarks.value) == {}


def test_a_rollback_may_keep_the_watermarks_and_go_forward_again(tmp_path: Path) -> None:
    """P11: forward again, the watermarks are those of the rows, too, whatever was ingested in between."""
    table = new_table(tmp_path)
    moving(table, 0, None, "1")
    first = str(table.record().snapshot_id)
    moving(table, 10, "1", "2")
    moving(table, 20, "2", "3")
    last = str(table.record().snapshot_id)
    Run.of(table, Rollback(), snapshot=first, watermarks="keep").finish()
    assert decode_watermarks(table.watermarks.value) == {"s": {"p": "3"}}
    Run.of(table, Rollback(), snapshot=last).finish()
    assert decode_watermarks(table.watermarks.value) == {"s": {"p": "3"}}
    Run.of(table, Rollback(), snapshot=first).finish()
    moving(table, 10, "1", "7")
    Run.of(table, Rollback(), snapshot=last).finish()
    assert decode_watermarks(table.watermarks.value) == {"s": {"p": "3"}}
    assert table.ids() == [0, 1, 10, 11, 20, 21]


def test_a_rollback_by_time_finds_what_was_present_then(tmp_path: Path) -> None:
    """P11"""
    table = new_table(tmp_path)
    moments = []
    for i in range(3):
        operation = table.staged([rows(10 * i, 1)])
        context = table.context(operation)
        clock = type(context)(**{**vars(context), "now": lambda i=i: 4e9 + 1000 * i})
        assert table.apply(IcebergAppend().prepare(clock).txn)
        moments.append(table.record().snapshot_id)
    run = Run.of(table, Rollback(), as_of="2096-10-02T07:24:00Z")  # 4e9 + 1040 s
    run.finish()
    assert table.record().snapshot_id == moments[1]
    with pytest.raises(PreconditionFailed, match="of that time"):
        Run.of(table, Rollback(), as_of="1999-01-01")


def test_times_in_the_metadata_do_not_go_back_where_clocks_do(tmp_path: Path) -> None:
    """P14, O27: Iceberg's Java library would not read the table."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 1)]))
    first = table.record().snapshot_id
    context = table.context(table.staged([rows(1, 1)]))
    ahead = type(context)(**{**vars(context), "now": lambda: 4e9})
    assert table.apply(IcebergAppend().prepare(ahead).txn)
    file = TableFile.read(table.record().metadata_location)
    changed = file.successor([SetPropertiesUpdate(updates={"user.note": "x"})])
    assert json.loads(changed.content)["last-updated-ms"] == 4_000_000_000_000
    Run.of(table, Rollback(), snapshot=str(first)).finish()
    metadata = table.iceberg().metadata
    log = [entry.timestamp_ms for entry in metadata.snapshot_log]
    assert (log, metadata.current_snapshot_id) == (sorted(log), first)
    assert len(log) == 3
    assert metadata.last_updated_ms >= log[-1]
    table.publish(table.staged([rows(2, 1)]))
    assert table.snapshot().timestamp_ms >= log[-1]


@pytest.mark.parametrize("slim", [True, False])
def test_times_that_went_back_are_put_in_order_by_the_next_commit(tmp_path: Path, slim: bool) -> None:
    """V5: a table that another program's clock has spoiled is read again by Iceberg's Java library."""
    table = overwritten(tmp_path, 3)
    path = local(table.record().metadata_location)
    written = json.loads(path.read_text())
    hour = 3_600_000
    written["snapshot-log"][1]["timestamp-ms"] += 2 * hour
    written["metadata-log"][0]["timestamp-ms"] += hour
    spoiled = path.with_name("00009-spoiled.metadata.json")
    spoiled.write_text(json.dumps(written))
    table.replace(f"file://{spoiled}")
    location = table.record().metadata_location
    assert view_table(location, deep=False).goes_back
    file = TableFile.read(location) if slim else TableFile.of(load_metadata(location), location)
    told = json.loads(file.successor([SetPropertiesUpdate(updates={"user.note": "x"})]).content)
    for log in (told["snapshot-log"], told["metadata-log"]):
        times = [entry["timestamp-ms"] for entry in log]
        assert times == sorted(times)
        assert told["last-updated-ms"] >= times[-1]
    assert len(told["snapshot-log"]) == 3
    repaired = path.with_name("00010-repaired.metadata.json")
    repaired.write_text(json.dumps(told))
    assert not view_table(f"file://{repaired}", deep=False).goes_back


def test_a_rollback_refuses_to_undo_snapshots_written_meanwhile(tmp_path: Path) -> None:
    """P6"""
    table, first = begun(tmp_path)
    table.publish(table.staged([rows(1, 1)]))
    run = Run.of(table, Rollback(), snapshot=first)
    table.publish(table.staged([rows(2, 1)]))
    with pytest.raises(HeadConflict):
        run.commit()
    assert table.ids() == [0, 1, 2]


def test_an_unknown_snapshot_is_refused_at_the_start(tmp_path: Path) -> None:
    """P11, U3"""
    table = new_table(tmp_path)
    with pytest.raises(PreconditionFailed, match="nothing has been published"):
        Run.of(table, Rollback(), snapshot="5")
    table.publish(table.staged([rows(0, 1)]))
    with pytest.raises(PreconditionFailed, match="no snapshot 5"):
        Run.of(table, Rollback(), snapshot="5")
    wrong: list[dict[str, Any]] = [
        {},
        {"snapshot": "5", "as_of": "2024-01-01"},
        {"snapshot": "x"},
        {"as_of": "yesterday"},
    ]
    for argument in wrong:
        with pytest.raises(InvalidArgument):
            Run.of(table, Rollback(), **argument)


def test_a_snapshot_that_does_not_say_where_watermarks_stood_is_refused(tmp_path: Path) -> None:
    """P11, P16: guessing would lose or double rows."""
    table, first = begun(tmp_path)
    many = {"kafka": {f"partition-{n}": WatermarkMove(after="1" * 20) for n in range(2000)}}
    operation = table.start(watermarks=many)
    operation.run("0", [rows(1, 1)])
    table.publish(operation)
    summary = table.iceberg().metadata.snapshots[-1].summary
    assert summary is not None
    assert WATERMARKS_BEFORE not in summary.additional_properties
    assert summary.additional_properties[WATERMARKS] == '{"kafka":"2000 partitions"}'
    with refused("watermarks", error=PreconditionFailed):
        Run.of(table, Rollback(), snapshot=first).commit()


@pytest.mark.parametrize("told", ["?", "[]", '{"files": "2 partitions"}', '{"files": {"p": 1}}'])
def test_watermarks_of_another_program_that_make_no_sense_refuse_a_rollback(
    tmp_path: Path, told: str
) -> None:
    """P11, U3: that is a reason to refuse, and none to try again."""
    table, first = begun(tmp_path)
    foreign(table, {WATERMARKS: told, WATERMARKS_BEFORE: "{}"})
    with refused(error=PreconditionFailed, match="watermarks", snapshot=4711):
        Run.of(table, Rollback(), snapshot=first).commit()
    Run.of(table, Rollback(), snapshot=first, watermarks="keep").commit()


def foreign(table: Table, told: dict[str, str]) -> None:
    """A snapshot of another program."""
    draft, summary = table.draft(), Summary(operation=Operation.APPEND, **told)
    table.replace(draft.add_snapshot(4711, table.manifests(), summary, now=0.0), 4711)


# -- expiry ------------------------------------------------------------------------------------------


def test_expiry_removes_what_only_expired_snapshots_refer_to(tmp_path: Path) -> None:
    """P13: after an overwrite the files of the past go, those of the present stay."""
    table = new_table(tmp_path)
    for i in range(3):
        table.publish(table.staged([rows(i, 1)]))
    table.publish(table.staged([rows(100, 1)], [rows(200, 1)]), IcebergOverwrite())
    table.publish(table.staged([rows(300, 1)]))
    kept = {local(path) for path in table.data_files()}
    facts = Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    assert facts["expiredSnapshots"] == 4
    assert table.ids() == [100, 200, 300]
    assert set(local(table.location).rglob("*.parquet")) == kept
    assert len(table.iceberg().metadata.snapshots) == 1
    known = {Path(manifest.manifest_path).name for manifest in table.manifests()}
    known.add(Path(table.snapshot().manifest_list).name)
    assert {path.name for path in local(table.location).rglob("*.avro")} == known
    table.publish(table.staged([rows(400, 1)]))
    assert table.ids() == [100, 200, 300, 400]


def test_statistics_of_expired_snapshots_go_with_them(tmp_path: Path) -> None:
    """P13: as other programs make them, of columns and of partitions: their entries and their files."""
    table = new_table(tmp_path)
    for i in range(2):
        table.publish(table.staged([rows(i, 1)]))
    location = local(table.record().metadata_location)
    told = json.loads(location.read_text())
    named: dict[str, list[str]] = {"statistics": [], "partition-statistics": []}
    for kind, paths in named.items():
        for number, snapshot in enumerate(told["snapshots"]):
            path = local(table.location) / "metadata" / f"{kind}-{number}.stats"
            path.write_bytes(b"x")
            paths.append(f"file://{path}")
            entry = {"snapshot-id": snapshot["snapshot-id"], "statistics-path": paths[-1]}
            more = {"file-footer-size-in-bytes": 1, "blob-metadata": []} if kind == "statistics" else {}
            told[kind].append({**entry, "file-size-in-bytes": 1, **more})
    location.write_text(json.dumps(told))
    assert Run.of(table, ExpireSnapshots(), older_than="0s").finish()["expiredSnapshots"] == 1
    left = table.iceberg().metadata
    assert [each.statistics_path for each in left.statistics] == named["statistics"][1:]
    assert [each.statistics_path for each in left.partition_statistics] == named["partition-statistics"][1:]
    gone = [path for paths in named.values() for path in paths if not local(path).exists()]
    assert gone == [paths[0] for paths in named.values()]


def test_nothing_goes_before_the_commit_is_certain(tmp_path: Path) -> None:
    """P13, P8: prepared and lost, prepared again and done; removing twice, and half-way."""
    table = overwritten(tmp_path, 4)
    expired = table.iceberg().metadata.snapshots[0]
    run = Run.of(table, ExpireSnapshots(), older_than="0s")
    before = names(table)
    lost = run.step().prepare(table.context(run.staged))
    lost.discard()
    assert names(table) == before
    facts = run.commit().facts
    assert before <= names(table)
    # Someone appends between the commit and the removal, and someone else dies in the middle of it.
    table.publish(table.staged([rows(10, 1)]))
    local(expired.manifest_list).unlink()
    run.sweep(facts)
    left = names(table)
    run.sweep(facts)
    assert names(table) == left
    assert table.ids() == [3, 10]


@pytest.mark.parametrize(
    ("ref", "settings", "left"),
    [
        ("v1", {"type": "tag"}, [1, 4, 5]),
        ("main", {"min-snapshots-to-keep": 3}, [3, 4, 5]),
        ("main", {"max-snapshot-age-ms": 86_400_000}, [0, 1, 2, 3, 4, 5]),
        ("main", {"max-snapshot-age-ms": 1, "min-snapshots-to-keep": 1}, [4, 5]),
    ],
)
def test_the_newest_snapshots_stay_with_those_that_tags_and_branches_keep(
    tmp_path: Path, ref: str, settings: dict[str, Any], left: list[int]
) -> None:
    """P13, P14: settings of Iceberg's specification, as another program writes them."""
    table = overwritten(tmp_path, 6)
    snapshots = [snapshot.snapshot_id for snapshot in table.iceberg().metadata.snapshots]
    location = local(table.record().metadata_location)
    told = json.loads(location.read_text())
    told["refs"][ref] = {"snapshot-id": snapshots[1], **told["refs"].get(ref, {}), **settings}
    location.write_text(json.dumps(told))
    Run.of(table, ExpireSnapshots(), older_than="0s", keep_last=2).finish()
    kept = [snapshot.snapshot_id for snapshot in table.iceberg().metadata.snapshots]
    assert kept == [snapshots[number] for number in left]
    for number in left:
        assert table.ids(snapshot_id=snapshots[number]) == [number]


def test_young_snapshots_stay_and_there_is_no_commit(tmp_path: Path) -> None:
    """P13, P10"""
    table = new_table(tmp_path)
    for i in range(3):
        table.publish(table.staged([rows(i, 1)]))
    head = table.head
    assert Run.of(table, ExpireSnapshots()).finish() == {"expiredSnapshots": 0}
    assert table.head == head
    assert Run.of(new_table(tmp_path / "new"), ExpireSnapshots()).finish() == {"expiredSnapshots": 0}
    with pytest.raises(InvalidArgument):
        Run.of(table, ExpireSnapshots(), keep_last=0)


def test_an_operation_that_runs_meanwhile_is_not_touched(tmp_path: Path) -> None:
    """P13: what it has staged is in no snapshot, and its overwrite still knows what it replaces."""
    table = overwritten(tmp_path, 3)
    expected = {"expectedSnapshotId": str(table.record().snapshot_id)}
    running = table.staged([rows(50, 1)])
    Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    table.publish(running, IcebergOverwrite(expected))
    assert table.ids() == [50]


# -- orphans -----------------------------------------------------------------------------------------


def littered(tmp_path: Path) -> tuple[Table, set[str]]:
    """A table with a history, and leftovers of dead processes."""
    table = new_table(tmp_path, ["kind"])
    for i in range(5):
        table.publish(table.staged([rows(i, 2)], [rows(100 + i, 2)]))
    table.publish(table.staged([rows(500, 3)]), IcebergOverwrite())
    before = names(table)
    dead = table.staged([rows(900, 3)], [rows(901, 3)])  # its keys are gone, it was never published
    IcebergAppend().prepare(table.context(dead))  # and a coordinator was killed behind its metadata
    root = local(table.location)
    (root / "data" / "part-0.parquet").write_text("of a foreign program")
    (root / "data" / "kind=a b").mkdir()
    (root / "data" / "kind=a b" / "日本 #1.parquet").write_text("of a foreign program")
    litter = names(table) - before
    age(local(table.location))
    (root / "README").write_text("not in a folder of distop's")
    return table, litter


def test_orphans_go_and_nothing_else(tmp_path: Path) -> None:
    """P13: every snapshot of the past can still be read; files that are young or elsewhere stay.

    Without asking one is told what would go.
    """
    table, litter = littered(tmp_path)
    young = local(table.location) / "data" / "young.parquet"
    young.write_text("a program is about to commit this")
    before, head = names(table), table.head
    facts = Run.of(table, RemoveOrphans(), older_than="1d").finish()
    assert (facts["orphans"], facts["dryRun"]) == (len(litter), True)
    assert (names(table), table.head) == (before, head)
    facts = Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False).finish()
    assert before - names(table) == litter
    assert facts["orphans"] == len(litter)
    assert set(facts["examples"]) <= litter
    for snapshot in table.iceberg().metadata.snapshots:
        table.iceberg().scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    assert table.ids() == [500, 501, 502]
    assert Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False).finish()["orphans"] == 0


def test_a_text_that_is_no_age_is_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for older_than in ("²d", "1²d", "٣d", ".d", "-3d", "1e5d", "d", "3", ""):
        for operation in (ExpireSnapshots(), RemoveOrphans()):
            with pytest.raises(InvalidArgument, match="nor an age") as caught:
                Run.of(table, operation, older_than=older_than)
            assert caught.value.details["field"] == "older_than", older_than


def test_an_age_may_be_longer_than_there_are_times(tmp_path: Path) -> None:
    """Nothing is as old."""
    table = new_table(tmp_path)
    for start in (0, 1):
        table.publish(table.staged([rows(start, 1)]))
    for older_than in ("1.5d", "9" * 30 + "d", "9" * 400 + "d"):
        assert Run.of(table, ExpireSnapshots(), older_than=older_than).finish()["expiredSnapshots"] == 0
        assert Run.of(table, RemoveOrphans(), older_than=older_than).finish()["orphans"] == 0


def test_young_files_are_never_taken_for_orphans(tmp_path: Path) -> None:
    """P13, S2: a day is the least age, whatever is asked for; another program may be about to commit them."""
    table, _ = littered(tmp_path)
    for older_than in ("0s", "23h", "2999-01-01", "2999-01-01T00:00:00Z"):
        for dry_run in (True, False):
            with pytest.raises(InvalidArgument, match="at least 24h") as caught:
                Run.of(table, RemoveOrphans(), older_than=older_than, dry_run=dry_run)
            assert caught.value.details["field"] == "older_than", older_than


def test_files_of_running_operations_are_not_orphans(tmp_path: Path) -> None:
    """P13: however old they are."""
    table, litter = littered(tmp_path)
    running = table.staged([rows(700, 2)], [rows(710, 2)])
    age(local(table.location))
    assert set(Run.of(table, RemoveOrphans(), running.arg, older_than="1d").finish()["examples"]) <= litter
    Run.of(table, RemoveOrphans(), running.arg, older_than="1d", dry_run=False).finish()
    table.publish(running)
    assert len(table.ids()) == 3 + 4


def test_files_published_between_the_search_for_orphans_and_its_commit_stay(tmp_path: Path) -> None:
    """P13: candidates are checked again by what the head says then."""
    table, litter = littered(tmp_path)
    late = table.staged([rows(700, 2)])
    age(local(table.location))
    run = Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False)  # late was overlooked
    table.publish(late)
    facts = run.finish()
    assert facts["orphans"] == len(litter)
    assert len(table.ids()) == 3 + 2


def test_an_append_prepared_before_orphans_are_removed_cannot_commit_after_it(tmp_path: Path) -> None:
    """P13: a coordinator that slept over its own metadata begins anew, on files that are there."""
    table, _ = littered(tmp_path)
    slow = table.staged([rows(700, 2)])
    prepared = IcebergAppend().prepare(table.context(slow))
    age(local(table.location))
    run = Run.of(table, RemoveOrphans(), slow.arg, older_than="1d", dry_run=False)
    facts = run.commit().facts
    assert not table.apply(prepared.txn)
    run.sweep(facts)
    prepared.discard()
    table.publish(slow)
    assert len(table.ids()) == 3 + 2


def test_a_sweeper_that_wakes_up_late_removes_nothing_new(tmp_path: Path) -> None:
    """P13: a file of the same name, written since, is another file."""
    table, litter = littered(tmp_path)
    run = Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False)
    facts = run.commit().facts
    again = local(table.location) / "data" / "part-0.parquet"
    again.write_text("written anew")
    run.sweep(facts)
    assert again.exists()
    assert litter & names(table) == {"data/part-0.parquet"}
    assert run.sweep(facts) == 0


def test_a_table_without_a_head_has_orphans_too(tmp_path: Path) -> None:
    """C18: of operations that died before anything was published."""
    table = new_table(tmp_path)
    table.staged([rows(0, 2)])
    age(local(table.location))
    assert Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False).finish()["orphans"] == 2
    assert names(table) == set()


def test_nothing_is_removed_from_a_folder_that_is_not_the_tables_own(tmp_path: Path) -> None:
    """S2: such as that of a table that was registered, or one that a link leads to another table from."""
    table, litter = littered(tmp_path)
    run = Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False)
    mark = local(owner_file(table.location, TABLE_UUID))
    mark.rename(mark.with_name("table-other"))
    assert run.finish()["orphans"] == len(litter)
    assert litter <= names(table)
    with pytest.raises(LocationNotOwned):
        make_plan(RemoveOrphans(), run.request)
    assert (
        make_plan(RemoveOrphans(), replace(run.request, argument={"older_than": "1d"})).partition_count == 1
    )


def test_snapshots_of_a_folder_that_is_not_the_tables_own_do_not_expire(tmp_path: Path) -> None:
    """S2, V5: another catalog's table that was registered: its older snapshots may be in use there."""
    table = overwritten(tmp_path, 3)
    run, before = Run.of(table, ExpireSnapshots(), older_than="0s"), names(table)
    give_folder_up(table.location, TABLE_UUID)
    facts = run.commit().facts
    assert (facts["expiredSnapshots"], run.sweep(facts)) == (2, 0)
    assert before <= names(table)
    with pytest.raises(LocationNotOwned):
        make_plan(ExpireSnapshots(), run.request)


def test_no_file_is_removed_from_a_table_whose_files_others_need(tmp_path: Path) -> None:
    """V5: Iceberg's property says so; whoever has set it, and also if it is set while an operation runs."""
    table, litter = littered(tmp_path)
    table.publish(table.staged([rows(1, 1)]), IcebergOverwrite())
    late = [
        Run.of(table, ExpireSnapshots(), older_than="0s"),
        Run.of(table, RemoveOrphans(), older_than="1d", dry_run=False),
    ]
    before = names(table)
    table.replace(table.draft().write(SetPropertiesUpdate(updates={"gc.enabled": "False"})))
    for run in late:
        with pytest.raises(PreconditionFailed, match=r"gc\.enabled is 'false'"):
            run.commit()
        with pytest.raises(PreconditionFailed) as refused:
            Run.of(table, run.kind, **run.request.argument)
        assert refused.value.details["field"] == "gc.enabled"
    assert Run.of(table, RemoveOrphans(), older_than="1d").finish()["orphans"] == len(litter)
    assert before <= names(table)
    given = TableRecord(
        name="t", location=f"file://{tmp_path}/new", options={"properties": {"gc.enabled": "false"}}
    )
    for head, record in ((table.record(), late[0].request.table), (None, given)):
        with pytest.raises(PreconditionFailed, match=r"gc\.enabled"):
            check_removal(record, head)


def test_expiry_leaves_files_alone_that_lie_elsewhere(tmp_path: Path) -> None:
    """S2: what a table has taken in by name may be another table's."""
    table = overwritten(tmp_path, 3)
    before = {name for name in names(table) if name.startswith("data/")}
    run = Run.of(table, ExpireSnapshots(), older_than="0s")
    facts = run.commit().facts
    its_own = run.staged.arg.location
    run.staged.arg.location = f"{its_own}/elsewhere"
    run.sweep(facts)
    assert before <= names(table)
    run.staged.arg.location = its_own
    run.sweep(facts)
    assert len(before & names(table)) == 1


def test_the_same_place_under_another_scheme_is_the_same_file(tmp_path: Path) -> None:
    """P13: programs write paths with and without file:, or s3a for s3."""
    table = new_table(tmp_path)
    table.publish(table.staged([rows(0, 2)]))
    age(local(table.location))
    location = table.record().metadata_location
    arg = table.start().arg
    arg.location = str(local(table.location))
    now = time.time()
    assert find_orphans(arg, metadata_location=location, older_than=now, busy=(), now=now) == []


@pytest.mark.parametrize("name", ["rollback", "expire_snapshots", "remove_orphans", "compact", "delete"])
def test_maintenance_is_registered_and_refuses_tables_that_are_not_iceberg(tmp_path: Path, name: str) -> None:
    """U3, U1: with the reason and what to do."""
    argument = {"where": "true"} if name == "delete" else {}
    for table_format in ("delta", "files"):
        record = TableRecord(name="t", location=str(tmp_path), format=table_format)
        with pytest.raises(PreconditionFailed, match="Iceberg tables"):
            make_plan(
                Registry().get(name), PlanRequest(table=record, head=None, watermarks={}, argument=argument)
            )
