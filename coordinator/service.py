"""A coordinator process: it serves gRPC, and leads tables.

A process has one *incarnation* per lease. When its lease is lost (a long pause, an unreachable etcd) it stops
leading, and begins again with a new identity; its gRPC side needs no lease and continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from distop.commit.contract import StepRegistry
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.gate import Gate, Policies
from distop.coordinator.alerts.conditions import count_tables
from distop.coordinator.api.backlog import BacklogService
from distop.coordinator.api.calls import OPTIONS, ApiCalls, Callers, CallInterceptor, Limits
from distop.coordinator.api.cluster import AccessService, ClusterService
from distop.coordinator.api.operations import OperationService
from distop.coordinator.api.published import IndexService
from distop.coordinator.api.schedules import ScheduleService
from distop.coordinator.api.tables import TableService
from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.leadership import Leadership
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.services import Services
from distop.coordinator.views.following import Following
from distop.coordinator.work.processes import WORKERS, Processes, SharedLease
from distop.coordinator.work.work import LIMIT_S, Work
from distop.errors import DistopError, EtcdDenied, InvalidArgument, OtherLayout, Restored
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members import registration
from distop.metastore.members.installation import enter
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.starting import BRIEFLY_S, REMEMBER_S
from distop.metastore.records.member import HeldUp, LongCall
from distop.metastore.tables.audit import Denials
from distop.operations.registry import Registry
from distop.process.loop import cancel_all, kept_running, log_failure, notify_manager, settle_heap
from distop.process.template import NotLoaded
from distop.process.tls import GRACE_S, MAX_AGE_S, AddressInUse, Tls, TlsConfig, check_address
from distop.process.tracing import Tracer
from distop.proto import distop_pb2, distop_pb2_grpc

if TYPE_CHECKING:
    from distop.coordinator.rest.app import RestCatalog
    from distop.coordinator.web.app import WebServer

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


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    """The settings of a coordinator."""

    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    listen: str = "127.0.0.1:7070"
    """``host:port`` of the gRPC service; port 0 picks a free one."""
    web: str | None = None
    """``host:port`` of the page and of ``/metrics``; port 0 picks a free one, ``None`` leaves them out."""
    identity: IdentityConfig = field(default_factory=IdentityConfig)
    """How it identifies callers."""
    catalog: str | None = None
    """``host:port`` of the catalog for engines that use Iceberg's REST protocol; as ``web``."""
    warehouse: str | None = None
    """URL of the folder for tables that are created there without a location."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """How its connections are protected."""
    lease_ttl_s: int = 5
    """Time to live of its lease in seconds; a dead coordinator then loses its tables. etcd's minimum is 2."""
    linger_s: float = 5.0
    """Seconds a leader keeps a table that has no work."""
    call_timeout_s: float = LIMIT_S
    """Seconds that user code and the preparation of a commit may take without a heartbeat."""
    remember_runs_s: float = REMEMBER_S
    """Seconds for which runs are remembered, from the start of their operation."""
    operations: tuple[str, ...] | None = None
    """Further operation types, ``module:Class``; ``None``: from DISTOP_OPERATIONS."""
    limits: Limits = field(default_factory=Limits)
    """Limits for callers."""

    def __post_init__(self) -> None:
        for name, address in (("listen", self.listen), ("web", self.web), ("catalog", self.catalog)):
            if address is None:
                continue
            check_address(name, address)
            self.tls.check(name, address)
        if not self.call_timeout_s > 0:
            raise InvalidArgument(
                "the call timeout must be positive seconds", details={"field": "call_timeout_s"}
            )
        if not self.remember_runs_s >= BRIEFLY_S:
            raise InvalidArgument(
                f"runs must be remembered for at least {BRIEFLY_S:.0f} s",
                details={"field": "remember_runs_s"},
            )
        if self.lease_ttl_s < 2:
            raise InvalidArgument(
                f"a lease of {self.lease_ttl_s} s is below etcd's minimum of 2 s",
                details={"field": "lease_ttl_s"},
            )


