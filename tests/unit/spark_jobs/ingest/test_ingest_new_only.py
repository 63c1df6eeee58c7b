"""An ingest of new files: every file once, whichever other files are there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from distop.errors import AlreadyIngested, ArgumentTooLarge, WatermarkConflict
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


def test_of_a_folder_ingested_as_a_whole_younger_files_are_new(ingesting: Ingesting, source: Path) -> None:
    put(source / "2024" / "a.csv", 1, at=1_000_000_000)
    ingesting.ingest(paths=str(source / "2024"))
    put(source / "2024" / "b.csv", 2, at=1_000_000_001)
    for _ in range(2):
        ingesting.ingest(paths=str(source), new_only=True)
    assert ingesting.rows("id") == [1, 2]


def test_a_folder_with_a_watermark_that_is_no_time_is_refused(ingesting: Ingesting, source: Path) -> None:
    put(source / "2024" / "a.csv", 1)
    ingesting.ingest(paths=str(source / "2024"), watermark={"2024": "17"})
    with pytest.raises(AlreadyIngested, match="does not show its new files"):
        ingesting.start(paths=str(source), new_only=True)


def test_of_two_that_take_the_same_file_one_publishes(ingesting: Ingesting, source: Path) -> None:
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


def test_where_some_jobs_may_fail_each_file_stands_for_itself(ingesting: Ingesting, source: Path) -> None:
    put(source / "a.csv", 1)
    (source / "b.csv").write_text("id\n2\n2,2\n")
    arg = ingesting.start_in_part(paths=str(source), new_only=True, schema={"id": "long"})
    moves = arg.watermarks[f"file://{source}"]
    assert {name: move.jobs for name, move in moves.items()} == {"a.csv": [(0, 1)], "b.csv": [(1, 2)]}


@pytest.mark.parametrize(
    "other", [{"reingest": True}, {"watermark": {"a": "1"}}, {"mode": "overwrite"}, {"mode": "ignore"}]
)
def test_what_does_not_agree_is_refused(ingesting: Ingesting, source: Path, other: dict[str, Any]) -> None:
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
    with pytest.raises(WatermarkConflict, match="was ingested while the operation read"):
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
