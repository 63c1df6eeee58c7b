"""The next action for a backlog, from its state in etcd."""

from typing import Any

import pytest

from distop.coordinator.backlog.policy import Apply, Backlog, Stop, Waiting, decide
from distop.metastore.backlog.batches import BatchRecord, OrderingRecord
from distop.metastore.etcd.txn import KeyValue

MISSING = KeyValue.missing(b"k")


def waiting(name: str, **fields: Any) -> Waiting:
    return Waiting(name=name, record=BatchRecord(type="noop", **fields), kv=MISSING)


def backlog(ordering: OrderingRecord, *heads: Waiting) -> Backlog:
    return Backlog(ordering=ordering, ordering_kv=MISSING, index_kv=MISSING, heads=heads)


def applied(ordering: OrderingRecord, *heads: Waiting) -> list[str]:
    step = decide(backlog(ordering, *heads))
    assert isinstance(step, Apply)
    return [batch.name for batch in step.batches]


def test_a_late_batch_does_not_slip_in_behind_one_that_was_decided_about() -> None:
    """B4, B14."""
    ordering = OrderingRecord(last="c", together=5)
    assert applied(ordering, waiting("a", anyway=True), waiting("b"), waiting("d")) == ["a"]
    assert isinstance(decide(backlog(ordering, waiting("b"), waiting("d"))), Stop)
    both = (waiting("a", anyway=True), waiting("b", anyway=True), waiting("d"))
    assert applied(ordering, *both) == ["a", "b", "d"]


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_batches_that_failed_together_go_by_themselves(alone: int) -> None:
    """B8, B14: those around them still go together, and the order is kept."""
    heads = [waiting(name, alone=place == alone) for place, name in enumerate("abc")]
    expected = {0: ["a"], 1: ["a"], 2: ["a", "b"]}
    assert applied(OrderingRecord(together=5), *heads) == expected[alone]


def test_a_batch_that_may_be_in_the_table_is_decided_about_first() -> None:
    """B8, C10: whatever was decided about others, and about its place."""
    doubtful = waiting("b", in_doubt=True, anyway=True)
    step = decide(backlog(OrderingRecord(last="a", late="apply", together=5), doubtful, waiting("c")))
    assert isinstance(step, Stop)
    assert step.first.name == "b"
