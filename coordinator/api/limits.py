"""How much one caller may ask for at a time, and all callers together; more is sent away for a moment."""

from __future__ import annotations

import functools
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc.aio

from distop.errors import Busy
from distop.errors.base import RETRY_AFTER

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
    # A peer that vanished without a word is noticed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

_CALLERS = 4096
"""Callers whose starts are remembered, the latest ones."""

_SOON_S = 0.5
"""When those are to come back who have too many calls under way."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What callers of one coordinator may have. One connection carries 1,000 calls at a time in any case."""

    calls_each: int = 1000
    """Calls of one caller under way."""
    calls: int = 4000
    """Calls of all callers under way."""
    streams_each: int = 2000
    """Streams of one caller: operations and audit trails that it follows, diagnoses."""
    streams: int = 8000
    """Streams of all callers."""
    starts_per_s: float = 500.0
    """Operations, previews, batches and tables that one caller may begin each second on average; twice as
    many at once."""
    stream_s: float = 3600.0
    """Seconds after which a stream is ended; clients then go on where they were."""
    again_s: float = 30.0
    """Seconds after which it is looked again whether the caller of a stream is known and may see it."""


class Callers:
    """What the callers of one coordinator have under way. Belongs to one event loop."""

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._under_way: dict[str, Counter[str]] = {"calls": Counter(), "streams": Counter()}
        self._all = Counter[str]()
        # Of each caller: how many starts it has left, and as of when.
        self._starts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """While a call of this caller is under way. Raises :class:`~distop.errors.Busy`."""
        with self._held("calls", caller, self.limits.calls_each, self.limits.calls):
            yield

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """While a stream of this caller is open. Raises :class:`~distop.errors.Busy`."""
        with self._held("streams", caller, self.limits.streams_each, self.limits.streams):
            yield

    def start(self, caller: str) -> None:
        """Count a start. Raises :class:`~distop.errors.Busy` when the caller has started too many lately."""
        rate, now = self.limits.starts_per_s, self._clock()
        most = 2 * rate
        left, at = self._starts.pop(caller, (most, now))
        left = min(most, left + (now - at) * rate)
        allowed = left >= 1.0
        self._starts[caller] = left - allowed, now
        if len(self._starts) > _CALLERS:
            self._starts.popitem(last=False)
        if not allowed:
            raise _busy(f"more than {rate:g} starts a second come from {caller}", (1.0 - left) / rate)

    @contextmanager
    def _held(self, what: str, caller: str, each: int, most: int) -> Iterator[None]:
        held = self._under_way[what]
        if held[caller] >= each:
            raise _busy(f"{each:,} {what} of {caller} are under way, the most for one caller", _SOON_S)
        if self._all[what] >= most:
            raise _busy(f"{most:,} {what} are under way here, which is the most", _SOON_S)
        held[caller] += 1
        self._all[what] += 1
        try:
            yield
        finally:
            self._all[what] -= 1
            held[caller] -= 1
            if not held[caller]:
                del held[caller]


def _busy(why: str, after_s: float) -> Busy:
    return Busy(why, details={RETRY_AFTER: f"{max(after_s, 0.01):.2f}"})


def address_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The address that a call comes from, without its port."""
    kind, _, rest = context.peer().partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return _plain(unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])


@functools.lru_cache(maxsize=_CALLERS)
def _plain(host: str) -> str:
    """An address as it is usually written, which IPv4 in IPv6 is not."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


def caller_of(address: str) -> str:
    """Who is counted as one caller: an address; of IPv6 a network of 64 bits, which a host may have whole."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address, 64), strict=False))
