"""Limits on the concurrent calls of one caller, and of all callers; a call beyond them must be retried
later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc.aio
from cachetools import LRUCache

from distop.errors import RETRY_AFTER, Busy
from distop.proto.addresses import plain_address

CONNECTIONS = 1000
"""Connections to the gRPC port; more are closed at once."""

IDLE_S = 300
"""Seconds after which a connection without a call is closed."""

OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS),
    ("grpc.max_connection_idle_ms", IDLE_S * 1000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Detects a peer that vanished.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

_CALLERS = 4096
"""Most callers whose starts are remembered, the latest ones."""

_SOON_S = 0.5
"""Retry delay for callers with too many concurrent calls."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for callers of one coordinator. One connection carries 1,000 concurrent calls in any case."""

    calls_each: int = 1000
    """Concurrent calls of one caller."""
    calls: int = 4000
    """Concurrent calls of all callers."""
    streams_each: int = 2000
    """Streams of one caller: followed operations and audit trails, and diagnoses."""
    streams: int = 8000
    """Streams of all callers."""
    starts_per_s: float = 500.0
    """Operations, previews, batches and tables that one caller may begin per second on average; twice as many
    at once."""
    stream_s: float = 3600.0
    """Seconds after which a stream is ended; clients then resume it."""
    again_s: float = 30.0
    """Seconds between checks whether the caller of a stream is still allowed to see it."""


class Callers:
    """The calls in progress of one coordinator's callers. Belongs to one event loop."""

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._under_way: dict[str, Counter[str]] = {"calls": Counter(), "streams": Counter()}
        self._all = Counter[str]()
        # Of each caller: how many starts it has left, and as of when.
        self._starts: LRUCache[str, tuple[float, float]] = LRUCache(_CALLERS)

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """Count a call of this caller while it runs. Raises :class:`~distop.errors.Busy`."""
        with self._held("calls", caller, self.limits.calls_each, self.limits.calls):
            yield

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """Count a stream of this caller while it is open. Raises :class:`~distop.errors.Busy`."""
        with self._held("streams", caller, self.limits.streams_each, self.limits.streams):
            yield

    def start(self, caller: str) -> None:
        """Count a start. Raises :class:`~distop.errors.Busy` when the caller has recently started too
        many."""
        rate, now = self.limits.starts_per_s, self._clock()
        most = 2 * rate
        left, at = self._starts.get(caller, (most, now))
        left = min(most, left + (now - at) * rate)
        allowed = left >= 1.0
        self._starts[caller] = left - allowed, now
        if not allowed:
            raise _busy(f"{caller} sends more than {rate:g} starts a second", (1.0 - left) / rate)

    @contextmanager
    def _held(self, limit: str, caller: str, each: int, most: int) -> Iterator[None]:
        held = self._under_way[limit]
        if held[caller] >= each:
            raise _busy(f"{each:,} {limit} of {caller} are in progress, the limit for one caller", _SOON_S)
        if self._all[limit] >= most:
            raise _busy(f"{most:,} {limit} are in progress here, the limit", _SOON_S)
        held[caller] += 1
        self._all[limit] += 1
        try:
            yield
        finally:
            self._all[limit] -= 1
            held[caller] -= 1
            if not held[caller]:
                del held[caller]


def _busy(why: str, after_s: float) -> Busy:
    return Busy(why, details={RETRY_AFTER: f"{max(after_s, 0.01):.2f}"})


def address_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The address of a call, without its port."""
    kind, _, rest = context.peer().partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return plain_address(unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])