log = logging.getLogger(__name__)

ANSWERING_THREADS, WORKING_THREADS = 64, 128
"""Threads for calls that read storage, as many as slots; and for planning and publishing, each with slots for
half."""

ANSWERING, WORKING, CATALOG = "distop-answering", "distop-working", "distop-catalog"
"""The names of these threads, and of the catalog's."""

LAST_S = 0.5
"""Seconds that blocking work has to end after everything else has stopped."""

RETRY_S = 0.5
"""Pause before a new incarnation when etcd does not answer."""

LOAD_HERE_S = 300.0
"""Longest load of a type here: it has been loaded elsewhere before, in a time that is its own."""

REPORT_EVERY_S, MAX_REPORTED = 1.0, 50
"""How often slow calls are reported, and how many of them."""

COUNT_EVERY_S, COUNT_SHARE = 60.0, 100
"""How often tables are counted for the metrics, in seconds; and how many times as long as that takes a pause
is at least."""

LAST_CALLS_S = 2.0
"""Seconds that calls in progress have to end when the process is asked to stop."""


class Coordinator:
    """One coordinator in this event loop.

    ``address``, ``web_address`` and ``catalog_address`` are known once :meth:`run` has bound the ports;
    ``ready`` is set when it serves.
    """

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.address = ""
        self.web_address = ""
        self.catalog_address = ""
        self.ready = asyncio.Event()
        self.member = ""
        """Member id of the present incarnation; empty between two of them."""
        self._stop = asyncio.Event()
        self._following: Following | None = None

    def stop(self) -> None:
        """Ask it to resign, drain and return from :meth:`run`. Safe to call twice, from the loop's thread."""
        self._stop.set()
        if self._following is not None:
            self._following.notify_all()

    async def run(self) -> None:
        """Serve until :meth:`stop`."""
        registry, tracer = Registry(self.config.operations), Tracer.from_env("coordinator")
        metrics, web_of = self._web()
        client = metrics.etcd_client(self.config.etcd)
        try:
            await enter(client)  # before the first call
        except (EtcdDenied, OtherLayout, Restored):
            await client.close()
            raise
        except DistopError as error:  # etcd is unreachable: callers get the error
            log.warning("installation_not_read", extra={"code": error.code, "error": str(error)})
        # Reads of storage for calls may hang: starts and commits must not wait for them.
        answering = ThreadPoolExecutor(ANSWERING_THREADS, thread_name_prefix=ANSWERING)
        working = ThreadPoolExecutor(WORKING_THREADS, thread_name_prefix=WORKING)
        processes = Processes(self.config.operations)
        try:
            refused = await _load_types(registry, processes, working)
        except BaseException:
            await client.close()
            working.shutdown(wait=False)
            processes.close()
            raise
        services = Services(
            client=client,
            planning=Work(registry, working, processes, limit_s=self.config.call_timeout_s),
            publishing=Work(registry, working, processes, limit_s=self.config.call_timeout_s),
            answering=Work(registry, answering),
            metrics=metrics,
            tracer=tracer,
        )
        metrics.traces(tracer.counts)
        metrics.long_calls(lambda: len(services.planning.long()) + len(services.publishing.long()))
        following = self._following = Following(client, services.caches.leaders)
        policies = Policies(client, self.config.identity.admins)
        gate = Gate(policies, registry, self.config.identity, Denials(client))
        tls = Tls(self.config.tls) if self.config.tls.cert else None
        operations = OperationService(services, following, self._stop, remember_s=self.config.remember_runs_s)
        calls = ApiCalls(gate, Callers(self.config.limits), servicers(services, operations, gate))
        web = web_of(services.answering, following, calls, tls) if web_of is not None else None
        catalog = self._catalog(registry, gate, tls)
        server, port = await start_server(self.config.listen, calls, tls)
        followers = {"admission": services.admission.run, "policy": policies.run}
        if web is not None:  # which shows it
            followers["tables"] = partial(_count_tables, client, metrics)
        helpers = [asyncio.create_task(kept_running(name, follower)) for name, follower in followers.items()]
        self.address = f"{self.config.listen.rpartition(':')[0]}:{port}"
        completion = Completion(services)
        log.info("coordinator_listening", extra={"address": self.address, "tls": tls is not None})
        if self.config.tls.insecure and tls is None:
            log.warning("coordinator_insecure", extra={"address": self.address, "served": "in plain text"})
        try:
            if web is not None:
                await web.start()
                self.web_address = web.address
            if catalog is not None:
                await catalog.start()
                self.catalog_address = catalog.address
            while not self._stop.is_set():
                try:
                    await self._incarnation(services, completion, processes.lease, refused)
                except (EtcdDenied, OtherLayout, Restored):
                    if not self.ready.is_set():
                        raise  # it is permanent
                    await _either(self._stop.wait(), asyncio.sleep(RETRY_S))
                except DistopError as error:
                    # etcd unreachable or full, a lease lost before its first use: all of it is transient.
                    log_failure(log, "incarnation_failed", error, code=error.code)
                    await _either(self._stop.wait(), asyncio.sleep(RETRY_S))
        finally:
            for task in helpers:
                task.cancel()
            await server.stop(LAST_CALLS_S)
            if web is not None:
                await web.stop()
            if catalog is not None:
                await catalog.stop()
            await following.close()
            answering.shutdown(wait=False, cancel_futures=True)
            working.shutdown(wait=False, cancel_futures=True)
            processes.close()
            await client.close()
            await asyncio.to_thread(tracer.close)
            log.info("coordinator_stopped", extra={"address": self.address})

    def _web(self) -> tuple[Metrics, Callable[[Work, Following, ApiCalls, Tls | None], WebServer] | None]:
        """The web page, unless it is disabled, and its metrics. Only then is either loaded."""
        if (listen := self.config.web) is None:
            return Metrics(), None
        from distop.coordinator.metrics.prometheus import PrometheusMetrics
        from distop.coordinator.web.app import WebServer

        metrics = PrometheusMetrics()

        def web(answering: Work, following: Following, calls: ApiCalls, tls: Tls | None) -> WebServer:
            etcd = self.config.etcd
            return WebServer(listen, etcd, metrics, lambda: self.member, answering, following, calls, tls)

        return metrics, web

    def _catalog(self, registry: Registry, gate: Gate, tls: Tls | None) -> RestCatalog | None:
        if (listen := self.config.catalog) is None:
            return None
        from distop.coordinator.rest.app import RestCatalog

        config = self.config
        return RestCatalog(listen, config.etcd, registry, config.warehouse, gate, tls, config.limits)

    async def _incarnation(
        self, services: Services, completion: Completion, shared: SharedLease, refused: str
    ) -> None:
        """Lead tables under one lease, until stopped or until the lease is lost.

        ``refused`` says which types cannot be used here, and why.
        """
        client = services.client
        session = LeaseSession(
            client, self.config.lease_ttl_s, renewed=lambda until: shared.holds(session.lease_id, until)
        )
        member = registration.own_record(
            registration.incarnation("coordinator"), "coordinator", address=self.address
        )
        entry = registration.registered(
            client, session, member, replied=lambda: reached("coordinator.register.after")
        )
        async with session, entry:
            self.member = member.id
            leadership = Leadership(services, session, member, completion, linger_s=self.config.linger_s)
            services.metrics.incarnation(leadership.led)
            leading = asyncio.create_task(leadership.run(), name="leadership")
            report = partial(_report, client, member.id, services.planning, session, refused)
            reporting = asyncio.create_task(kept_running("reporting", report), name="reporting")
            self.ready.set()
            notify_manager("READY=1")
            log.info("coordinator_ready", extra={"member": member.id, "lease": session.lease_id})
            try:
                await _either(self._stop.wait(), session.lost.wait())
            finally:
                self.member = ""
                # First stop acting, then release: nothing of this epoch runs once another one can begin.
                await cancel_all(leading, reporting)


