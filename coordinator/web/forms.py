"""Forms that do something: who may send one, and that each does it once.

Forms are signed with a secret of this process. So all that it has to remember is what its own forms have
done: after a restart none of them is accepted, and none can do anything twice.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable

from distop.errors import InvalidArgument

FORM_S = 3600.0
"""Seconds for which a form can be sent."""

MAX_DONE = 10_000
"""Most forms that are remembered. When there are more, those shown before the oldest are too old."""


class Forms:
    """The forms of one page; belongs to one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._done: dict[str, tuple[float, asyncio.Task[str]]] = {}
        self._forgotten = float("-inf")
        """Forms of this time and before may have been sent and be forgotten."""

    def sign(self, request_id: str, holder: str) -> str:
        """The token of a form. ``holder``: who may send it, such as a session and its subject."""
        shown = repr(self._clock())
        return f"{shown}:{self._mac(shown, request_id, holder)}"

    async def once(self, token: str, request_id: str, holder: str, act: Callable[[], Awaitable[str]]) -> str:
        """Act on a form, or return what came of it when it was sent before.

        One that has failed may be sent again. A sender that goes away stops nothing.

        Raises
        ------
        InvalidArgument
            The form is not one that this process has shown to this sender, or is too old.
        """
        shown, _, mac = token.partition(":")
        if not hmac.compare_digest(mac.encode(), self._mac(shown, request_id, holder).encode()):
            raise InvalidArgument(
                "this form was not shown to you by this coordinator, or before its last restart",
                hint="open it again",
                details={"field": "form"},
            )
        shown_at, now = float(shown), self._clock()
        if (sent := self._done.get(request_id)) is None:
            self._forget(now)
            if shown_at <= max(now - FORM_S, self._forgotten):
                raise InvalidArgument("this form is too old", hint="open it again", details={"field": "form"})
            task = asyncio.ensure_future(act())
            sent = self._done[request_id] = shown_at, task
            task.add_done_callback(lambda done: self._settle(request_id, done))
        return await asyncio.shield(sent[1])

    async def close(self) -> None:
        """Stop what is being done."""
        tasks = [task for _, task in self._done.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settle(self, request_id: str, task: asyncio.Task[str]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._done.pop(request_id, None)

    def _forget(self, now: float) -> None:
        while self._done:
            request_id, (shown_at, task) = next(iter(self._done.items()))
            if not task.done() or (shown_at > now - FORM_S and len(self._done) < MAX_DONE):
                return
            self._forgotten = max(self._forgotten, shown_at)
            del self._done[request_id]

    def _mac(self, *parts: str) -> str:
        return hmac.digest(self._secret, "\n".join(parts).encode(), "sha256").hex()
