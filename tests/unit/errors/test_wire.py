"""Errors cross gRPC and come back as what they were."""

import importlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

import distop.client
import distop.errors
import distop.metastore
from distop.errors import (
    DeadlineExceeded,
    DistopError,
    Kind,
    NotFound,
    PermissionDenied,
    RunReused,
    TableNotFound,
    Unavailable,
)
from distop.errors.wire import abort, from_rpc_error, to_status


def every_class() -> list[type[DistopError]]:
    """All errors of the lower layers."""
    for package in (distop.errors, distop.metastore, distop.client):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

    def family(kind: type[DistopError]) -> Iterator[type[DistopError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from family(child)

    # Once, also those of two kinds.
    return [kind for kind in dict.fromkeys(family(DistopError)) if kind.__module__.startswith("distop.")]


CLASSES = every_class()
"""Before any test runs: a catalog makes classes as it raises errors, which are pyiceberg's as well."""


@asynccontextmanager
async def wire() -> AsyncIterator[Callable[[DistopError], Awaitable[DistopError]]]:
    """What a client makes of an error that a real server aborts with."""
    sent = list[DistopError]()

    async def handler(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await abort(context, sent[-1])

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Call": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def received(error: DistopError) -> DistopError:
                sent.append(error)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/t.T/Call", None, None)(b"", timeout=60)
                assert caught.value.code().name == error.kind.grpc_status
                return from_rpc_error(caught.value, address="a:1")

            yield received
    finally:
        await server.stop(None)


async def test_every_error_comes_back_as_itself() -> None:
    async with wire() as send:
        for kind in CLASSES:
            sent = kind("it broke", hint="mend it", details={"field": "paths", "table": "für"})
            received = await send(sent)
            assert type(received) is kind
            assert (received.message, received.hint) == (sent.message, sent.hint)
            assert received.details == sent.details
            assert (received.code, received.kind, received.retryable) == (
                kind.code,
                kind.kind,
                kind.retryable,
            )


def test_codes_of_errors_are_unique() -> None:
    own = [kind.code for kind in CLASSES if "code" in vars(kind)]
    assert len(own) == len(set(own))


def test_an_unknown_code_is_kept_and_caught_by_its_kind() -> None:
    info = error_details_pb2.ErrorInfo(reason="NO_FLUX", domain="distop", metadata={"retryable": "true"})
    status = status_pb2.Status(code=5, message="no flux")
    status.details.add().Pack(info)
    received = from_rpc_error(rpc_error(grpc.StatusCode.NOT_FOUND, "no flux", status))
    assert type(received) is NotFound
    assert (received.code, received.kind, received.retryable) == ("NO_FLUX", Kind.NOT_FOUND, True)
    assert NotFound.code == "NOT_FOUND"


def test_an_unknown_code_is_the_class_of_its_kind() -> None:
    info = error_details_pb2.ErrorInfo(reason="ROLE_MISSING", domain="distop")
    status = status_pb2.Status(code=7, message="not you")
    status.details.add().Pack(info)
    received = from_rpc_error(rpc_error(grpc.StatusCode.PERMISSION_DENIED, "not you", status))
    assert (received.code, received.kind, received.kind.exit_code) == ("ROLE_MISSING", Kind.DENIED, 11)
    assert type(received) is PermissionDenied


def test_a_code_of_release_0_2_0_is_the_class_that_has_another_one_now() -> None:
    """D3: its coordinators answer during an upgrade, and a writer depends on the class."""
    info = error_details_pb2.ErrorInfo(
        reason="REQUEST_ID_REUSED", domain="distop", metadata={"operation": "t/write/1"}
    )
    status = status_pb2.Status(code=6, message="used before")
    status.details.add().Pack(info)
    received = from_rpc_error(rpc_error(grpc.StatusCode.ALREADY_EXISTS, "used before", status))
    assert type(received) is RunReused
    assert (received.code, received.details["operation"]) == ("RUN_REUSED", "t/write/1")


async def test_long_texts_are_cut_and_not_lost() -> None:
    async with wire() as send:
        for letter in ("x", "\u6f22", "%", "\n"):
            details = {"field": "paths", "cause": letter * 20_000, "more": letter * 20_000}
            received = await send(TableNotFound(letter * 20_000, hint=letter * 20_000, details=details))
            assert type(received) is TableNotFound
            assert received.message.startswith(letter * 300)
            assert received.hint.startswith(letter * 100)
            assert received.details["field"] == "paths"
            assert received.details["cause"].startswith(letter * 100)


def test_retry_info_is_sent_where_a_retry_may_help() -> None:
    kinds = [detail.TypeName() for detail in to_status(Unavailable()).details]
    assert kinds == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo"]
    assert [detail.TypeName() for detail in to_status(TableNotFound()).details] == ["google.rpc.ErrorInfo"]


@pytest.mark.parametrize(
    ("status", "kind", "code", "retryable"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable, "UNAVAILABLE", True),
        (grpc.StatusCode.CANCELLED, Unavailable, "UNAVAILABLE", True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded, "DEADLINE_EXCEEDED", True),
        (grpc.StatusCode.UNIMPLEMENTED, DistopError, "UNIMPLEMENTED", False),
        (grpc.StatusCode.UNKNOWN, DistopError, "UNKNOWN", False),
        (grpc.StatusCode.INTERNAL, DistopError, "INTERNAL", False),
    ],
)
def test_failures_of_grpc_itself_become_errors_with_codes(
    status: grpc.StatusCode, kind: type[DistopError], code: str, retryable: bool
) -> None:
    received = from_rpc_error(rpc_error(status, "why"), address="a:7070")
    assert type(received) is kind
    assert (received.code, received.retryable) == (code, retryable)
    assert "a:7070" in received.message


def test_an_unavailable_service_is_asked_about_by_address() -> None:
    received = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "refused"), address="a:7070")
    assert received.hint == "is a coordinator running at a:7070?"


def test_details_of_others_and_broken_ones_are_ignored() -> None:
    info = error_details_pb2.ErrorInfo(reason="RATE_LIMIT", domain="googleapis.com")
    status = status_pb2.Status(code=14)
    status.details.add().Pack(info)
    assert from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "", status)).code == "UNAVAILABLE"
    broken = rpc_error(grpc.StatusCode.UNAVAILABLE, "", b"\xff\xff")
    assert from_rpc_error(broken).code == "UNAVAILABLE"


def rpc_error(
    code: grpc.StatusCode, details: str, status: status_pb2.Status | bytes | None = None
) -> grpc.aio.AioRpcError:
    data = status.SerializeToString() if isinstance(status, status_pb2.Status) else status
    trailing = grpc.aio.Metadata(*([("grpc-status-details-bin", data)] if data else []))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details, None)
