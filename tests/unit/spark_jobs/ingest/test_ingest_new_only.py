"""An ingest of new files: every file once, whichever other files are there."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distop.errors import AlreadyIngested, ArgumentTooLarge, WatermarkConflict
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES
from distop.metastore.records.watermarks import check_room
from distop.sources.formats.files import FoundSource, SourceFile
from distop.spark_jobs.ingest import watermarks
from distop.spark_jobs.ingest.plan import MAX_PLAN_BYTES, FileEntry
from support.refusals import refused
from support.sources.ingesting import Ingesting


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "2024").mkdir(parents=True)
    return folder


def put(path: Path, *ids: int, at: float | None = None) -> None:
    path.write_text("id\n" + "".join(f"{number}\n" for number in ids))
    if at is not None:
        os.utime(path, (at, at))


def test_a_pattern_with_an_old_and_a_new_file_gives_the_new_one(ingesting: Ingesting, source: Path) -> None:
    """P2: nothing twice, nothing left out."""
    put(source / "a.csv", 1)
    ingesting.ingest(paths=f"{source}/*.csv")
    put(source / "b.csv", 2)
    with pytest.raises(AlreadyIngested):
        ingesting.start(paths=f"{source}/*.csv")
    facts = ingesting.facts(paths=f"{source}/*.csv", new_only=True)
    assert (facts["rows"], facts["filesSkipped"]) == (1, 1)
    assert ingesting.rows("id") == [1, 2]


def test_files_are_the_same_ones_however_they_are_named(ingesting: Ingesting, source: Path) -> None:
    put(source / "2024" / "a.csv", 1)
    put(source / "b.csv", 2)
    for paths in ([str(source / "2024" / "a.csv")], [f"{source}/2024"], [f"{source}/*"], [str(source)]):
        ingesting.ingest(paths=paths, new_only=True)
    assert ingesting.rows("id") == [1, 2]
    assert ingesting.watermarks.keys() == {f"file://{source}", f"file://{source}/2024"}


def test_a_file_that_comes_late_with_an_old_time_is_not_lost(ingesting: Ingesting, source: Path) -> None:
    put(source / "new.csv", 2, at=2_000_000_000)
    ingesting.ingest(paths=str(source), new_only=True)
    put(source / "old.csv", 1, at=1_000_000_000)
    ingesting.ingest(paths=str(source), new_only=True)
    # One that has changed is not read again, and nothing new is a success without a snapshot.
    put(source / "old.csv", 1, 3, at=2_000_000_000)
    arg = ingesting.start(paths=str(source), new_only=True)
    assert arg.partition_count == 0
    assert ingesting.finish(arg, {}) == {"filesSkipped": 2, "rows": 0}
    assert ingesting.rows("id") == [1, 2]


def test_younger_files_of_a_folder_ingested_as_a_whole_are_new(ingesting: Ingesting, source: Path) -> None:
    put(source / "2024" / "a.csv", 1, at=1_000_000_000)
    ingesting.ingest(paths=str(source / "2024"))
    put(source / "2024" / "b.csv", 2, at=1_000_000_001)
    for _ in range(2):
        ingesting.ingest(paths=str(source), new_only=True)
    assert ingesting.rows("id") == [1, 2]


def test_a_folder_with_a_watermark_that_is_no_time_is_refused(ingesting: Ingesting, source: Path) -> None:
    put(source / "2024" / "a.csv", 1)
    ingesting.ingest(paths=str(source / "2024"), watermark={"2024": "17"})
    with refused("new_only", error=AlreadyIngested):
        ingesting.start(paths=str(source), new_only=True)


def test_one_of_two_ingests_of_the_same_new_file_publishes(ingesting: Ingesting, source: Path) -> None:
    """P15: whatever their paths, and the other's files are taken by the next one."""
    put(source / "2024" / "a.csv", 1)
    put(source / "b.csv", 2)
    first = ingesting.start(paths=str(source / "2024"), new_only=True)
    second = ingesting.start(paths=str(source), new_only=True)
    ingesting.finish(first, ingesting.run(first))
    jobs = ingesting.run(second)
    with pytest.raises(WatermarkConflict):
        ingesting.move_watermarks(second, jobs)
    ingesting.ingest(paths=str(source), new_only=True)
    assert ingesting.rows("id") == [1, 2]


def test_a_source_of_a_name_remembers_its_files(ingesting: Ingesting, source: Path, tmp_path: Path) -> None:
    put(source / "a.csv", 1)
    ingesting.ingest(paths=f"{source}/*.csv", new_only=True, source="orders")
    source.rename(tmp_path / "moved")
    put(tmp_path / "moved" / "b.csv", 2)
    ingesting.ingest(paths=f"{tmp_path}/moved/*.csv", new_only=True, source="orders")
    assert ingesting.rows("id") == [1, 2]
    assert ingesting.watermarks["orders"].keys() == {"a.csv", "b.csv"}


