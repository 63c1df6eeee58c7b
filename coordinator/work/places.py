"""Slots for calls that may hang: a limited number, in turns between tables; slow calls release theirs.

A call that has run for a while gives its slot to the next one and continues without one, so hanging calls
delay others only for moments. The number of running calls, per table and in all, is still bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import suppress

from distop.errors import Busy


class Slot:
    """What one call holds from :meth:`Places.enter` until it has really ended."""

    def __init__(self, places: Places, key: str) -> None:
        self._places, self.key = places, key
        self.counted = True
        """Whether it counts as running at a time; a slow call no longer does."""
        self._aside = asyncio.get_running_loop().call_later(places.patience_s, self._step_aside)
        self._left = False

    def _step_aside(self) -> None:
        self.counted = False
        self._places.active -= 1
        self._places.admit()

    def leave(self) -> None:
        """The call has ended; idempotent."""
        if self._left:
            return
        self._left = True
        self._aside.cancel()
        if self.counted:
            self._places.active -= 1
        self._places.left(self)


class Places:
    """The slots of one event loop.

    Parameters
    ----------
    at_a_time:
        Concurrent calls, without those that have run for ``patience_s`` seconds.
    most:
        All running calls.
    each:
        All running calls of one table.
    waiting, waiting_in_all:
        Calls that wait for a slot, of one table and of all; more are refused.
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
        self._held_in_all = 0
        self._queues: OrderedDict[str, deque[asyncio.Future[Slot]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return sum(map(len, self._queues.values()))

    @property
    def queues(self) -> int:
        """Tables with waiting calls."""
        return len(self._queues)

    async def enter(self, key: str, *, waiting: int | None = None) -> Slot:
        """A slot for a call of this table, when it is its turn.

        Raises :class:`~distop.errors.Busy` when too many calls of the table wait already, or too many of all
        tables.
        """
        if not self._queues and self._has_place(key):
            return self._taken(key)
        if self.waiting >= self._max_waiting_in_all:
            raise Busy(f"{self.waiting:,} calls wait already")
        queue = self._queues.setdefault(key, deque())
        if len(queue) >= (self._max_waiting if waiting is None else waiting):
            raise Busy(f"{len(queue)} calls of table {key!r} wait already")
        turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self.admit()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                turn.result().leave()  # its turn came together with the cancellation
            with suppress(ValueError):
                queue.remove(turn)
            raise

    def left(self, slot: Slot) -> None:
        """A slot is free again."""
        self._held[slot.key] -= 1
        self._held_in_all -= 1
        if not self._held[slot.key]:
            del self._held[slot.key]
        self.admit()

    def _has_place(self, key: str) -> bool:
        """Whether a call of this table may begin, if it is its turn."""
        free = self.active < self.at_a_time and self._held_in_all < self._most
        return free and self._held.get(key, 0) < self._each

    def _taken(self, key: str) -> Slot:
        self._held[key] += 1
        self._held_in_all += 1
        self.active += 1
        return Slot(self, key)

    def admit(self) -> None:
        """Give free slots to waiting calls: one of each table, and again."""
        passed_over = 0
        while self._queues and passed_over < len(self._queues):
            if self.active >= self.at_a_time or self._held_in_all >= self._most:
                return
            key, queue = next(iter(self._queues.items()))
            while queue and queue[0].done():
                del queue[0]  # its caller no longer waits
            if not queue:
                del self._queues[key]
                continue
            self._queues.move_to_end(key)
            if self._held[key] >= self._each:
                passed_over += 1
                continue
            passed_over = 0
            queue.popleft().set_result(self._taken(key))