async def _load_types(registry: Registry, processes: Processes, threads: Executor) -> str:
    """Load user-defined types, and the modules of such steps, before any call needs them: first where what
    hangs can be ended, then here. A type that cannot be loaded is refused, and holds up no other; return what
    to say of those.
    """
    loop, failed = asyncio.get_running_loop(), dict[str, str]()
    types, steps = registry.of_users(), StepRegistry().of_users()
    if types or steps:
        with suppress(NotLoaded):
            await processes.load(__name__)  # what calls of types begin with
    for name, module in types.items():
        try:
            await processes.load(module)
            async with asyncio.timeout(LOAD_HERE_S):
                await loop.run_in_executor(threads, registry.load, name)
        except Exception as error:
            why = str(error) or f"loading it takes longer than {LOAD_HERE_S:g} s"
            registry.refuse(name, why)
            failed[f"type {name}"] = why
    for module in steps:
        try:
            await processes.load(module)
        except NotLoaded as error:
            failed[f"commit steps of {module}"] = str(error)
    for subject, why in failed.items():
        log.error("type_not_loaded", extra={"type": subject, "error": why})
    processes.operations = registry.extra
    return "; ".join(
        f"it cannot use {subject} until it is restarted: {why}" for subject, why in failed.items()
    )


async def _report(
    client: EtcdClient, member: str, planning: Work, session: LeaseSession, refused: str
) -> None:
    """Keep slow plans, types that cannot be loaded, and a slow etcd in the member's record. Slow calls of
    completions are recorded with their operations."""
    reported: tuple[list[LongCall], list[HeldUp]] | None = None
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        long = planning.long()[:MAX_REPORTED]
        calls = [LongCall(table=call.table, what=call.label, since=call.at) for call in long]
        words = "; ".join(filter(None, (registration.slow_etcd(session.trips), refused)))
        held_up = registration.held_up_now(reported[1] if reported else [], {"": words})
        if (calls, held_up) == reported:
            continue
        key = client.keyspace.coordinator(member)
        await registration.change_own_record(client, key, calls=calls, held_up=held_up)
        reported = calls, held_up


