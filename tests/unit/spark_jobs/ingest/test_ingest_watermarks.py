"""How far a source was ingested, and how far it will be."""

from datetime import UTC, datetime, timedelta

import pytest

from distop.errors import AlreadyIngested
from distop.metastore.records.operation import WatermarkMove
from distop.sources.formats.files import FoundSource, SourceFile
from distop.spark_jobs.ingest.watermarks import has_moved, watermark_moves
from support.refusals import refused

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
AT_NOON = "2013-01-01T12:00:00.000000Z"


def found(*paths: str, at: datetime | None = NOON) -> FoundSource:
    files = {path: [SourceFile(f"{path}/a", 1, 1, at), SourceFile(f"{path}/b", 1, 1, at)] for path in paths}
    return FoundSource("file:///data/flights", files)


def test_the_watermark_of_a_path_is_when_its_newest_file_was_modified() -> None:
    source = found("2013-01", "2013-02")
    later = NOON + timedelta(microseconds=5)
    source.partitions["2013-01"].append(SourceFile("2013-01/c", 1, 1, later))
    source.partitions["empty"] = []
    assert watermark_moves(source, {}) == {
        "file:///data/flights": {
            "2013-01": WatermarkMove(after="2013-01-01T12:00:00.000005Z", neighbours="nothing"),
            "2013-02": WatermarkMove(after=AT_NOON, neighbours="nothing"),
        }
    }


def test_paths_below_their_watermark_are_not_ingested_again_unasked() -> None:
    """P16."""
    standing = {"file:///data/flights": {"2013-01": AT_NOON}}
    with refused("paths", error=AlreadyIngested, partition="2013-01", watermark=AT_NOON) as caught:
        watermark_moves(found("2013-01", "2013-02"), standing)
    assert caught.value.code == "ALREADY_INGESTED"
    assert "reingest" in caught.value.hint


def test_an_explicit_value_must_lie_beyond_the_present_one() -> None:
    standing = {"orders": {"p": "9"}}
    moves = watermark_moves(found("p"), standing, source="orders", values={"p": "10"})
    assert moves == {"orders": {"p": WatermarkMove(before="9", after="10", neighbours="nothing")}}
    for value in ("9", "8"):
        with refused("watermark", "not beyond"):
            watermark_moves(found("p"), standing, source="orders", values={"p": value}, reingest=True)


def test_values_for_unknown_paths_are_refused() -> None:
    with refused("watermark", "'q' .*: p"):
        watermark_moves(found("p"), {}, values={"q": "1"})


def test_reingesting_moves_the_watermark_on_or_leaves_it_but_never_back() -> None:
    source = "file:///data/flights"
    earlier, later = "2013-01-01T11:00:00.000000Z", "2013-01-01T13:00:00.000000Z"
    for before, after in ((earlier, AT_NOON), (AT_NOON, AT_NOON), (later, later)):
        moves = watermark_moves(found("p"), {source: {"p": before}}, reingest=True)
        assert moves == {source: {"p": WatermarkMove(before=before, after=after)}}


@pytest.mark.parametrize(
    ("source", "partition"),
    [
        ("file:///data", "flights"),
        ("file:///data/flights/2013-01", "a.csv"),
        ("file:///data", "flights/2013-01"),
        ("file://", "data"),
    ],
)
def test_files_ingested_under_a_folder_around_or_below_are_recognised(source: str, partition: str) -> None:
    standing = {source: {partition: AT_NOON}, "other": {"2013-01": "1"}}
    with refused("paths", error=AlreadyIngested, source=source, partition=partition):
        watermark_moves(found("2013-01"), standing)
    moves = watermark_moves(found("2013-01"), standing, reingest=True)
    assert moves["file:///data/flights"]["2013-01"].before is None


def test_neighbours_do_not_count_as_overlapping() -> None:
    standing = {"file:///data/flights": {"2013-0": "1", "2013-012": "1"}, "file:///data": {"flight": "1"}}
    assert watermark_moves(found("2013-01"), standing)


def test_where_files_have_no_time_a_value_must_be_given() -> None:
    with refused("watermark", "does not report when"):
        watermark_moves(found("p", at=None), {})
    assert watermark_moves(found("p", at=None), {}, values={"p": "1"})


@pytest.mark.parametrize(
    ("source", "path", "moved"),
    [
        ("file:///data/flights", "2013-01", True),
        ("file:///data/flights", "2013-02", False),
        ("file:///data", "flights", True),
        ("file:///data/flights/2013-01", "a.csv", True),
        ("file:///data", "flights/2013-01x", False),
        ("orders", "2013-01", False),
        ("stream:q", "batch", False),
    ],
)
def test_a_watermark_has_moved_if_it_speaks_of_the_same_files(source: str, path: str, moved: bool) -> None:
    moves = watermark_moves(found("2013-01"), {})
    before = {"orders": {"p": "1"}, "file:///data/flights": {"2012-12": "1"}}
    now = {**before, source: {**before.get(source, {}), path: "2"}}
    assert has_moved(moves, before, now) is moved
    assert has_moved(moves, now, before) is moved
    assert not has_moved(moves, before, dict(before))


def test_a_watermark_of_a_named_source_has_moved_if_it_is_the_same() -> None:
    moves = watermark_moves(found("p"), {}, source="orders", values={"p": "1"})
    assert has_moved(moves, {}, {"orders": {"p": "1"}})
    assert not has_moved(moves, {}, {"orders": {"q": "1"}, "others": {"p": "1"}})
