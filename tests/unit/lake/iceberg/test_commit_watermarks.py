"""Watermarks: their order, and that they never go back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import ArgumentTooLarge, WatermarkConflict
from distop.lake.iceberg.watermarks import WatermarkStep, is_after, moved
from distop.lake.layout.model import Layout
from distop.metastore.etcd.txn import unchanged
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.table import decode_watermarks
from distop.metastore.records.watermarks import MAX_RECENT_BYTES
from support.tables.publishing import ROWS, Table

values = st.text(st.sampled_from("0123456789-ab."), max_size=6)


@given(values, values, values)
def test_the_order_is_a_strict_total_one(a: str, b: str, c: str) -> None:
    """P16"""
    assert is_after(a, b) + is_after(b, a) + (a == b) == 1
    if is_after(a, b) and is_after(b, c):
        assert is_after(a, c)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("10", "9"),
        ("-3", "-5"),
        ("part-10", "part-9"),
        ("2013-02", "2013-1"),
        ("2013-01-01T10:00:00Z", "2013-01-01T09:59:59Z"),
        ("b", "a10"),
        ("a", "99"),
        ("99999999999999999999999", "99999999999999999999998"),
        (f"1{5000 * '0'}", 5000 * "9"),
        (f"part-1{5000 * '0'}", f"part-{5000 * '9'}"),
    ],
)
def test_numbers_in_watermarks_count_as_numbers(new: str, old: str) -> None:
    """P16"""
    assert is_after(new, old)
    assert not is_after(old, new)
    assert not is_after(new, new)


def test_moves_change_only_what_they_name() -> None:
    """C8"""
    present = {"kafka": {"0": "5", "1": "7"}, "files": {"2013-01": "done"}}
    moves = {"kafka": {"0": WatermarkMove(before="5", after="12")}, "new": {"x": WatermarkMove(after="1")}}
    after = {**present, "kafka": {"0": "12", "1": "7"}, "new": {"x": "1"}}
    assert moved(present, moves) == after
    assert present["kafka"]["0"] == "5"


@pytest.mark.parametrize(
    ("present", "move", "complaint"),
    [
        ({"s": {"0": "6"}}, WatermarkMove(before="5", after="12"), "at '6', but was at '5' when"),
        ({}, WatermarkMove(before="5", after="12"), "is at None"),
        ({"s": {"0": "6"}}, WatermarkMove(after="12"), "was at None"),
        ({"s": {"0": "10"}}, WatermarkMove(before="10", after="9"), "go back from '10' to '9'"),
    ],
)
def test_a_watermark_that_has_moved_is_a_conflict(
    present: dict[str, dict[str, str]], move: WatermarkMove, complaint: str
) -> None:
    """P16: two operations over the same range: one wins, the other is refused with the reason."""
    with pytest.raises(WatermarkConflict) as caught:
        moved(present, {"s": {"0": move}})
    assert complaint in caught.value.message
    assert (caught.value.details["source"], caught.value.details["partition"]) == ("s", "0")


def a_table() -> Table:
    return Table("flights", "file:///nowhere", Layout.create(ROWS))


def test_the_step_contributes_the_new_value_and_a_compare() -> None:
    """C8: in the one transaction, on what was read."""
    table = a_table()
    operation = table.start(watermarks={"files": {"2013-01": WatermarkMove(after="done")}})
    contribution = WatermarkStep().prepare(table.context(operation))
    assert contribution.txn.compares == (unchanged(table.watermarks),)
    assert table.apply(contribution.txn)
    assert decode_watermarks(table.watermarks.value) == {"files": {"2013-01": "done"}}
    assert not table.apply(contribution.txn)
    with pytest.raises(WatermarkConflict):
        WatermarkStep().prepare(table.context(operation))


def test_no_moves_contribute_nothing() -> None:
    """C8: operations without watermarks do not conflict over them."""
    table = a_table()
    no_moves: list[dict[str, dict[str, WatermarkMove]]] = [{}, {"files": {}}]
    for moves in no_moves:
        contribution = WatermarkStep().prepare(table.context(table.start(watermarks=moves)))
        assert (contribution.txn.compares, contribution.txn.then) == ((), ())


def test_watermarks_that_etcd_could_not_hold_are_refused() -> None:
    """U3"""
    table = a_table()
    moves = {"s": {f"{i:0100}": WatermarkMove(after="1") for i in range(MAX_RECENT_BYTES // 100)}}
    with pytest.raises(ArgumentTooLarge, match="so many watermarks"):
        WatermarkStep().prepare(table.context(table.start(watermarks=moves)))