async def _count_tables(client: EtcdClient, metrics: Metrics) -> None:
    """Keep the counts of tables that are blocked, parked or waiting; none while etcd cannot be read."""
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        try:
            metrics.tables(await count_tables(client))
        except BaseException:
            metrics.tables({})
            raise
        await asyncio.sleep(max(COUNT_EVERY_S, COUNT_SHARE * (clock() - began)))


async def _finished(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


async def _either(*waits: Awaitable[object]) -> None:
    """Wait until one of several things has happened."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def serve(config: CoordinatorConfig, on_ready: Callable[[Coordinator], None] | None = None) -> None:
    """Run a coordinator until SIGTERM or SIGINT."""
    coordinator = Coordinator(config)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, coordinator.stop)
    running = asyncio.create_task(coordinator.run())
    if on_ready is not None:
        await _either(coordinator.ready.wait(), _finished(running))
        if not running.done():
            on_ready(coordinator)
    await running


def run(config: CoordinatorConfig) -> int:
    """Run a coordinator in this process until SIGTERM or SIGINT; the exit code."""
    settle_heap()
    code = 0
    try:
        uvloop.run(serve(config))
    except DistopError as error:
        log.error("coordinator_failed", extra={"code": error.code, "error": str(error)})
        code = error.kind.exit_code
    if hanging := _hanging_threads():
        # Python would wait for them without end. Their work is repeated elsewhere or no longer needed.
        log.warning("threads_abandoned", extra={"threads": hanging})
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _hanging_threads() -> list[str]:
    """Planning or publishing that has not ended shortly after everything else."""
    deadline = time.monotonic() + LAST_S
    names = (ANSWERING, WORKING, CATALOG, WORKERS)
    own = [thread for thread in threading.enumerate() if thread.name.startswith(names)]
    for thread in own:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in own if thread.is_alive()]
