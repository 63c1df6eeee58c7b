"""The gRPC server: services, health, reflection."""

from __future__ import annotations

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from distop.coordinator.access.gate import Gate, Policies
from distop.coordinator.api.access import AccessService
from distop.coordinator.api.backlog import BacklogService
from distop.coordinator.api.calls import CallInterceptor
from distop.coordinator.api.cluster import ClusterService
from distop.coordinator.api.limits import OPTIONS, Callers, Limits
from distop.coordinator.api.operations import OperationService
from distop.coordinator.api.published import IndexService
from distop.coordinator.api.schedules import ScheduleService
from distop.coordinator.api.tables import TableService
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.admission import Admission
from distop.coordinator.starting.planner import Planner
from distop.coordinator.state.caches import LeaderCaches
from distop.coordinator.views.following import Following
from distop.coordinator.work.work import Work
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.starting import REMEMBER_S
from distop.process.listening import AddressInUse
from distop.process.tls import GRACE_S, MAX_AGE_S, Tls
from distop.proto import distop_pb2, distop_pb2_grpc

_AGES = [
    ("grpc.max_connection_age_ms", MAX_AGE_S * 1000),
    ("grpc.max_connection_age_grace_ms", GRACE_S * 1000),
]


async def start_server(
    listen: str,
    client: EtcdClient,
    planner: Planner,
    answers: Work,
    metrics: Metrics | None = None,
    stopping: asyncio.Event | None = None,
    caches: LeaderCaches | None = None,
    remember_s: float = REMEMBER_S,
    admission: Admission | None = None,
    following: Following | None = None,
    gate: Gate | None = None,
    tls: Tls | None = None,
    limits: Limits | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Bind and start the server; return it and its port.

    ``answers`` runs reads of storage for calls; ``stopping`` ends watch streams, so that a stop need not wait
    for them; ``caches`` is shared with the leaders of this coordinator; ``remember_s`` is how long request
    ids are remembered; ``admission`` decides which starts are accepted;
    ``following`` are the operations followed for this server and others; ``gate`` authorises calls;
    ``tls`` is the server certificate (plain text without one); ``limits`` are the callers' limits.

    Raises :class:`~distop.errors.Unavailable` when the address cannot be bound.
    """
    gate = gate or Gate(Policies(client), planner.registry)
    server = grpc.aio.server(
        interceptors=[CallInterceptor(gate, Callers(limits))],
        options=OPTIONS if tls is None else [*OPTIONS, *_AGES],
    )
    operations = OperationService(
        client, planner, metrics, stopping, caches, remember_s, admission, following
    )
    distop_pb2_grpc.add_OperationServiceServicer_to_server(operations, server)
    distop_pb2_grpc.add_TableServiceServicer_to_server(
        TableService(client, answers, planner.registry), server
    )
    distop_pb2_grpc.add_BacklogServiceServicer_to_server(BacklogService(client, planner.registry), server)
    distop_pb2_grpc.add_ScheduleServiceServicer_to_server(
        ScheduleService(client, planner, operations), server
    )
    distop_pb2_grpc.add_IndexServiceServicer_to_server(IndexService(client, answers), server)
    distop_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterService(client, answers), server)
    distop_pb2_grpc.add_AccessServiceServicer_to_server(AccessService(client, gate), server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    services = [one.full_name for one in distop_pb2.DESCRIPTOR.services_by_name.values()]
    reflection.enable_server_reflection(
        [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME],
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
    for service in ["", *services]:
        await health.set(service, health_pb2.HealthCheckResponse.SERVING)
    return server, port
