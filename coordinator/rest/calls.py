"""One request as a handler gets it, and its answer, which may be an error.

The status of an error decides what a client does with its data. Of a request that changes something, a client
takes 500, 502 and 504 for an unknown outcome: it leaves all files where they are. Every other status means
that nothing has happened: it removes its files, or tries again. 503 is never the answer to such a request,
since some clients then repeat it, whatever the outcome of the first; except if the request has an idempotency
key, see :func:`unsure`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg import exceptions
from pyiceberg.typedef import Identifier

from distop import errors
from distop.coordinator.access.callers import Caller

UNKNOWN = "CommitStateUnknownException"

_PROBLEMS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.RunReused, 422, "UnprocessableEntityException"),
    (errors.EtcdOutOfSpace, 429, "TooManyRequestsException"),
    (errors.OutcomeUnknown, 500, UNKNOWN),
    (exceptions.CommitStateUnknownException, 500, UNKNOWN),
    (exceptions.NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (exceptions.NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.ViewAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (exceptions.NoSuchTableError, 404, "NoSuchTableException"),
    (exceptions.NoSuchViewError, 404, "NoSuchViewException"),
    (errors.NotFound, 404, "NotFoundException"),
    (exceptions.CommitFailedException, 409, "CommitFailedException"),
    (exceptions.ForbiddenError, 403, "ForbiddenException"),
    (exceptions.ValidationError, 400, "BadRequestException"),
    (NotImplementedError, 501, "UnsupportedOperationException"),
    (errors.UnsupportedType, 501, "UnsupportedOperationException"),
)
"""The first match counts. ``ValueError`` comes last, as many of these are subclasses of it."""

_KINDS = {
    errors.Kind.INVALID: (400, "BadRequestException"),
    errors.Kind.EXISTS: (409, "AlreadyExistsException"),
    errors.Kind.PRECONDITION: (409, "CommitFailedException"),
    errors.Kind.CONFLICT: (409, "CommitFailedException"),
    errors.Kind.EXHAUSTED: (429, "TooManyRequestsException"),
    errors.Kind.UNAVAILABLE: (503, "ServiceUnavailableException"),
    errors.Kind.DEADLINE: (504, "ServiceFailureException"),
    errors.Kind.DENIED: (403, "ForbiddenException"),
    errors.Kind.UNAUTHENTICATED: (401, "NotAuthorizedException"),
}


def problem(error: Exception, *, changes: bool) -> Reply:
    """The answer for an error. ``changes``: the request changes something, it does not only read."""
    status, kind = _problem(error)
    if changes and isinstance(error, errors.InvalidName):
        status, kind = 400, "BadRequestException"  # a new name is refused; an existing one is not found
    elif changes and status == 503:
        status = 429  # certainly not sent to etcd
    elif changes and status >= 500 and status != 501:
        kind = UNKNOWN
    elif not changes and isinstance(error, FileNotFoundError):
        status, kind = 404, "NotFoundException"  # the table exists, but its metadata does not
    elif not changes and kind == UNKNOWN:
        status, kind = 503, "ServiceUnavailableException"
    message = str(error) or type(error).__name__
    return error_reply(
        status, kind, f"{message} [{error.code}]" if isinstance(error, errors.DistopError) else message
    )


def unsure(reply: Reply) -> Reply:
    """For a request that may be a repeat: it was not executed now, but may have been before. It has a key, so
    that a repetition does no harm."""
    message = msgspec.json.decode(reply.body)["error"]["message"]
    return error_reply(503, UNKNOWN, message)


def error_reply(status: int, kind: str, message: str) -> Reply:
    """An error in the shape that Iceberg gives it."""
    later = {"retry_after": "1"} if status in (429, 503) else {}
    return json_reply({"error": {"message": message, "type": kind, "code": status}}, status, **later)


def _problem(error: Exception) -> tuple[int, str]:
    for known, status, kind in _PROBLEMS:
        if isinstance(error, known):
            return status, kind
    if isinstance(error, errors.DistopError):
        return _KINDS.get(error.kind, (500, "ServiceFailureException"))
    if isinstance(error, ValueError):
        return 400, "BadRequestException"
    return 500, "ServiceFailureException"


MAX_PAGE = 1000
"""Most names in one answer; the token of the next page continues the list."""

SEPARATOR = "\x1f"
"""Separates the levels of a namespace, in paths (``%1F``) and in parameters."""


@dataclass(frozen=True, kw_only=True)
class RestCall:
    """A request. The parts of the path are decoded one by one."""

    parts: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """With names in lower case."""
    body: Any = None
    """The body, as the model of the route."""
    text: bytes = b""
    """The body as received."""
    who: Caller = field(default_factory=Caller)
    """The caller, and what it may see."""

    @property
    def namespace(self) -> Identifier:
        return tuple(self.parts["namespace"].split(SEPARATOR))

    @property
    def table(self) -> Identifier:
        return (*self.namespace, self.parts["table"])

    @property
    def view(self) -> Identifier:
        return (*self.namespace, self.parts["view"])

    @property
    def named(self) -> Identifier:
        """The table or view in the namespace of the path that the body names."""
        return (*self.namespace, self.body.name)

    @property
    def parent(self) -> Identifier:
        """The namespace whose children are requested; empty: the top level."""
        given = self.query.get("parent", "")
        return tuple(given.split(SEPARATOR)) if given else ()

    @property
    def page_token(self) -> str:
        return self.query.get("pageToken", "")

    @property
    def page_size(self) -> int:
        """Most names in one answer. Raises :class:`~distop.errors.InvalidArgument`."""
        given = self.query.get("pageSize", "") or str(MAX_PAGE)
        if not (given.isascii() and given.isdecimal() and int(given[:9]) > 0):
            raise errors.InvalidArgument(
                f"pageSize={given[:50]!r} is no positive number", details={"field": "pageSize"}
            )
        return min(int(given[:9]), MAX_PAGE)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: JSON, or no body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """An answer with a value; ``msgspec.Raw`` is included unchanged."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status=status, body=msgspec.json.encode(value), headers=named)


NOTHING = Reply(status=204)
