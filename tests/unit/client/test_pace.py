"""How many calls a client has under way while a service sends some of them away."""

import asyncio

import pytest

from distop.client import AsyncClient
from distop.client.pace import MOST, Pace
from distop.errors import Busy
from distop.proto import distop_pb2 as pb
from support.services.fake_service import Context, FakeService, serving
from support.waiting import eventually


async def let_in(pace: Pace, count: int) -> list[asyncio.Task[None]]:
    """So many calls that want to be made, the first one first."""
    calls = [asyncio.create_task(pace.enter(60.0)) for _ in range(count)]
    await asyncio.sleep(0)
    return calls


def made(calls: list[asyncio.Task[None]]) -> list[int]:
    return [number for number, call in enumerate(calls) if call.done()]


async def end(*calls: asyncio.Task[None]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_no_more_than_the_most_are_under_way_and_the_latest_goes_next() -> None:
    """G6"""
    pace = Pace()
    calls = await let_in(pace, MOST + 3)
    assert made(calls) == list(range(MOST))
    pace.leave()
    await asyncio.sleep(0)
    assert made(calls) == [*range(MOST), MOST + 2]
    await end(*calls)


async def test_after_a_refusal_as_many_go_on_as_were_not_refused() -> None:
    """G6"""
    pace = Pace()
    await let_in(pace, 10)
    for _ in range(6):
        pace.leave(refused=True)  # four are left
    calls = await let_in(pace, 3)
    assert made(calls) == []
    pace.leave()
    await asyncio.sleep(0)
    assert made(calls) == [2]
    await end(*calls)


async def test_there_is_room_again_once_nobody_is_refused() -> None:
    pace = Pace()
    await let_in(pace, 2)
    pace.leave(refused=True)
    pace.leave(refused=True)
    for _ in range(MOST):
        await let_in(pace, 1)
        pace.leave()
    assert made(await let_in(pace, MOST)) == list(range(MOST))


async def test_a_cancelled_call_frees_its_place() -> None:
    pace = Pace()
    await let_in(pace, MOST)
    waiting, last = await let_in(pace, 2)
    waiting.cancel()
    pace.leave()
    last.cancel()  # as its turn comes
    await end(waiting, last)
    assert made(await let_in(pace, 2)) == [0]


async def test_a_call_that_waits_past_its_deadline_fails_as_busy() -> None:
    pace = Pace()
    await let_in(pace, MOST)
    with pytest.raises(Busy):
        await pace.enter(0.01)
    pace.leave()
    assert made(await let_in(pace, 2)) == [0]


class Slow(FakeService):
    """Answers no start before it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.came = 0

    async def StartOperation(self, request: pb.StartOperationRequest, context: Context) -> pb.Operation:
        self.came += 1
        await self.go_on.wait()
        return await super().StartOperation(request, context)


async def test_starts_of_a_client_wait_at_the_client() -> None:
    """G6"""
    slow = Slow()
    async with serving(slow) as address, AsyncClient(address, timeout_s=60.0) as client:
        starts = [asyncio.create_task(client.start("t", "noop")) for _ in range(2 * MOST)]
        await eventually(lambda: slow.came == MOST)
        await client.members()  # other calls do not wait
        assert slow.came == MOST
        slow.go_on.set()
        names = {one.name for one in await asyncio.gather(*starts)}
    assert len(names) == 2 * MOST
