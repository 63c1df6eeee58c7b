"""When the leader of a table looks again."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from distop.coordinator.leading.driver import TableDriver
from distop.coordinator.leading.slot import Slot
from distop.coordinator.state.tracker import Tracked
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import RUNNING, OperationArg

KEYS = Keyspace().table("t")


@pytest.mark.parametrize("timer", ["deadline", "back-off"])
def test_a_timer_that_becomes_due_between_acting_and_waiting_is_waited_for(timer: str) -> None:
    """O18, O20: the next look would be as far away as the end of a lease."""
    now = 4.999
    driver = TableDriver(Mock(), KEYS, Mock(), Mock(ttl_s=10), Mock(), clock=lambda: now)
    arg = OperationArg(table="t", type="noop", instance=1, partition_count=1)
    slot = Slot(Tracked(KEYS.operation(arg.id), arg), deadline=5.0 if timer == "deadline" else None)
    slot.tracked.set_state(RUNNING, 1)
    slot.not_before = 5.0 if timer == "back-off" else 0.0
    driver._slots[slot.tracked.keys.root] = slot
    acted_at = driver._act()
    assert slot.task is None
    assert driver._next_due(acted_at) == pytest.approx(0.001)
    now = 5.001
    assert driver._next_due(acted_at) == 0.0
