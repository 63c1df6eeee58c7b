"""The audit trail is watched once for all followers, and each follower gets every entry once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from distop.coordinator.views.trail import Trail
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.audit_feed import Cursor
from support.etcd.counting import Counting
from support.waiting import eventually

FOLLOWERS = 20


class Follower:
    """Hears the trail, unless it is held up."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.at: Cursor | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def listen(self, trail: Trail, after: Cursor | None) -> None:
        async with aclosing(trail.follow(after)) as changes:
            async for entries, at in changes:
                self.heard += [entry.record.action for entry in entries]
                self.at = at
                await self.goes_on.wait()


@asynccontextmanager
async def following(trail: Trail, count: int, after: Cursor | None = None) -> AsyncIterator[list[Follower]]:
    followers = [Follower() for _ in range(count)]
    tasks = [asyncio.create_task(one.listen(trail, after)) for one in followers]
    try:
        yield followers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def write(client: Counting, *actions: str) -> None:
    for action in actions:
        put = audit_put(client.keyspace.table("t"), action, by="", target="t", at=time.time())
        await client.put(put.key, put.value)


async def all_stand(followers: list[Follower]) -> bool:
    return all(one.at is not None for one in followers)


async def all_have(followers: list[Follower], wanted: list[str]) -> bool:
    return all(one.heard == wanted for one in followers)


async def test_many_followers_take_one_watch(counting: Counting) -> None:
    """S6, G4"""
    trail, wanted = Trail(counting), [f"act{number}" for number in range(50)]
    async with following(trail, FOLLOWERS) as followers:
        assert await eventually(lambda: all_stand(followers))
        await write(counting, *wanted)
        assert await eventually(lambda: all_have(followers, wanted))
        assert counting.watches == 1
        # Nobody is heard of twice, and one that comes now hears what is new.
        async with following(trail, 1) as late:
            assert await eventually(lambda: all_stand(late))
            await write(counting, "new")
            assert await eventually(lambda: all_have(late, ["new"]))
        assert counting.watches == 1
        assert await eventually(lambda: all_have(followers, [*wanted, "new"]))


async def test_who_is_slow_or_begins_further_back_catches_up(counting: Counting) -> None:
    """S6: with more entries than are remembered, and also when etcd has forgotten their history."""
    trail, start = Trail(counting, remembered=5), Cursor(await counting.revision())
    await counting.put(counting.keyspace.table("t").entry, b"{}")
    await write(counting, "before")
    async with following(trail, 1, start) as [slow]:
        assert await eventually(lambda: all_have([slow], ["before"]))
        slow.goes_on.clear()
        first, then = [f"a{number}" for number in range(20)], [f"b{number}" for number in range(20)]
        async with following(trail, 1) as [quick]:
            assert await eventually(lambda: all_stand([quick]))
            await write(counting, *first)
            await counting.compact(await counting.revision())
            await write(counting, *then)
            assert await eventually(lambda: all_have([quick], [*first, *then]))
            slow.goes_on.set()
            assert await eventually(lambda: all_have([slow], ["before", *first, *then]))
            async with following(trail, 1, start) as [back]:
                assert await eventually(lambda: all_have([back], ["before", *first, *then]))
        await write(counting, "last")
        assert await eventually(lambda: all_have([slow], ["before", *first, *then, "last"]))


async def test_nobody_follows_and_nothing_is_watched(counting: Counting) -> None:
    """G4: the next one begins anew."""
    trail = Trail(counting)
    for number in range(2):
        async with following(trail, 2) as followers:
            assert await eventually(lambda: all_stand(followers))
            await write(counting, "act")
            assert await eventually(lambda: all_have(followers, ["act"]))
        assert counting.watches == number + 1
