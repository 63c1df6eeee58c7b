"""Maps failures of calls to etcd and gRPC to errors of distop."""

from __future__ import annotations

from typing import TypeAlias

import grpc
import grpc.aio

from distop.errors import (
    Busy,
    Compacted,
    DistopError,
    EtcdDenied,
    EtcdOutOfSpace,
    EtcdUnavailable,
    FutureRevision,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
)

Failure: TypeAlias = grpc.aio.AioRpcError | TimeoutError
"""How a call can fail; a :class:`TimeoutError` means that the call was not even sent in time."""

_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)

# gRPC's messages for a request that never left this process. Any other may have reached the server.
_NEVER_SENT = ("failed to connect to all addresses", "connections to all backends failing", "no leader")

# etcd's messages for rejected credentials, under several status codes.
_REFUSALS = ("authentication failed", "user name is empty", "invalid auth token", "permission denied")
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")


def is_transient(error: Failure) -> bool:
    """Whether another member, or the same one a moment later, may answer."""
    return isinstance(error, TimeoutError) or error.code() in _TRANSIENT


def was_never_sent(error: Failure) -> bool:
    """Whether the request certainly never reached etcd."""
    if isinstance(error, TimeoutError):
        return True
    return error.code() is grpc.StatusCode.UNAVAILABLE and _says(error, _NEVER_SENT)


def says_token_is_old(error: Failure) -> bool:
    """Whether a new authentication may help."""
    return not isinstance(error, TimeoutError) and _says(error, _OLD_TOKEN)


def translated(error: Failure, *, in_doubt: bool, endpoint: str) -> DistopError:
    """The failure as an error of distop.

    Parameters
    ----------
    in_doubt:
        Whether it is the failure of a write that etcd may have received.
    """
    if isinstance(error, TimeoutError):
        code, text = grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"
    else:
        code, text = error.code(), error.details() or ""
    where = {"endpoint": endpoint}
    if "space exceeded" in text:
        return EtcdOutOfSpace(details=where)
    if "compacted" in text:
        return Compacted(text, details=where)
    if "lease not found" in text:
        return LeaseLost(text, details=where)
    if any(refusal in text for refusal in _REFUSALS):
        return EtcdDenied(f"etcd at {endpoint} refuses this user: {text}", details=where)
    if "future revision" in text:
        return FutureRevision(text, details=where)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgument(f"etcd refuses the request: {text}", details=where)
    # A too large answer is refused on this side, after etcd has executed the request.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not (in_doubt and "Received message larger" in text):
        return Busy(f"etcd at {endpoint}: {text}", details=where)
    if in_doubt:
        return OutcomeUnknown(f"etcd at {endpoint} gave no answer to a write: {text}", details=where)
    return EtcdUnavailable(f"etcd at {endpoint} does not answer: {text}", details=where)


def _says(error: grpc.aio.AioRpcError, texts: tuple[str, ...]) -> bool:
    details = error.details() or ""
    return any(text in details for text in texts)
