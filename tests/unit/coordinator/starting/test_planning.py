"""Planning: bounded, and abandoned when no caller waits for it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from distop.coordinator.starting.planner import Planner
from distop.coordinator.work.work import Work
from distop.errors import ArgumentTooLarge, DeadlineExceeded
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.table import TableRecord
from distop.operations import Plan, PlanRequest, Registry

REQUEST = PlanRequest(
    table=TableRecord(name="t", location="file:///nowhere"), head=None, watermarks={}, argument={}
)


class Slow(Executor):
    """Threads whose work ends when the test says so."""

    def __init__(self) -> None:
        self.work: Future[Any] = Future()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.work


async def test_a_cancellation_that_comes_along_with_the_plan_counts() -> None:
    """O24: a leader that was cancelled must stop."""
    threads = Slow()
    planner = Planner(Work(Registry(()), threads))
    planning = asyncio.create_task(planner.plan(planner.registry.get("noop"), REQUEST, 30.0))
    await asyncio.sleep(0)
    threads.work.set_result(Plan(argument={}, partition_count=1))
    await asyncio.sleep(0)  # the result has arrived, and whoever waits for it has not run yet
    planning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await planning


async def test_a_plan_that_takes_too_long_is_given_up() -> None:
    """U4."""
    planner = Planner(Work(Registry(()), Slow()))
    with pytest.raises(DeadlineExceeded):
        await planner.plan(planner.registry.get("noop"), REQUEST, 0.01)


async def test_what_one_finish_could_not_move_is_refused_before_anything_runs() -> None:
    """G4"""
    threads = Slow()
    planner = Planner(Work(Registry(()), threads))
    moves = {"s": {f"{'x' * 90}{number}": WatermarkMove(after="1") for number in range(10_000)}}
    threads.work.set_result(Plan(argument={}, partition_count=1, watermarks=moves))
    with pytest.raises(ArgumentTooLarge, match="name fewer paths"):
        await planner.plan(planner.registry.get("noop"), REQUEST, 30.0)
