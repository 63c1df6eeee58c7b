"""The webhook that alerts are sent to: one POST of JSON for each."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import tenacity

from distop.errors import InvalidArgument, PreconditionFailed, Unavailable
from distop.process.files import Reread
from distop.process.loop import settle_from_thread
from distop.process.secret import Secret, token_in
from distop.proto.addresses import is_loopback

POST_S = 10.0
"""Deadline of one POST, in seconds."""
RETRY_FOR_S = 30.0
"""For how long one that got no answer is sent again, with longer and longer pauses."""

_LATER = {408, 425, 429}
"""Answers below 500 that ask for another try."""


class Webhook:
    """Where alerts are sent. Belongs to one event loop.

    Parameters
    ----------
    url:
        Often a secret itself: only its scheme, host and port are ever shown.
    token_file:
        The path of a token that is sent as a bearer; it is read again when it changes. Empty: none.

    Raises
    ------
    InvalidArgument
        The URL or the token cannot be used.
    """

    def __init__(self, url: Secret, token_file: str = "") -> None:
        self._url = url
        parts = urlsplit(url.reveal())
        self.origin = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InvalidArgument(
                "this is no URL of a webhook",
                hint="write https://HOST/PATH, without a user or password; a token goes into --token-file",
                details={"field": "webhook"},
            )
        if token_file and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise InvalidArgument(
                f"the token would go to {self.origin} in plain text",
                hint="name an https:// webhook",
                details={"field": "token_file"},
            )
        read = partial(token_in, field="token_file")
        self._token = Reread((token_file,), read) if token_file else None
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._unanswered: asyncio.Future[int] | None = None

    async def send(self, document: Mapping[str, Any]) -> None:
        """POST a document until it is accepted with a status of 2xx. It may arrive more than once.

        Raises
        ------
        Unavailable
            No answer, or none that says so, within :data:`RETRY_FOR_S` seconds.
        PreconditionFailed
            It was refused: sending the same again would be in vain.
        """
        body = json.dumps(document, ensure_ascii=False).encode()
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=10.0),
            stop=tenacity.stop_after_delay(RETRY_FOR_S),
            reraise=True,
        )
        await retrying(self._post, body)

    async def _post(self, body: bytes) -> None:
        # One that drips its answer outlives the deadline: there is never more than one such thread.
        if self._unanswered is not None and not self._unanswered.done():
            raise Unavailable(f"{self.origin} has not answered the last alert yet")
        future = self._unanswered = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._run, args=(body, future), name="distop-webhook", daemon=True).start()
        try:
            async with asyncio.timeout(POST_S):
                status = await asyncio.shield(future)
        except OSError as error:
            reason = str(error) or f"no answer within {POST_S:g} s"
            raise Unavailable(f"{self.origin} does not answer: {reason}") from None
        if status >= 500 or status in _LATER:
            raise Unavailable(f"{self.origin} answers with status {status}")
        if not 200 <= status < 300:
            raise PreconditionFailed(f"{self.origin} refuses an alert with status {status}")

    def _run(self, body: bytes, future: asyncio.Future[int]) -> None:
        try:
            headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "distop"}
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token.now().reveal()}"
            request = urllib.request.Request(self._url.reveal(), body, headers, method="POST")
            with self._opener.open(request, timeout=POST_S) as response:
                settle_from_thread(future, int(response.status))
        except urllib.error.HTTPError as error:
            error.close()
            settle_from_thread(future, error.code)
        except urllib.error.URLError as error:
            # Its text may have the URL; the reason has not.
            settle_from_thread(future, OSError(str(error.reason)))
        except BaseException as error:
            # The texts of other errors may have the URL, too.
            text = str(error) if isinstance(error, OSError) else type(error).__name__
            settle_from_thread(future, OSError(text))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token and the alert are for this host alone."""

    def redirect_request(self, *_: Any) -> None:
        return None
