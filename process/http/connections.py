"""Connections over HTTP: few of each address, none that is silent or slow, and room for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0
"""Seconds that a connection has to say what it wants, whole."""

ANSWER_S = 180.0
"""Seconds in which a request must be answered, and the answer taken."""

MAX_HEADER_BYTES = 16 << 10


class Visitor(H11Protocol):
    """A connection that is closed when it keeps others out.

    Where there is no room for another one, that one goes which has been silent for the longest time. So
    metrics are read however many connections somebody holds open.
    """

    most: ClassVar[int] = 256
    """Connections of all addresses; of one, a quarter of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._since = self.loop.time()
        self.app_state = {**self.app_state, "since": self._since, "certificate": _certificate(transport)}
        self._limit: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, Visitor) and other is not self]
        same_host = [other for other in others if other._host == self._host]
        for group, most in ((same_host, self.most // 4), (others, self.most)):
            if len(group) >= most:
                (_longest_idle(group) or self)._leave()
        self._expect(HEADER_S)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.transport.is_closing():
            self._expect(ANSWER_S)

    def send_400_response(self, msg: str) -> None:
        if not self._idle:
            # It is the request under way that is broken: its handler learns that the connection is gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        state, bare = self.conn.our_state, not self._idle and self.scope["method"] == "HEAD"
        if state is h11.IDLE or (state is h11.SEND_RESPONSE and not bare):
            super().send_400_response(msg)
        else:
            self._leave()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        self._expect(HEADER_S)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _idle(self) -> bool:
        cycle: Any = self.cycle  # none yet before the first request
        return cycle is None or cycle.response_complete

    def _expect(self, within_s: float) -> None:
        """Let it go unless something has happened within so many seconds."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(within_s, self._leave)

    def _leave(self) -> None:
        # What it has not read yet would keep a connection that is only closed.
        self.connections.discard(self)
        self.transport.abort()


def _certificate(transport: asyncio.Transport) -> bytes | None:
    """What a client has shown, if anything: DER, verified."""
    tls = transport.get_extra_info("ssl_object")
    return tls.getpeercert(binary_form=True) if tls is not None else None


def visitors(most: int) -> type[Visitor]:
    """Of a server that has room for so many."""
    return type("Visitor", (Visitor,), {"most": most})


def _longest_idle(visitors: Iterable[Any]) -> Any:
    idle = (visitor for visitor in visitors if visitor._idle)
    return min(idle, key=lambda visitor: visitor._since, default=None)
