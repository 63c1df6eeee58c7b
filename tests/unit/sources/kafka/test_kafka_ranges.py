"""Which offsets an ingest reads, and how the watermarks move: nothing twice, nothing left out unnoticed."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import AlreadyIngested, DistopError, InvalidArgument, OffsetsLost
from distop.lake.iceberg.watermarks import moved
from distop.sources.kafka.ranges import (
    TOPIC_ID,
    OffsetRange,
    Ranges,
    Reach,
    Topic,
    held_back,
    new_ranges,
    parse_kafka,
)
from support.refusals import refused


def ranges(
    reach: dict[int, tuple[int, int]],
    watermarks: Mapping[str, str],
    *,
    reingest: bool = False,
    **given: Any,
) -> Ranges:
    own_id = given.pop("own_id", "")
    argument = parse_kafka({"servers": "h:1", "topic": "orders", **given})
    topic = Topic("c1", "orders", {number: Reach(*ends) for number, ends in reach.items()}, own_id)
    return new_ranges(argument, topic, watermarks, reingest=reingest)


def test_a_range_begins_at_the_watermark_and_ends_at_the_last_offset() -> None:
    found = ranges({0: (0, 10), 1: (5, 20), 2: (3, 3), 3: (0, 7)}, {"0": "4", "3": "7"})
    assert found.ranges == [OffsetRange(0, 4, 10), OffsetRange(1, 5, 20)]
    assert {name: (move.before, move.after) for name, move in found.moves.items()} == {
        "0": ("4", "10"),
        "1": (None, "20"),
        "2": (None, "3"),
    }
    assert found.skipped == 0


@pytest.mark.parametrize(
    ("given", "watermarks", "error", "text"),
    [
        ({}, {"0": "2"}, OffsetsLost, "no longer has offsets 2 to 4, it begins at 5"),
        ({}, {"0": "11"}, OffsetsLost, "ends at offset 10 in partition 0, but 11 comes next"),
        ({}, {"1": "1"}, OffsetsLost, "has no partition 1"),
        ({"from": "earliest"}, {"0": "7"}, AlreadyIngested, "up to offset 7: 5 is before it"),
        ({"from": "earliest"}, {"0": "2"}, OffsetsLost, "offsets 2 to 4"),
        ({"from": {"0": 6}}, {"0": "7"}, AlreadyIngested, "up to offset 7: 6 is before it"),
        ({"from": {"0": 8}}, {"0": "7"}, InvalidArgument, "8 leaves a gap"),
        ({"from": {"0": 4}}, {}, OffsetsLost, "no longer has offset 4"),
        ({"to": {"0": 6}}, {"0": "7"}, AlreadyIngested, "up to offset 7"),
        ({"to": {"0": 4}}, {}, InvalidArgument, ": 4 is before the start 5"),
        ({"to": {"0": 11}}, {}, InvalidArgument, "11 is after that"),
        ({"from": {"9": 1}}, {}, InvalidArgument, "no partition 9"),
    ],
)
def test_offsets_that_would_leave_a_gap_or_an_overlap_are_refused(
    given: dict[str, Any], watermarks: dict[str, str], error: type[DistopError], text: str
) -> None:
    """P16, U3."""
    with pytest.raises(error, match=text):
        ranges({0: (5, 10)}, watermarks, **given)


def test_skipping_is_counted_from_the_watermark_on() -> None:
    found = ranges({0: (5, 10)}, {"0": "2"}, on_gap="skip")
    assert (found.ranges, found.skipped) == ([OffsetRange(0, 5, 10)], 3)
    beyond: dict[str, Any] = {"from": {"0": 8}}
    found = ranges({0: (5, 10)}, {"0": "2"}, on_gap="skip", **beyond)
    assert (found.ranges, found.skipped) == ([OffsetRange(0, 8, 10)], 6)
    found = ranges({0: (5, 5)}, {"0": "2"}, on_gap="skip")
    assert (found.ranges, found.moves["0"].after, found.skipped) == ([], "5", 3)


def test_a_topic_is_known_by_its_own_id() -> None:
    """P16: however long the new one is; unless the brokers know none."""
    first = ranges({0: (0, 10)}, {"0": "4"}, own_id="old")
    assert {name: (move.before, move.after) for name, move in first.moves.items()} == {
        TOPIC_ID: (None, "old"),
        "0": ("4", "10"),
    }
    noted = {"0": "10", TOPIC_ID: "old"}
    for same in ("old", ""):
        assert ranges({0: (0, 12)}, noted, own_id=same).ranges == [OffsetRange(0, 10, 12)]
    for reingest in (False, True):
        with refused(error=OffsetsLost, watermark="old", topicId="new") as anew:
            ranges({0: (0, 12)}, noted, own_id="new", on_gap="skip", reingest=reingest)
    assert f"distop watermark forget TABLE SOURCE {TOPIC_ID}" in anew.value.hint


def test_records_held_back_by_an_open_transaction_are_named() -> None:
    reach = {0: Reach(0, 10), 1: Reach(0, 4, 5), 2: Reach(0, 7, 1000)}
    assert held_back(Topic("c1", "orders", {0: Reach(0, 10)})) == (0, [])
    count, (sentence,) = held_back(Topic("c1", "orders", reach))
    assert count == 1005
    assert sentence.startswith(
        "partition 1 of kafka://c1/orders: an open transaction holds back the 5 offsets from 4 on, and those "
        "of 1 other partition;"
    )


def test_ingesting_again_never_takes_the_watermark_back() -> None:
    found = ranges({0: (0, 10)}, {"0": "7"}, reingest=True, **{"from": "earliest", "to": {"0": 5}})
    assert (found.ranges, found.moves) == ([OffsetRange(0, 0, 5)], {})
    found = ranges({0: (0, 10)}, {"0": "7"}, reingest=True, **{"from": {"0": 3}})
    assert (found.ranges, found.moves["0"].after) == ([OffsetRange(0, 3, 10)], "10")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 4)),
)
def test_ranges_of_operations_that_follow_each_other_join_without_gap_or_overlap(
    steps: list[tuple[int, int]], limit: int | None
) -> None:
    """C8: whatever is produced in between, and however little each one takes."""
    ends = [0, 0]
    watermarks: Mapping[str, Mapping[str, str]] = {}
    read: list[list[int]] = [[], []]
    given: dict[str, Any] = {} if limit is None else {"max_records_per_partition": limit}
    for step in steps:
        ends = [end + more for end, more in zip(ends, step, strict=True)]
        found = ranges({0: (0, ends[0]), 1: (0, ends[1])}, watermarks.get("s", {}), **given)
        for one in found.ranges:
            read[one.partition].extend(range(one.start, one.end))
        watermarks = moved(watermarks, {"s": found.moves})
        assert all(len(offsets) == int(watermarks["s"][str(n)]) for n, offsets in enumerate(read))
    assert [offsets == list(range(len(offsets))) for offsets in read] == [True, True]


@pytest.mark.parametrize("partition", ["00", "\u0660", "+1", "1.0", "", "-1"])
def test_a_partition_has_one_spelling(partition: str) -> None:
    """U3: another one would be accepted, and stand for none."""
    with pytest.raises(InvalidArgument, match="number of a partition"):
        parse_kafka({"servers": "broker:9092", "topic": "t", "to": {partition: 1}})