def test_a_pattern_may_match_more_files_than_an_ingest_has_paths(ingesting: Ingesting, source: Path) -> None:
    for number in range(1_002):
        put(source / f"{number}.csv", number)
    with pytest.raises(ArgumentTooLarge):
        ingesting.start(paths=f"{source}/*.csv")
    arg = ingesting.start(paths=f"{source}/*.csv", new_only=True)
    assert len(arg.watermarks[f"file://{source}"]) == 1_002


def test_the_first_of_too_many_new_files_are_taken(
    ingesting: Ingesting, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "MAX_TAKEN", 2)
    for name, number in (("c.csv", 3), ("2024/a.csv", 1), ("b.csv", 2)):
        put(source / name, number)
    request = ingesting.request(paths=str(source), new_only=True)
    assert ingesting.operation.preview(request)["filesRemaining"] == 1
    facts = ingesting.facts(paths=str(source), new_only=True)
    assert (facts["rows"], facts["filesRemaining"]) == (2, 1)
    assert ingesting.rows("id") == [1, 2]
    facts = ingesting.facts(paths=str(source), new_only=True)
    assert (facts["rows"], facts["filesSkipped"]) == (1, 2)
    assert "filesRemaining" not in facts


@pytest.mark.parametrize("named", ["orders", None])
@pytest.mark.parametrize(
    ("files", "least", "most"),
    [
        ([f"{number:05}.csv" for number in range(12_000)], 9_000, watermarks.MAX_TAKEN),
        ([f"{'f' * 200}/{number:05}{'n' * 200}.csv" for number in range(12_000)], 1_200, 2_000),
        ([f"{'f' * 900}/{number:05}/1.csv" for number in range(12_000)], 500, 900),
    ],
)
def test_new_files_of_one_operation_fit_into_its_record(
    named: str | None, files: list[str], least: int, most: int
) -> None:
    """Whatever the lengths of its names are, as long as the table's layout is of a usual size."""
    at = datetime(2024, 1, 1, tzinfo=UTC)
    found = FoundSource(
        "file:///data", {"": [SourceFile(path, 10, 1_700_000_000_000_000, at) for path in files]}
    )
    new = watermarks.new_files(found, {}, named)
    taken = [file.path for file in new.listing.files]
    assert taken == files[: len(taken)]
    assert least <= len(taken) <= most
    assert new.remaining == len(files) - len(taken)
    moves = new.moves if named else watermarks.by_folder(new.moves)
    entries = msgspec.json.encode(
        [FileEntry(file.path, file.size, file.version) for file in new.listing.files]
    )
    check_room({source: {name: move.after for name, move in at.items()} for source, at in moves.items()})
    assert len(entries) < MAX_PLAN_BYTES - 100_000
    assert len(entries) + len(msgspec.json.encode(moves)) < MAX_REQUEST_BYTES - 200_000


def test_where_some_jobs_may_fail_each_file_stands_for_itself(ingesting: Ingesting, source: Path) -> None:
    put(source / "a.csv", 1)
    (source / "b.csv").write_text("id\n2\n2,2\n")
    arg = ingesting.start_in_part(paths=str(source), new_only=True, schema={"id": "long"})
    moves = arg.watermarks[f"file://{source}"]
    assert {name: move.jobs for name, move in moves.items()} == {"a.csv": [(0, 1)], "b.csv": [(1, 2)]}


@pytest.mark.parametrize(
    "other", [{"reingest": True}, {"watermark": {"a": "1"}}, {"mode": "overwrite"}, {"mode": "ignore"}]
)
def test_options_that_do_not_agree_with_new_only_are_refused(
    ingesting: Ingesting, source: Path, other: dict[str, Any]
) -> None:
    put(source / "a.csv", 1)
    with refused("new_only"):
        ingesting.start(paths=str(source), new_only=True, **other)


@pytest.mark.parametrize("whole_first", [True, False])
def test_a_folder_and_its_new_files_side_by_side_are_there_once(
    ingesting: Ingesting, source: Path, whole_first: bool
) -> None:
    """P15: two watermarks that are about the same file; what is published first counts."""
    put(source / "2024" / "a.csv", 1)
    whole = ingesting.start(paths=str(source / "2024"))
    files = ingesting.start(paths=str(source / "2024"), new_only=True)
    first, second = (whole, files) if whole_first else (files, whole)
    ingesting.finish(first, ingesting.run(first))
    with pytest.raises(WatermarkConflict, match="while the operation read"):
        ingesting.move_watermarks(second, ingesting.run(second))


def test_an_older_watermark_of_the_folder_is_no_conflict(ingesting: Ingesting, source: Path) -> None:
    put(source / "2024" / "a.csv", 1, at=1_000_000_000)
    put(source / "2024" / "b.csv", 2, at=1_000_000_001)
    files = ingesting.start(paths=str(source / "2024" / "b.csv"), new_only=True)
    put(source / "2024" / "b.csv", 2, at=999_999_999)
    whole = ingesting.start(paths=str(source / "2024"))
    ingesting.move_watermarks(whole, {})
    ingesting.move_watermarks(files, {})
    assert ingesting.watermarks[f"file://{source}/2024"].keys() == {"b.csv"}
