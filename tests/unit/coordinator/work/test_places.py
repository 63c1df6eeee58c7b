"""Slots are given in turns between tables, and slow calls release theirs."""

from __future__ import annotations

import asyncio

import pytest

from distop.coordinator.work.places import Places, Slot
from distop.errors import Busy
from support.waiting import eventually


async def entered(places: Places, *keys: str) -> list[asyncio.Task[Slot]]:
    """Calls of these tables, which have asked for their places in this order."""
    asking = []
    for key in keys:
        asking.append(asyncio.create_task(places.enter(key)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return asking


async def test_tables_take_turns_however_many_calls_one_of_them_has() -> None:
    """G5."""
    places = Places(at_a_time=1, each=1, patience_s=60.0)
    first, *others = await entered(places, *["busy"] * 50, "quiet")
    (await first).leave()
    done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    quiet = others[-1]
    assert done <= {others[0], quiet}
    done.pop().result().leave()
    assert (await quiet).key == "quiet"
    for asking in others:
        asking.cancel()


async def test_a_call_that_takes_long_gives_its_place_to_others_up_to_a_bound() -> None:
    """G5."""
    places = Places(at_a_time=1, most=3, each=3, patience_s=0.0)
    asking = await entered(places, "a", "b", "c", "d")
    await eventually(lambda: sum(one.done() for one in asking) == 3)
    assert not asking[3].done()
    asking[0].result().leave()
    assert (await asking[3]).key == "d"


async def test_what_hangs_for_one_table_leaves_room_for_the_others() -> None:
    """G5."""
    places = Places(at_a_time=1, each=2, patience_s=0.0)
    asking = await entered(places, *["hangs"] * 9, "other")
    assert (await asking[-1]).key == "other"
    assert sum(one.done() for one in asking[:-1]) <= 2
    for one in asking:
        one.cancel()


async def test_no_more_wait_than_may_however_many_tables_they_are_of() -> None:
    """G6."""
    places = Places(at_a_time=1, waiting=2, waiting_in_all=3, patience_s=60.0)
    asking = await entered(places, "a", "b", "c", "d")
    with pytest.raises(Busy, match="3 calls wait already"):
        await places.enter("e")
    (await asking[0]).leave()
    (place,) = await entered(places, "e")
    for one in asking[1:]:
        (await one).leave()
    assert (await place).key == "e"


async def test_a_call_that_is_given_up_leaves_no_trace() -> None:
    """Also when its turn comes along with the cancellation."""
    places = Places(at_a_time=1, each=1, waiting=1, patience_s=60.0)
    first, second = await entered(places, "t", "t")
    with pytest.raises(Busy):
        await places.enter("t")
    second.cancel()
    await asyncio.wait({second})
    (third,) = await entered(places, "t")
    first.result().leave()  # the turn of the third
    third.cancel()
    await asyncio.wait({third})
    assert (await places.enter("u")).key == "u"
    assert places.active == 1
