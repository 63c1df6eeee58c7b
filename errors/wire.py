"""Conversion between a :class:`~distop.errors.DistopError` and gRPC: the only module that knows both.

On the wire an error is a ``google.rpc.Status`` in the trailing metadata: an ``ErrorInfo`` with the stable
code as its reason and domain ``distop``, and a ``RetryInfo`` where the same call may succeed later. The
receiver builds the same class again. See https://google.aip.dev/193.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from distop import errors

DOMAIN = "distop"
_REFUSALS = ("Socket closed", "handshake", "reset by peer", "GOAWAY")
"""gRPC's messages when only one side uses TLS, or one does not trust a certificate."""

RETRY_DELAY_S = 1
"""The default retry delay in ``RetryInfo``."""

# gRPC drops a reply whose metadata exceed 8 KiB, and the message travels twice: percent-encoded (up to three
# bytes for one) and, like the rest, in base64 (four for three). At worst these limits make 7.3 KiB.
_MESSAGE_BYTES, _HINT_BYTES, _DETAILS_BYTES = 1200, 400, 1000

_KINDS = {kind.grpc_status: kind for kind in errors.Kind}

_GENERAL: dict[errors.Kind, type[errors.DistopError]] = {
    errors.Kind.INVALID: errors.InvalidArgument,
    errors.Kind.NOT_FOUND: errors.NotFound,
    errors.Kind.EXISTS: errors.AlreadyExists,
    errors.Kind.PRECONDITION: errors.PreconditionFailed,
    errors.Kind.CONFLICT: errors.Conflict,
    errors.Kind.EXHAUSTED: errors.Exhausted,
    errors.Kind.UNAVAILABLE: errors.Unavailable,
    errors.Kind.DEADLINE: errors.DeadlineExceeded,
    errors.Kind.DENIED: errors.PermissionDenied,
    errors.Kind.UNAUTHENTICATED: errors.Unauthenticated,
}
"""The class for a whole kind, so that ``except NotFound`` also catches codes of newer servers."""


def to_status(error: errors.DistopError) -> status_pb2.Status:
    """The encoded error. Long texts are truncated, since gRPC bounds the size of metadata."""
    info = error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN)
    room = _DETAILS_BYTES
    for key, value in error.details.items():
        if room > len(key.encode()):
            info.metadata[key] = _cut(value, room - len(key.encode()))
            room -= len(key.encode()) + len(info.metadata[key].encode())
    info.metadata["retryable"] = "true" if error.retryable else "false"
    if error.hint:
        info.metadata["hint"] = _cut(error.hint, _HINT_BYTES)
    code: int = grpc.StatusCode[error.kind.grpc_status].value[0]
    status = status_pb2.Status(code=code, message=_cut(error.message, _MESSAGE_BYTES))
    status.details.add().Pack(info)
    if error.retryable:
        advice = error_details_pb2.RetryInfo()
        advice.retry_delay.FromMilliseconds(round((error.retry_after_s or RETRY_DELAY_S) * 1000))
        status.details.add().Pack(advice)
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.DistopError) -> NoReturn:
    """End a call of a ``grpc.aio`` server with this error."""
    status = rpc_status.to_status(to_status(error))
    await context.abort(status.code, status.details, trailing_metadata=status.trailing_metadata)


def from_rpc_error(error: grpc.RpcError, *, address: str = "") -> errors.DistopError:
    """The :class:`DistopError` for a failed call.

    An error that a distop server sent comes back as the class it had there. If this process does not know
    its code, it is the general class of its kind, with the received ``code`` on the instance. Failures of
    gRPC itself, without an answer of a distop server, become :class:`Unavailable`, :class:`DeadlineExceeded`
    or the class for the status.

    Parameters
    ----------
    address:
        Address of the called server, for the message.
    """
    call: Any = error  # what gRPC raises is also the call, which grpc.RpcError does not show
    status, message = call.code(), call.details() or ""
    info = _error_info(call)
    if info is None:
        return _from_plain(status, message, address or "its address")
    details = dict(info.metadata)
    hint, retryable = details.pop("hint", ""), details.pop("retryable", "false") == "true"
    kind = _KINDS.get(status.name, errors.Kind.INTERNAL)
    known = errors.error_class(info.reason)
    rebuilt = (known or _GENERAL.get(kind, errors.DistopError))(message, hint=hint, details=details)
    own: dict[str, Any] = {"retryable": retryable}
    if known is None:
        own |= {"code": info.reason, "kind": kind}
    return _with(rebuilt, **own)


def _from_plain(status: grpc.StatusCode, message: str, address: str) -> errors.DistopError:
    if status is grpc.StatusCode.CANCELLED:
        # Our own cancelling surfaces as asyncio.CancelledError: this one is a server that shuts down.
        status = grpc.StatusCode.UNAVAILABLE
    if status is grpc.StatusCode.UNAVAILABLE:
        # "failed to connect to all addresses; last error: UNKNOWN: ...: Connection refused": the end says it.
        if "failed to connect" in message and any(sign in message for sign in _REFUSALS):
            return errors.Unavailable(
                f"no TLS connection, or no server at {address}: {message.partition('last error: ')[2]}",
                hint="does it use TLS, and do your DISTOP_CA (and DISTOP_CERT, if it requires one) match?",
                details={"grpc": message},
            )
        return errors.Unavailable(
            f"no answer from {address}: {message.rpartition(': ')[2]}",
            hint=f"is a coordinator running at {address}?",
            details={"grpc": message},
        )
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineExceeded(
            f"no answer from {address} within the deadline",
            hint=f"is the coordinator at {address} healthy? If so, use a longer timeout",
        )
    if status is grpc.StatusCode.UNIMPLEMENTED:
        failure = errors.DistopError(
            f"{address} does not know this call: {message}",
            hint=f"is {address} a coordinator of this version?",
        )
        return _with(failure, code="UNIMPLEMENTED", kind=errors.Kind.UNIMPLEMENTED)
    kind = _KINDS.get(status.name, errors.Kind.INTERNAL)
    failure = _GENERAL.get(kind, errors.DistopError)(f"{address} failed: {message or status.name}")
    return failure if kind in _GENERAL else _with(failure, code=status.name, kind=kind)


def _with(error: errors.DistopError, **own: Any) -> errors.DistopError:
    """Let an instance differ from its class in the received values."""
    vars(error).update({name: value for name, value in own.items() if getattr(error, name) != value})
    return error


def _error_info(call: Any) -> error_details_pb2.ErrorInfo | None:
    try:
        status = rpc_status.from_call(call)
    except (DecodeError, ValueError):  # the answer contradicts itself
        return None
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info
    return None


def _cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` bytes of UTF-8."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    return data[: max(limit - 3, 0)].decode(errors="ignore") + "…"
