"""The gRPC server: services, health, reflection, and the one place where errors become statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import aclosing, nullcontext
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from distop.coordinator.api.backlog import BacklogService
from distop.coordinator.api.cluster import ClusterService
from distop.coordinator.api.indexes import IndexService
from distop.coordinator.api.operations import OperationService
from distop.coordinator.api.tables import TableService
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.planner import Planner
from distop.coordinator.state.memory import Memory
from distop.errors import DistopError, Unavailable
from distop.errors.wire import abort
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.deadline import within
from distop.metastore.operations.requests import REMEMBER_S
from distop.proto import distop_pb2, distop_pb2_grpc

log = logging.getLogger(__name__)

ANSWER_S = 0.2
"""Longest time set aside for an answer to travel before the caller's deadline."""

_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_concurrent_streams", 1000),
]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns a :class:`DistopError` of any handler into a status with details; other errors into INTERNAL."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/distop."):
            return handler
        method = handler_call_details.method
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _guarded_unary(handler.unary_unary, method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                _guarded_stream(handler.unary_stream, method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return handler


def _guarded_unary(behavior: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        left: Any = context.time_remaining()  # None without a deadline, which the published stubs do not say
        # What keeps us waiting is to reach the caller before his own deadline tells him nothing.
        limit = within(left - min(left * 0.1, ANSWER_S)) if left is not None else nullcontext()
        try:
            with limit:
                return await behavior(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await abort(context, _as_distop(error, method))

    return call


def _guarded_stream(behavior: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            # Closed at once when the caller goes, not when it is garbage: it holds a watch open.
            async with aclosing(behavior(request, context)) as responses:
                async for response in responses:
                    yield response
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await abort(context, _as_distop(error, method))

    return call


def _as_distop(error: Exception, method: str) -> DistopError:
    if isinstance(error, DistopError):
        return error
    log.error("call_crashed", extra={"method": method}, exc_info=error)
    return DistopError(
        f"{method} failed: {type(error).__name__}: {error}",
        hint="see the coordinator's log; this is a defect",
    )


async def start_server(
    listen: str,
    client: EtcdClient,
    planner: Planner,
    threads: Executor,
    metrics: Metrics | None = None,
    stopping: asyncio.Event | None = None,
    memory: Memory | None = None,
    remember_s: float = REMEMBER_S,
) -> tuple[grpc.aio.Server, int]:
    """Bind and start the server; returns it and its port.

    ``stopping`` ends the streams of those who watch, so that a stop need not wait for them; ``memory`` is
    that of the leaders of this coordinator; ``remember_s`` is how long request ids are remembered.

    Raises :class:`~distop.errors.Unavailable` when the address cannot be bound.
    """
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=_OPTIONS)
    distop_pb2_grpc.add_OperationServiceServicer_to_server(
        OperationService(client, planner, metrics, stopping, memory, remember_s), server
    )
    distop_pb2_grpc.add_TableServiceServicer_to_server(
        TableService(client, threads, planner.registry), server
    )
    distop_pb2_grpc.add_BacklogServiceServicer_to_server(BacklogService(client, planner.registry), server)
    distop_pb2_grpc.add_IndexServiceServicer_to_server(IndexService(client, threads), server)
    distop_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterService(client, threads), server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    services = [
        distop_pb2.DESCRIPTOR.services_by_name[name].full_name
        for name in ("OperationService", "TableService", "BacklogService", "IndexService", "ClusterService")
    ]
    reflection.enable_server_reflection(
        [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME],
        server,
    )
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise AddressInUse(f"cannot listen on {listen}: {error}") from error
    if port == 0:
        raise AddressInUse(f"cannot listen on {listen}")
    await server.start()
    for service in ["", *services]:
        await health.set(service, health_pb2.HealthCheckResponse.SERVING)
    return server, port


class AddressInUse(Unavailable):
    """The address to listen on is taken or not this host's."""

    code = "ADDRESS_IN_USE"
    default_hint = "choose another with --listen host:port"
