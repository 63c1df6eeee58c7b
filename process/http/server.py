"""An HTTP server in the event loop of a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from distop.process.http.connections import MAX_HEADER_BYTES, visitors
from distop.process.http.guard import Guard
from distop.process.listening import AddressInUse
from distop.process.tls import Tls
from distop.proto.addresses import is_loopback

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
        """Listen and serve. Raises :class:`~distop.process.listening.AddressInUse`."""
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
