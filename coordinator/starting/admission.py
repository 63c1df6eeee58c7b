"""Admits starts under overload, fairly between callers; callers beyond the limits must retry later.

The more the event loop lags, the fewer starts are admitted at a time. So running operations finish first, and
the throughput under any load is that of the best case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

from distop.coordinator.work.places import Places
from distop.errors import RETRY_AFTER, Busy, DeadlineExceeded

MOST, FEWEST = 32, 2
"""Concurrent starts, at most and under the heaviest load. Slow ones are not counted."""

EACH_TABLE = 4
"""Concurrent starts of one table: they compete for its next instance."""

MAX_WAITING = 1024
"""Waiting starts; more are refused."""

FEWEST_WAITING, MOST_WAITING = 64, 384
"""Waiting starts of one caller or table: as many as are served in half of their time, within bounds. Waiting
costs nothing, a refusal and a retry cost both sides. Together with calls that wait for ends they must be
fewer than a connection carries: gRPC refuses more, without a retry delay."""

_MANY = 1 << 20

TICK_S, LAG_S = 0.05, 0.1
"""How often the lag of the event loop is measured, and how large it may be."""

SOONEST_S, LATEST_S = 0.1, 5.0
"""Retry delay of refused starts."""


class Admission:
    """The admission of one coordinator."""

    def __init__(self) -> None:
        self._callers = Places(at_a_time=MOST, most=_MANY, each=_MANY)
        self._tables = Places(at_a_time=_MANY, most=_MANY, each=EACH_TABLE)
        self._served = 0
        self._per_s = float(MOST)
        self._booked_until = 0.0

    @property
    def at_a_time(self) -> int:
        """How many are admitted at a time at present."""
        return self._callers.at_a_time

    async def run(self) -> None:
        """Adapt the number of concurrent starts to the event loop's lag."""
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
        """Admit a start of this caller on this table when it is its turn, and the load allows it.

        Raises
        ------
        Busy
            Too many wait already; contains a retry delay.
        DeadlineExceeded
            Its turn did not come in time.
        """
        with ExitStack() as held:
            try:
                if self._waiting >= MAX_WAITING:
                    raise Busy
                async with asyncio.timeout(limit_s):
                    # Starts of a table that wait for each other take no room from the caller's others.
                    room = self._room(limit_s)
                    held.callback((await self._tables.enter(table, waiting=room)).leave)
                    held.callback((await self._callers.enter(caller, waiting=room)).leave)
            except Busy:
                raise self._come_back() from None
            except TimeoutError:
                raise DeadlineExceeded(
                    f"too many starts wait here: this one was not admitted within {limit_s:.0f} s"
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
        """Each gets its own retry delay: when those before it will have been served, at the present pace."""
        now = asyncio.get_running_loop().time()
        self._booked_until = max(self._booked_until, now) + 1 / self._per_s
        after = self._booked_until - now + self._waiting / self._per_s
        after = min(max(after, SOONEST_S), LATEST_S)
        return Busy("too many starts wait here", details={RETRY_AFTER: f"{after:.2f}"})
