"""Errors for clients. The status decides what a client does with its data.

Of a request that changes something, a client takes 500, 502 and 504 for an unknown outcome: it leaves all
files where they are. Every other status means that nothing has happened: it removes its files, or tries
again. 503 is never the answer to such a request, since some clients then repeat it, whatever the outcome of
the first; except if the request has an idempotency key, see :func:`unsure`.
"""

from __future__ import annotations

import msgspec
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ValidationError,
    ViewAlreadyExistsError,
)

from distop.coordinator.rest.calls import Reply, json_reply
from distop.errors import (
    DistopError,
    EtcdOutOfSpace,
    InvalidName,
    Kind,
    NotFound,
    OutcomeUnknown,
    RequestIdReused,
    UnsupportedType,
)

UNKNOWN = "CommitStateUnknownException"

_PROBLEMS: tuple[tuple[type[Exception], int, str], ...] = (
    (RequestIdReused, 422, "UnprocessableEntityException"),
    (EtcdOutOfSpace, 429, "TooManyRequestsException"),
    (OutcomeUnknown, 500, UNKNOWN),
    (CommitStateUnknownException, 500, UNKNOWN),
    (NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (ViewAlreadyExistsError, 409, "AlreadyExistsException"),
    (NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (NoSuchTableError, 404, "NoSuchTableException"),
    (NoSuchViewError, 404, "NoSuchViewException"),
    (NotFound, 404, "NotFoundException"),
    (CommitFailedException, 409, "CommitFailedException"),
    (ForbiddenError, 403, "ForbiddenException"),
    (ValidationError, 400, "BadRequestException"),
    (NotImplementedError, 501, "UnsupportedOperationException"),
    (UnsupportedType, 501, "UnsupportedOperationException"),
)
"""The first match counts. ``ValueError`` comes last, as many of these are subclasses of it."""

_KINDS = {
    Kind.INVALID: (400, "BadRequestException"),
    Kind.EXISTS: (409, "AlreadyExistsException"),
    Kind.PRECONDITION: (409, "CommitFailedException"),
    Kind.CONFLICT: (409, "CommitFailedException"),
    Kind.EXHAUSTED: (429, "TooManyRequestsException"),
    Kind.UNAVAILABLE: (503, "ServiceUnavailableException"),
    Kind.DEADLINE: (504, "ServiceFailureException"),
    Kind.DENIED: (403, "ForbiddenException"),
    Kind.UNAUTHENTICATED: (401, "NotAuthorizedException"),
}


def problem(error: Exception, *, changes: bool) -> Reply:
    """The answer for an error. ``changes``: the request changes something, it does not only read."""
    status, kind = _problem(error)
    if changes and isinstance(error, InvalidName):
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
        status, kind, f"{message} [{error.code}]" if isinstance(error, DistopError) else message
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
    if isinstance(error, DistopError):
        return _KINDS.get(error.kind, (500, "ServiceFailureException"))
    if isinstance(error, ValueError):
        return 400, "BadRequestException"
    return 500, "ServiceFailureException"
