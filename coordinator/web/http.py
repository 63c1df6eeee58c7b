"""The common part of requests to the page: parameters, deadlines, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from distop.coordinator.access.authentication import Proof, bearer
from distop.coordinator.access.certificates import names_of
from distop.errors import DeadlineExceeded, DistopError, InvalidArgument, Kind
from distop.process.secret import NONE, Secret

log = logging.getLogger(__name__)

REQUEST_S = 5.0
"""Deadline of a whole request, in seconds."""

HTTP_STATUS = {
    Kind.INVALID: 400,
    Kind.NOT_FOUND: 404,
    Kind.EXISTS: 409,
    Kind.PRECONDITION: 412,
    Kind.CONFLICT: 409,
    Kind.EXHAUSTED: 429,
    Kind.UNAVAILABLE: 503,
    Kind.DEADLINE: 504,
    Kind.UNIMPLEMENTED: 501,
    Kind.DENIED: 403,
    Kind.UNAUTHENTICATED: 401,
    Kind.INTERNAL: 500,
}


class Query:
    """The parameters of a request, each validated where it is used; unknown ones are ignored."""

    KNOWN = frozenset(
        {"after", "marks", "name", "page", "page_size", "page_token", "source", "states", "table", "type"}
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name: value for name, value in given.items() if name in self.KNOWN}

    def items(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._given.items()))

    def text(self, name: str) -> str:
        """A text; empty by default."""
        return self._given.get(name, "")

    def needed(self, name: str) -> str:
        """A required text."""
        if not (value := self.text(name)):
            raise InvalidArgument(f"{name} is missing", details={"field": name})
        return value

    def number(self, name: str) -> int:
        """A whole number from 0 to 10,000; 0 by default."""
        value = self.text(name) or "0"
        if not (value.isascii() and value.isdecimal() and len(value) <= 5 and int(value) <= 10_000):
            raise InvalidArgument(
                f"{name}={value[:50]!r} is not a number up to 10,000", details={"field": name}
            )
        return int(value)


def proof_of(scope: Scope, token: Secret = NONE) -> Proof:
    """The credentials of a request; a given token replaces the request's own.

    Raises :class:`~distop.errors.Unauthenticated`.
    """
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
    address = scope["client"][0] if scope["client"] else ""
    shown = scope["state"]["certificate"]
    return Proof(token or bearer(given), address, names_of(shown) if shown else {})


@contextlib.asynccontextmanager
async def errors_of(path: str) -> AsyncIterator[None]:
    """Turns every error inside into a :class:`DistopError`, and bounds the time."""
    try:
        async with asyncio.timeout(REQUEST_S):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{path} took longer than {REQUEST_S:g} s") from None
    except DistopError:
        raise
    except Exception as error:
        log.exception("page_crashed", extra={"path": path})
        raise DistopError(
            f"{path} failed: {type(error).__name__}: {error}",
            hint="see the coordinator's log; this is a defect",
        ) from error


def answer(request: Request, text: str, kind: str) -> Response:
    """The text, or only the status that it has not changed since the client's last request."""
    body = text.encode(errors="replace")
    etag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": etag, "cache-control": "no-cache, private", "content-type": kind}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)
