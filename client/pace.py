"""Limits a client's concurrent calls of one kind: fewer while the service refuses some of them."""

from __future__ import annotations

import asyncio

from distop.errors import Busy

MOST = 128
"""Concurrent calls: enough to keep a coordinator busy. Together with streams that wait for ends they stay
well below what a connection carries: gRPC refuses more, without a retry
delay."""


class Pace:
    """The pace of one client and one kind of call; belongs to one event loop.

    After a refusal the limit is the number of calls that were not refused, and it grows by one after each
    successful round. The others wait here, where it costs nothing: a refusal and a retry cost both sides
    about as much as an answer. The last caller goes first: when more come than can be served, the first ones
    would hardly have time left, and all would be late.
    """

    def __init__(self) -> None:
        self._limit = float(MOST)
        self._under_way = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def enter(self, seconds: float) -> None:
        """Wait until a call may be made; :meth:`leave` must follow.

        Raises :class:`~distop.errors.Busy` if that takes longer.
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
                self.leave()  # its turn came together with the timeout
            if isinstance(error, TimeoutError):
                raise Busy("more calls of this client wait than the service takes") from None
            raise

    def leave(self, *, refused: bool = False) -> None:
        """A call has ended; ``refused``: the service refused it."""
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
