"""Ends of operations from memory: a caller gets the end of an operation that is led here, without etcd."""

import asyncio

from distop.coordinator.state.caches import REMEMBERED, RecentResults
from distop.metastore.etcd.txn import KeyValue

KEY = b"p.t.history.noop.1"
END = KeyValue(KEY, b"{}", 7, 7)


async def _soon(ends: RecentResults, *, keys: int = 1) -> list[asyncio.Task[KeyValue | None]]:
    waiting = [asyncio.create_task(ends.within(KEY, 10.0)) for _ in range(keys)]
    await asyncio.sleep(0)
    return waiting


async def test_all_who_wait_hear_of_an_end() -> None:
    ends = RecentResults()
    ends.lead(KEY)
    waiting = await _soon(ends, keys=3)
    ends.ended(END)
    assert await asyncio.gather(*waiting) == [END] * 3
    assert await ends.within(KEY, 10.0) == END, "who asks late hears of it, too"


async def test_a_wait_may_begin_before_the_leader_knows_of_the_start() -> None:
    ends = RecentResults()
    ends.started(b"p.t.history.", KEY, 6)
    assert await ends.within(KEY, 10.0) is None, "nobody leads its table here"
    ends.follow_table(b"p.t.history.", 5)
    ends.started(b"p.t.history.", KEY, 6)
    (waiting,) = await _soon(ends)
    ends.lead(KEY)
    ends.ended(END)
    ends.started(b"p.t.history.", KEY, 6)  # whoever started it comes round late
    assert await waiting == await ends.within(KEY, 10.0) == END


async def test_nobody_waits_for_an_end_that_came_before_the_table_was_listed_again() -> None:
    """Such as one whose start had no reply at first: its leader lost its watch, or began, after its end."""
    ends = RecentResults()
    ends.follow_table(b"p.t.history.", 8)
    ends.started(b"p.t.history.", KEY, 7)
    assert await asyncio.wait_for(ends.within(KEY, 60.0), 10) is None
    ends.started(b"p.t.history.", KEY, 9)
    (waiting,) = await _soon(ends)
    ends.ended(END)
    assert await waiting == END


async def test_only_so_many_ends_are_remembered() -> None:
    ends = RecentResults()
    keys = [b"p.t.history.noop.%d" % number for number in range(REMEMBERED + 1)]
    for key in keys:
        ends.lead(key)
        ends.ended(KeyValue(key, b"{}", 7, 7))
    assert await ends.within(keys[0], 10.0) is None
    assert await ends.within(keys[1], 10.0) is not None


async def test_an_operation_led_elsewhere_is_not_waited_for() -> None:
    ends = RecentResults()
    assert await ends.within(KEY, 10.0) is None
    ends.ended(END)
    assert await ends.within(KEY, 10.0) is None


async def test_a_wait_that_is_not_notified_in_time_has_no_result() -> None:
    ends = RecentResults()
    ends.lead(KEY)
    assert await ends.within(KEY, 0.0) is None
    ends.ended(END)  # nobody is left to be told


async def test_a_wait_that_is_cancelled_is_forgotten() -> None:
    ends = RecentResults()
    ends.lead(KEY)
    gone, stays = await _soon(ends, keys=2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    ends.ended(END)
    assert await stays == END


async def test_a_leader_that_leaves_lets_all_look_elsewhere() -> None:
    ends = RecentResults()
    ends.lead(KEY)
    ends.lead(b"p.u.history.noop.1")
    (waiting,) = await _soon(ends)
    ends.lead(b"p.t.history.noop.2")
    ends.ended(KeyValue(b"p.t.history.noop.2", b"{}", 7, 7))
    ends.leave(b"p.t.history.")
    assert await waiting is None
    assert await ends.within(b"p.t.history.noop.2", 10.0) is None
    assert await ends.within(KEY, 10.0) is None
    other = asyncio.create_task(ends.within(b"p.u.history.noop.1", 10.0))
    await asyncio.sleep(0)
    ends.ended(KeyValue(b"p.u.history.noop.1", b"{}", 8, 8))
    assert (await other) is not None
