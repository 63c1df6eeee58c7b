"""What every answer over HTTP carries, and who is turned away before anything is asked."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from distop.process.tls import MAX_AGE_S
from distop.proto.addresses import is_loopback

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
