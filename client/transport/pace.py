"""How many calls of one kind a client makes at a time: fewer while the service sends some of them away."""

from __future__ import annotations

import asyncio

from distop.errors import Busy

MOST = 128
"""Calls under way at a time: enough to keep a coordinator busy. With the streams of those who wait for ends
they stay well below what a connection carries, beyond which gRPC refuses calls without a word when to come
back."""


class Pace:
    """Of one client and one kind of call; belongs to one event loop.

    Once a call is sent away there may be as many as were not, and one more after each round that goes well.
    The others wait here, where it costs nothing: to be sent away and to come back costs both sides about as
    much as to be served. Who came last goes first: when more come than can be served, those who have waited
    longest would hardly have time left, and all would be late.
    """

    def __init__(self) -> None:
        self._limit = float(MOST)
        self._under_way = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def enter(self, seconds: float) -> None:
        """Wait until a call may be made; :meth:`leave` is to follow.

        Raises :class:`~distop.errors.Busy` when it may not be within these seconds.
        """
        if self._under_way + 1 <= self._limit:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled():
                self.leave()  # its turn came along with the end
            if isinstance(error, TimeoutError):
                raise Busy("more calls of this client wait than the service takes") from None
            raise

    def leave(self, *, refused: bool = False) -> None:
        """A call has ended; ``refused``: it was sent away."""
        self._under_way -= 1
        if refused:
            self._limit = max(self._under_way, 1.0)
        else:
            self._limit = min(self._limit + (1 / self._limit if self._waiting else 1), MOST)
        while self._waiting and self._under_way + 1 <= self._limit:
            turn, _ = self._waiting.popitem()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)
