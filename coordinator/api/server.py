"""The gRPC server: services, health, reflection."""

from __future__ import annotations

from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from distop.coordinator.access.gate import Gate
from distop.coordinator.api.backlog import BacklogService
from distop.coordinator.api.calls import OPTIONS, ApiCalls, CallInterceptor
from distop.coordinator.api.cluster import AccessService, ClusterService
from distop.coordinator.api.operations import OperationService
from distop.coordinator.api.published import IndexService
from distop.coordinator.api.schedules import ScheduleService
from distop.coordinator.api.tables import TableService
from distop.coordinator.starting.services import Services
from distop.process.tls import GRACE_S, MAX_AGE_S, AddressInUse, Tls
from distop.proto import distop_pb2, distop_pb2_grpc

_AGES = [
    ("grpc.max_connection_age_ms", MAX_AGE_S * 1000),
    ("grpc.max_connection_age_grace_ms", GRACE_S * 1000),
]


def servicers(services: Services, operations: OperationService, gate: Gate) -> dict[str, Any]:
    """The handlers of the calls of each service, by its name."""
    client, answering = services.client, services.answering
    return {
        "OperationService": operations,
        "TableService": TableService(client, answering),
        "BacklogService": BacklogService(client, services.registry),
        "ScheduleService": ScheduleService(services, operations),
        "IndexService": IndexService(client, answering),
        "ClusterService": ClusterService(client, answering),
        "AccessService": AccessService(client, gate),
    }


async def start_server(listen: str, calls: ApiCalls, tls: Tls | None) -> tuple[grpc.aio.Server, int]:
    """Bind and start the server; return it and its port.

    Parameters
    ----------
    calls:
        Answers what it receives.
    tls:
        The server's certificate; ``None``: it speaks plain text.

    Raises
    ------
    Unavailable
        The address cannot be bound.
    """
    server = grpc.aio.server(
        interceptors=[CallInterceptor(calls)], options=OPTIONS if tls is None else [*OPTIONS, *_AGES]
    )
    for name, servicer in calls.servicers.items():
        getattr(distop_pb2_grpc, f"add_{name}Servicer_to_server")(servicer, server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [descriptor.full_name for descriptor in distop_pb2.DESCRIPTOR.services_by_name.values()]
    reflection.enable_server_reflection(
        [*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME],
        server,
    )
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, tls.server_credentials())
    except RuntimeError as error:
        raise AddressInUse(f"cannot listen on {listen}: {error}") from error
    if port == 0:
        raise AddressInUse(f"cannot listen on {listen}")
    await server.start()
    for service in ["", *names]:
        await health.set(service, health_pb2.HealthCheckResponse.SERVING)
    return server, port
