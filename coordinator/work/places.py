"""Places for what may hang: so many at a time, in turns between tables, and none kept by who takes long.

A call that has run for a while gives its place to the next one and goes on beside it, so that calls that hang
delay others by moments. How many of a table run, and how many there are in all, is bounded all the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import suppress

from distop.errors import Busy


class Place:
    """What one call holds from :meth:`Places.enter` until it has really ended."""

    def __init__(self, places: Places, key: str) -> None:
        self._places, self.key = places, key
        self.counted = True
        """Whether it is one of those at a time; not any more once it has run for long."""
        self._aside = asyncio.get_running_loop().call_later(places.patience_s, self._step_aside)
        self._left = False

    def _step_aside(self) -> None:
        self.counted = False
        self._places.active -= 1
        self._places.admit()

    def leave(self) -> None:
        """The call has ended; safe to call twice."""
        if self._left:
            return
        self._left = True
        self._aside.cancel()
        if self.counted:
            self._places.active -= 1
        self._places.left(self)


class Places:
    """Of one event loop.

    Parameters
    ----------
    at_a_time:
        Calls that run side by side, without those that have run for ``patience_s`` seconds.
    most:
        Calls that run, with those.
    each:
        Calls of one table that run, with those.
    waiting, waiting_in_all:
        Calls that wait for a place, of one table and of all; more are refused.
    """

    def __init__(
        self,
        *,
        at_a_time: int = 8,
        most: int = 64,
        each: int = 4,
        waiting: int = 256,
        waiting_in_all: int = 2048,
        patience_s: float = 0.5,
    ) -> None:
        self.patience_s, self.at_a_time = patience_s, at_a_time
        self.active = 0
        self._most, self._each = most, each
        self._max_waiting, self._max_waiting_in_all = waiting, waiting_in_all
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[Place]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return sum(map(len, self._queues.values()))

    @property
    def queues(self) -> int:
        """Tables whose calls wait."""
        return len(self._queues)

    async def enter(self, key: str, *, waiting: int | None = None) -> Place:
        """A place for a call of this table, when it is its turn.

        Raises :class:`~distop.errors.Busy` when so many of the table wait already, by default those of any,
        or too many of all tables.
        """
        if self.waiting >= self._max_waiting_in_all:
            raise Busy(f"{self.waiting:,} calls wait already")
        queue = self._queues.setdefault(key, deque())
        if len(queue) >= (self._max_waiting if waiting is None else waiting):
            raise Busy(f"{len(queue)} calls of table {key!r} wait already")
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self.admit()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                turn.result().leave()  # its turn came along with the cancellation
            with suppress(ValueError):
                queue.remove(turn)
            raise

    def left(self, place: Place) -> None:
        """A place is free again."""
        self._held[place.key] -= 1
        if not self._held[place.key]:
            del self._held[place.key]
        self.admit()

    def admit(self) -> None:
        """Give free places to those whose turn it is: one of each table, and again."""
        passed_over = 0
        while self._queues and passed_over < len(self._queues):
            if self.active >= self.at_a_time or self._held.total() >= self._most:
                return
            key, queue = next(iter(self._queues.items()))
            while queue and queue[0].done():
                del queue[0]  # nobody waits for it any more
            if not queue:
                del self._queues[key]
                continue
            self._queues.move_to_end(key)
            if self._held[key] >= self._each:
                passed_over += 1
                continue
            passed_over = 0
            self._held[key] += 1
            self.active += 1
            queue.popleft().set_result(Place(self, key))
