"""How starts are admitted, and their plans made."""

import asyncio
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack
from typing import Any

import pytest

from distop.coordinator.starting.admission import FEWEST, FEWEST_WAITING, LAG_S, MOST, Admission
from distop.coordinator.starting.body import operation_arg
from distop.coordinator.starting.planner import Planner
from distop.coordinator.work.work import Work
from distop.errors import ArgumentTooLarge, Busy, DeadlineExceeded
from distop.metastore.operations.starting import StartRequest
from distop.metastore.records.operation import FollowUpArg, WatermarkMove
from distop.metastore.records.table import TableRecord
from distop.operations import Plan, PlanRequest, Registry
from support.waiting import eventually

REQUEST: PlanRequest = PlanRequest(
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


async def test_too_many_watermarks_for_one_finish_are_refused_before_anything_runs() -> None:
    """G4"""
    threads = Slow()
    planner = Planner(Work(Registry(()), threads))
    moves = {"s": {f"{'x' * 90}{number}": WatermarkMove(after="1") for number in range(10_000)}}
    threads.work.set_result(Plan(argument={}, partition_count=1, watermarks=moves))
    with pytest.raises(ArgumentTooLarge, match="name fewer paths"):
        await planner.plan(planner.registry.get("noop"), REQUEST, 30.0)


SHORT_S = 2 * FEWEST_WAITING / MOST
"""So little time that no more than the fewest may wait, at the pace that is assumed in the beginning."""


async def full(admission: Admission, held: AsyncExitStack) -> list[asyncio.Task[None]]:
    """As many starts of one caller as are let in, and as many as may wait."""
    admission._callers.patience_s = 60.0  # all count, however slow the machine is
    for number in range(MOST):
        await held.enter_async_context(admission.admitted("many", f"t{number}", 60.0))

    async def waits(number: int) -> None:
        async with admission.admitted("many", f"w{number}", 60.0):
            pass

    waiting = [asyncio.create_task(waits(number)) for number in range(FEWEST_WAITING)]
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting


async def test_those_who_are_sent_away_are_told_moments_one_after_the_other() -> None:
    """G6: so that they do not come back together."""
    admission = Admission()
    async with AsyncExitStack() as held:
        waiting = await full(admission, held)
        booked = []
        for _ in range(3):
            with pytest.raises(Busy) as refused:
                await held.enter_async_context(admission.admitted("many", "t", SHORT_S))
            assert refused.value.retry_after_s > 0.0
            booked.append(admission._booked_until)
        assert booked[0] < booked[1] < booked[2]
        with pytest.raises(DeadlineExceeded):  # another caller still has room to wait
            await held.enter_async_context(admission.admitted("other", "t", 0.0))
        for one in waiting:
            one.cancel()


async def test_a_call_with_a_longer_deadline_waits_where_others_are_refused() -> None:
    """G6: to be sent away and to come back costs more than to wait."""
    admission = Admission()

    async def patient() -> None:
        async with admission.admitted("many", "t", 10 * SHORT_S):
            pass

    async with AsyncExitStack() as held:
        waiting = await full(admission, held)
        with pytest.raises(Busy):
            await held.enter_async_context(admission.admitted("many", "t", SHORT_S))
        waiting.append(asyncio.create_task(patient()))
        await asyncio.sleep(0)
        assert not waiting[-1].done()
    await asyncio.gather(*waiting)  # there is room now


async def test_fewer_are_let_in_while_the_event_loop_is_late() -> None:
    """G6: what runs already is brought to its end first."""
    admission, loop = Admission(), asyncio.get_running_loop()
    running = asyncio.create_task(admission.run())
    await asyncio.sleep(0)
    for _ in range(MOST):
        until = loop.time() + 2 * LAG_S
        while loop.time() < until:
            pass  # the loop does not come round
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if admission.at_a_time == FEWEST:
            break
    assert admission.at_a_time == FEWEST
    await eventually(lambda: admission.at_a_time == MOST)
    running.cancel()


@pytest.mark.parametrize(
    ("plan", "layout"),
    [
        (Plan(argument={}, partition_count=1), 1),
        (Plan(argument={}, dynamic=True), 2),
        (Plan(argument={}, partition_count=1, layout=3), 3),
        (Plan(argument={}, dynamic=True, layout=3), 3),
    ],
)
def test_a_record_says_which_versions_can_carry_it_out(plan: Plan, layout: int) -> None:
    """D3."""
    arg = operation_arg(
        Registry(()).get("noop"),
        plan,
        REQUEST.table,
        FollowUpArg(type="noop"),
        instance=1,
        request=StartRequest(table="t", type="noop", run="r", digest="d"),
        started_at=0.0,
        started_by="",
    )
    assert arg.version == layout
