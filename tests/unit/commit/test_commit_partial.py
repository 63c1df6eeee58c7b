"""Publishing what succeeded when some jobs may fail: rows and watermarks stay together."""

from pathlib import Path

import pytest

from distop.commit.partial import selection
from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.cleanup.staged import sweep
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.metastore.records.operation import JobRecord, OperationArg, WatermarkMove
from distop.metastore.records.table import decode_watermarks
from support.sources.ingesting import Ingesting
from support.tables.publishing import Staged, Table, new_table, rows


def move(*jobs: tuple[int, int]) -> WatermarkMove:
    return WatermarkMove(after="1", jobs=list(jobs))


def failing(table: Table, failed: set[int], count: int, **moves: WatermarkMove) -> Staged:
    """An operation with one row for each job; some jobs have failed."""
    operation = table.start(count, watermarks={"s": dict(moves)} if moves else {})
    for index in range(count):
        operation.run(str(index), [rows(index, 1)])
        if index in failed:
            operation.jobs[str(index)] = JobRecord(state="failed", attempt="x", error="BAD_ROW: no")
    return operation


def test_only_what_succeeded_is_published(tmp_path: Path) -> None:
    """C17, C18: and what the others have written is swept."""
    table = new_table(tmp_path)
    operation = failing(table, {1}, 4)
    facts = table.publish(operation).facts
    assert table.ids() == [0, 2, 3]
    assert facts["rows"] == 3
    assert "withheldPartitions" not in facts
    removed = sweep(operation.arg, operation.history(facts), operation.jobs)
    assert removed >= 1
    assert table.ids() == [0, 2, 3]
    assert len(operation.files()["data"]) == 3


def test_watermarks_of_failed_jobs_stay_and_their_rows_are_withheld(tmp_path: Path) -> None:
    """C8, C17: ingesting the rest again doubles nothing."""
    table = new_table(tmp_path)
    operation = failing(table, {1}, 6, a=move((0, 3)), b=move((3, 5)), c=move((5, 6)))
    facts = table.publish(operation).facts
    table.publish(operation, WatermarkStep())
    assert table.ids() == [3, 4, 5]
    assert decode_watermarks(table.watermarks.value) == {"s": {"b": "1", "c": "1"}}
    assert facts["withheldPartitions"] == 2
    assert table.summary()["distop.watermarks"] == '{"s":{"b":"1","c":"1"}}'
    sweep(operation.arg, operation.history(facts), operation.jobs)
    assert table.ids() == [3, 4, 5]
    assert len(operation.files()["data"]) == 3


def test_jobs_that_share_a_watermark_stand_and_fall_together() -> None:
    """C17: also through jobs in between."""
    arg = OperationArg(table="t", type="x", instance=1, partition_count=6)
    arg.watermarks = {
        "s": {"a": move((0, 2)), "b": move((1, 3), (4, 5)), "c": move((3, 4)), "d": move((5, 6))}
    }
    jobs = {str(i): JobRecord(state="failed" if i == 0 else "success") for i in range(6)}
    chosen = selection(arg, jobs)
    assert chosen.withheld == {"1", "2", "4"}
    assert {name for partitions in chosen.moves.values() for name in partitions} == {"c", "d"}


def test_a_watermark_that_names_no_jobs_needs_all() -> None:
    """C17: an operation type that says nothing is all or nothing."""
    arg = OperationArg(table="t", type="x", instance=1, partition_count=3)
    arg.watermarks = {"s": {"a": WatermarkMove(after="1")}}
    jobs = {str(i): JobRecord(state="success") for i in range(3)}
    assert selection(arg, jobs).moves == arg.watermarks
    jobs["2"] = JobRecord(state="failed")
    with pytest.raises(PreconditionFailed, match=r"1 of 3 .* 2 others share a watermark"):
        selection(arg, jobs)


# -- ingest ------------------------------------------------------------------------------------------


def write(folder: Path, name: str, count: int, first: int) -> str:
    (folder / name).mkdir(parents=True)
    for i in range(count):
        (folder / name / f"{i}.csv").write_text(f"id\n{first + i}\n")
    return str(folder / name)


def test_an_ingest_holds_back_the_paths_of_failed_jobs_and_no_other(tmp_path: Path) -> None:
    """C17: a path is ingested whole or not at all, and what is left can be ingested again."""
    ingesting = Ingesting(tmp_path)
    paths = [write(tmp_path / "src", name, 3, 10 * i) for i, name in enumerate("abc")]
    (tmp_path / "src" / "b" / "1.csv").write_text("id\n" + "".join(f"{1000 + i}\n" for i in range(400)))
    arg = ingesting.start_in_part(paths=paths, split_bytes=1024)
    ((_, moves),) = arg.watermarks.items()
    assert [moves[name].jobs for name in "abc"] == [[(0, 1)], [(1, 5)], [(5, 6)]]
    jobs = ingesting.run(arg)
    jobs["2"] = JobRecord(state="failed", error="BAD_ROW: no")
    ingesting.finish(arg, jobs)
    assert ingesting.rows("id") == [0, 1, 2, 20, 21, 22]
    assert [sorted(partitions) for partitions in ingesting.watermarks.values()] == [["a", "c"]]
    ingesting.ingest(paths=paths[1:2], source=next(iter(ingesting.watermarks)), watermark={"b": "1"})
    assert len(ingesting.rows("id")) == 6 + 402


def test_modes_that_replace_rows_allow_no_failures(tmp_path: Path) -> None:
    """C17, O4: what succeeded would replace what failed."""
    for mode in ("overwrite", "overwrite_partitions"):
        with pytest.raises(InvalidArgument) as caught:
            Ingesting(tmp_path).start_in_part(paths="/nowhere", mode=mode)
        assert caught.value.details["field"] == "mode"
