"""What becomes of an action of a leader that fails."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from distop.coordinator.leading.acting import LONGEST_PAUSE_S, Acting
from distop.coordinator.leading.slot import Slot
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.state.tracker import Tracked
from distop.errors import CallTimeout
from distop.metastore.members.election import Epoch
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import OperationArg


async def test_an_action_that_has_failed_for_days_is_tried_again() -> None:
    """O18: at the longest interval, however many failures there were."""
    keys, arg = Keyspace("p").table("t"), OperationArg(table="t", type="noop", instance=1)
    nothing = cast(Any, None)
    acting = Acting(nothing, keys, Epoch(keys.coordinator, 1), nothing, nothing, Metrics(), lambda: 0.0)
    slot = Slot(Tracked(keys.operation(arg.id), arg), None)
    slot.failures = 100_000

    async def fails() -> None:
        raise CallTimeout("sweeping has taken longer than 600 s")

    slot.task = asyncio.create_task(fails())
    await asyncio.wait({slot.task})
    acting.reap(slot, 7.0)
    assert (slot.failures, slot.not_before) == (100_001, 7.0 + LONGEST_PAUSE_S)
