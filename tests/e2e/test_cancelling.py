"""Cancelling an ingest at one moment after the other: one outcome each time, and nothing left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from distop.client import OperationState
from distop.errors import TooLateToCancel
from support.services.whole import Whole, error_of, write_csv

MOMENTS = 14


async def test_whenever_it_is_cancelled_it_has_one_outcome_and_leaves_nothing(service: Whole) -> None:
    """O19: the reply says that it is requested; rows and watermarks are published together, or not at all."""
    expected: list[int] = []
    before = 0
    outcomes = []
    for moment in range(MOMENTS):
        source = write_csv(service.folder / f"in{moment}", "a.csv", 100 * moment, 6)
        write_csv(service.folder / f"in{moment}", "b.csv", 100 * moment + 6, 6)
        started = await service.client.start("t", "ingest", {"paths": [str(source)]})
        # The later the moment, the more has happened: not before the n-th change that a watcher hears of.
        seen = 0
        async with aclosing(service.client.watch(started.name)) as updates:
            async for update in updates:
                seen += 1
                if seen > moment % 7 or update.operation.done:
                    break
        try:
            asked = await service.client.cancel(started.name, reason=f"moment {moment}")
            assert asked.cancel_requested or asked.done
        except TooLateToCancel:
            pass
        ended = await service.client.wait(started.name, timeout_s=90)
        outcomes.append(ended.state)
        marks = await service.client.watermarks("t")
        published = sum(map(len, marks.values())) > before
        before = sum(map(len, marks.values()))
        if ended.state is OperationState.SUCCEEDED:
            expected += range(100 * moment, 100 * moment + 12)
            assert published
        else:
            assert ended.state is OperationState.CANCELLED
            by = service.client.identity
            assert error_of(ended).message == f"cancelled by {by}: moment {moment}"
            assert (await service.client.cancel(started.name)).state is OperationState.CANCELLED
            assert not published
    keys = await service.at_rest()
    assert not [key for key in keys if key.startswith(("t.ingest.1", "_active", "_paused"))], keys
    assert "t.runOps" not in keys
    if expected:
        assert await asyncio.to_thread(service.ids) == expected
        assert service.data_files() == await asyncio.to_thread(service.published_files)
    else:
        assert service.data_files() == set()
    assert OperationState.CANCELLED in outcomes
