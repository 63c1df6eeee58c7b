"""Which starts are let in when more come than a coordinator can serve, fair between callers; others return.

The later its event loop comes round, the fewer are let in at a time. So what runs already is brought to its
end first, and as much is finished under any load as at its best.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

from distop.coordinator.work.places import Places
from distop.errors import Busy, DeadlineExceeded
from distop.errors.base import RETRY_AFTER

MOST, FEWEST = 32, 2
"""Starts let in at a time, at the most and under the heaviest load. One that takes long is not counted."""

EACH_TABLE = 4
"""Starts of one table at a time: they take its next instance from each other."""

MAX_WAITING = 1024
"""Starts that wait to be let in; more are sent away."""

FEWEST_WAITING, MOST_WAITING = 64, 384
"""Those of one caller or table: as many as are served in half of the time that they have, within bounds. To
wait costs nothing, to be sent away and to come back costs both sides. With those who wait for ends they must
be fewer than a connection carries: what is beyond that gRPC refuses, and nobody is told when to come back."""

_MANY = 1 << 20

TICK_S, LAG_S = 0.05, 0.1
"""How often is looked whether the event loop comes round, and how late it may be."""

SOONEST_S, LATEST_S = 0.1, 5.0
"""When those who are sent away are to come back."""


class Admission:
    """Of one coordinator."""

    def __init__(self) -> None:
        self._callers = Places(at_a_time=MOST, most=_MANY, each=_MANY)
        self._tables = Places(at_a_time=_MANY, most=_MANY, each=EACH_TABLE)
        self._served = 0
        self._per_s = float(MOST)
        self._booked_until = 0.0

    @property
    def at_a_time(self) -> int:
        """How many are let in at a time at present."""
        return self._callers.at_a_time

    async def run(self) -> None:
        """Let in as many at a time as the event loop bears."""
        loop = asyncio.get_running_loop()
        measured_at, served = loop.time(), 0
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            places, now = self._callers, loop.time()
            if now - due > LAG_S:
                places.at_a_time = max(FEWEST, places.at_a_time // 2)
            elif places.at_a_time < MOST:
                places.at_a_time += 1
                places.admit()
            if now - measured_at >= 1.0:
                pace = (self._served - served) / (now - measured_at)
                self._per_s = max((self._per_s + pace) / 2, 1.0)
                measured_at, served = now, self._served

    @asynccontextmanager
    async def admitted(self, caller: str, table: str, limit_s: float) -> AsyncGenerator[None]:
        """Let a start of this caller on this table in when it is its turn, and the load allows it.

        Raises
        ------
        Busy
            Too many wait already; says when to come back.
        DeadlineExceeded
            Its turn did not come in time.
        """
        with ExitStack() as held:
            try:
                if self._waiting >= MAX_WAITING:
                    raise Busy
                async with asyncio.timeout(limit_s):
                    # Those of a table whose starts wait for each other take no room of its caller's others.
                    room = self._room(limit_s)
                    held.callback((await self._tables.enter(table, waiting=room)).leave)
                    held.callback((await self._callers.enter(caller, waiting=room)).leave)
            except Busy:
                raise self._come_back() from None
            except TimeoutError:
                raise DeadlineExceeded(
                    f"too many starts wait here: not let in within {limit_s:.0f} s"
                ) from None
            held.callback(self._count)
            yield

    def _room(self, limit_s: float) -> int:
        served = self._per_s * limit_s / 2 / max(self._callers.queues, 1)
        return int(min(max(served, FEWEST_WAITING), MOST_WAITING))

    @property
    def _waiting(self) -> int:
        return self._callers.waiting + self._tables.waiting

    def _count(self) -> None:
        self._served += 1

    def _come_back(self) -> Busy:
        """Each is told a moment of its own: when those before it will have been served, at this pace."""
        now = asyncio.get_running_loop().time()
        self._booked_until = max(self._booked_until, now) + 1 / self._per_s
        after = self._booked_until - now + self._waiting / self._per_s
        after = min(max(after, SOONEST_S), LATEST_S)
        return Busy("more starts wait here than are let in", details={RETRY_AFTER: f"{after:.2f}"})
