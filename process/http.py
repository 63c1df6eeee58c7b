"""An HTTP server in the event loop of a process, and the metrics that every process serves.

Of its connections few are of each address, none is silent or slow for long, and there is room for the next
one. Its answers carry what keeps a browser in its place, and who comes by another name is turned away before
anything is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, ClassVar

import h11
import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from distop.process.tls import MAX_AGE_S, AddressInUse, Tls
from distop.proto.addresses import is_loopback


def process_registry() -> CollectorRegistry:
    """A new registry, with the metrics of every process: version, CPU, memory, descriptors."""
    registry = CollectorRegistry()
    Info("distop_build", "The version that runs", registry=registry).info({"version": version("distop")})
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def span_metric(counts: Mapping[str, int]) -> Metric:
    """The spans of traces so far, by what became of them: :attr:`~distop.process.tracing.Tracer.counts`."""
    metric = CounterMetricFamily(
        "distop_trace_spans", "Spans of traces, by what became of them", labels=["outcome"]
    )
    for outcome, count in sorted(counts.items()):
        metric.add_metric([outcome], count)
    return metric


def show_metrics(request: Request, registry: CollectorRegistry) -> Response:
    """The metrics, in the format that the scraper accepts."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": kind})


async def alive(_: Request) -> Response:
    """Whether the event loop answers. An etcd that is away is no reason to restart a process."""
    return PlainTextResponse("alive\n")


def ready(is_member: bool) -> Response:
    """Whether a process is a member, in etcd under a lease: not while it starts or ends, nor when cut off."""
    return PlainTextResponse("ready\n" if is_member else "no member\n", 200 if is_member else 503)


# Nothing from elsewhere, nothing inline: a name that got past the escaping would still do nothing.
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PIECE = 64 << 10
"""Bytes that are written at a time: the next ones once these have been taken, or nearly."""
_LAST = (b"connection", b"close")
"""Of the last answer on a connection: its client has to show its certificate again."""

_HEADERS = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    # With "no-referrer" a browser would send a form of this page with the origin "null", as a foreign one.
    (b"referrer-policy", b"same-origin"),
]


class Guard:
    """Adds the headers that keep a browser in its place, and turns away who came by another name.

    A page on loopback is requested by a name of loopback. Another name means that some web site has pointed
    its own name here (DNS rebinding) to read with the eyes of its visitors. Starlette's
    ``TrustedHostMiddleware`` does not fit: it has a fixed list of names, and it cuts ``[::1]:port`` at
    the first colon.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                old = asyncio.get_running_loop().time() - scope["state"]["since"] > MAX_AGE_S
                message["headers"] = [*message["headers"], *_HEADERS, *([_LAST] if old else [])]
            # An answer that was written as a whole would be over long before it is taken.
            body = message.get("body", b"")
            last = max(0, (len(body) - 1) // PIECE * PIECE)
            for start in range(0, last, PIECE):
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        if self._loopback_only and not self._welcome(scope):
            refusal = PlainTextResponse("this page is served to loopback names only\n", 421)
            await refusal(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _welcome(self, scope: Scope) -> bool:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        name = host if host.endswith("]") else host.rpartition(":")[0] if ":" in host else host
        return is_loopback(name)


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


log = logging.getLogger(__name__)

GRACE_S = 1


class HttpServer:
    """Serves one application.

    Parameters
    ----------
    listen:
        ``host:port``; port 0 picks a free one, which :attr:`address` then has.
    option:
        Of the command line, which says where to listen.
    connections:
        Most at a time; where there is no room, the one goes that has been silent for the longest time.
    tls:
        The certificate to serve with; ``None``: in plain text.
    """

    def __init__(
        self, listen: str, app: ASGIApp, *, option: str, connections: int, tls: Tls | None = None
    ) -> None:
        self.address = listen
        self._app, self._option, self._connections = app, option, connections
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and serve. Raises :class:`~distop.process.tls.AddressInUse`."""
        listener = self._listen()
        host = self.address.rpartition(":")[0]
        self.address = f"{host}:{listener.getsockname()[1]}"
        tls = self._tls
        config = uvicorn.Config(
            Guard(self._app, loopback_only=is_loopback(host)),
            loop="none",
            http=visitors(self._connections),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=GRACE_S,
            ssl_context_factory=(lambda *_: tls.page_context()) if tls is not None else None,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]), name=self._option)
        log.info("http_listening", extra={"address": self.address, "option": self._option})

    async def stop(self) -> None:
        """Answer what was asked, and end."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)

    def _listen(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, int(port)), family=family)
        except OSError as error:
            raise AddressInUse(
                f"cannot listen on {self.address}: {error}",
                hint=f"choose another with {self._option} host:port",
            ) from error


class _Server(uvicorn.Server):
    """Leaves signals to the process, which ends this server in its turn."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
