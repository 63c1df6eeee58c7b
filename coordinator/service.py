"""A coordinator process: gRPC on one side, leadership of tables on the other.

A process lives through one *incarnation* per lease. When its lease is lost (a long pause, an etcd that was
away) it stops leading, and begins again under a new identity; its gRPC side needs no lease and goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from distop.coordinator.api.server import start_server
from distop.coordinator.completion.completion import Completion
from distop.coordinator.completion.hooks import Hooks
from distop.coordinator.completion.parking import MAX_COMMIT_ATTEMPTS, Parking
from distop.coordinator.leading.leadership import Leadership
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.planner import Planner
from distop.coordinator.state.memory import Memory
from distop.errors import DistopError, EtcdDenied, InvalidArgument
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.members import incarnation
from distop.metastore.operations.requests import BRIEFLY_S, REMEMBER_S
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import encode
from distop.operations.registry import Registry

if TYPE_CHECKING:
    from distop.coordinator.web.app import WebServer

log = logging.getLogger(__name__)

BLOCKING_THREADS = 4
"""Threads for planning, and as many for publishing: blocking work of this process never exceeds them."""

PLANNING, PUBLISHING = "distop-planning", "distop-publishing"
"""What these threads are called."""

LAST_S = 0.5
"""Seconds that blocking work has to end once the process has stopped everything else."""

RETRY_S = 0.5
"""Pause before a new incarnation when etcd does not answer."""

GRACE_S = 2.0
"""Seconds that calls under way have to end when the process is asked to stop."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    """How a coordinator runs."""

    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    listen: str = "127.0.0.1:7070"
    """``host:port`` of the gRPC service; port 0 picks a free one."""
    web: str | None = None
    """``host:port`` of the page and of ``/metrics``; port 0 picks a free one, ``None`` leaves them out."""
    lease_ttl_s: int = 5
    """Seconds after which a dead coordinator loses its tables; etcd's floor is 2."""
    linger_s: float = 5.0
    """Seconds a leader keeps a table that has no work."""
    max_commit_attempts: int = MAX_COMMIT_ATTEMPTS
    """Failed attempts at completing an operation after which it is parked."""
    remember_requests_s: float = REMEMBER_S
    """Seconds for which request ids are remembered, from the start of their operation on."""
    operations: tuple[str, ...] | None = None
    """Operation types besides the installed ones, ``module:Class``; ``None``: from DISTOP_OPERATIONS."""

    def __post_init__(self) -> None:
        for name, address in (("listen", self.listen), ("web", self.web or self.listen)):
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or int(port) > 65_535:
                raise InvalidArgument(f"{address!r} is not host:port", details={"field": name})
        if self.max_commit_attempts < 1:
            raise InvalidArgument(
                "max_commit_attempts must be at least 1", details={"field": "max_commit_attempts"}
            )
        if not self.remember_requests_s >= BRIEFLY_S:
            raise InvalidArgument(
                f"request ids are remembered for {BRIEFLY_S:.0f} s at least",
                details={"field": "remember_requests_s"},
            )
        if self.lease_ttl_s < 2:
            raise InvalidArgument(
                f"a lease of {self.lease_ttl_s} s is under etcd's floor of 2 s",
                details={"field": "lease_ttl_s"},
            )


class Coordinator:
    """One coordinator in this event loop.

    ``address`` and ``web_address`` are known once :meth:`run` has bound the ports; ``ready`` is set when it
    serves.
    """

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.address = ""
        self.web_address = ""
        self.ready = asyncio.Event()
        self.member = ""
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask it to resign, drain and return from :meth:`run`. Safe to call twice, from the loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until :meth:`stop`."""
        registry = Registry(self.config.operations)
        registry.names()  # a wrong setting is reported now, not to every caller
        web, metrics = self._web()
        client = metrics.etcd_client(self.config.etcd)
        # Planning reads what users point at and may hang there; publishing must not wait for it.
        planning = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix=PLANNING)
        publishing = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix=PUBLISHING)
        planner = Planner(registry, planning, metrics)
        memory = Memory()
        server, port = await start_server(
            self.config.listen,
            client,
            planner,
            planning,
            metrics,
            self._stop,
            memory,
            self.config.remember_requests_s,
        )
        self.address = f"{self.config.listen.rpartition(':')[0]}:{port}"
        hooks = Hooks(PUBLISHING + "-hook")
        completion = Completion(
            client,
            registry,
            publishing,
            hooks=hooks,
            parking=Parking(client, max_attempts=self.config.max_commit_attempts),
            metrics=metrics,
            memory=memory,
        )
        log.info("coordinator_listening", extra={"address": self.address})
        try:
            if web is not None:
                await web.start()
                self.web_address = web.address
            while not self._stop.is_set():
                try:
                    await self._incarnation(client, completion, planner, metrics)
                except EtcdDenied:
                    if not self.ready.is_set():
                        raise  # it will not pass by itself
                    await _either(self._stop.wait(), asyncio.sleep(RETRY_S))
                except DistopError as error:
                    # An etcd that is away or full, a lease lost before it was used: all of it passes.
                    log.warning("incarnation_failed", extra={"code": error.code, "error": str(error)})
                    await _either(self._stop.wait(), asyncio.sleep(RETRY_S))
        finally:
            await server.stop(GRACE_S)
            if web is not None:
                await web.stop()
            planning.shutdown(wait=False, cancel_futures=True)
            publishing.shutdown(wait=False, cancel_futures=True)
            hooks.close()
            await client.close()
            log.info("coordinator_stopped", extra={"address": self.address})

    def _web(self) -> tuple[WebServer | None, Metrics]:
        """The page, unless it is left out, and what counts for it. Only then is either loaded."""
        if self.config.web is None:
            return None, Metrics()
        from distop.coordinator.metrics.prometheus import PrometheusMetrics
        from distop.coordinator.web.app import WebServer

        metrics = PrometheusMetrics()
        return WebServer(self.config.web, self.config.etcd, metrics, lambda: self.member), metrics

    async def _incarnation(
        self, client: EtcdClient, completion: Completion, planner: Planner, metrics: Metrics
    ) -> None:
        """Lead tables under one lease, until stopped or until the lease is lost."""
        session = await LeaseSession(client, self.config.lease_ttl_s).start()
        try:
            member = MemberRecord(
                id=incarnation("coordinator"),
                address=self.address,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_at=time.time(),
            )
            await client.put(client.keyspace.coordinator(member.id), encode(member), lease=session.lease_id)
            reached("coordinator.register.after")
            self.member = member.id
            leadership = Leadership(
                client,
                session,
                member,
                completion,
                planner=planner,
                linger_s=self.config.linger_s,
                metrics=metrics,
            )
            metrics.incarnation(leadership.led)
            leading = asyncio.create_task(leadership.run(), name="leadership")
            self.ready.set()
            log.info("coordinator_ready", extra={"member": member.id, "lease": session.lease_id})
            try:
                await _either(self._stop.wait(), session.lost.wait(), _finished(leading))
            finally:
                # First stop acting, then let go: nothing of this epoch runs once another one can begin.
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
            if not leading.cancelled() and leading.exception() is not None:
                raise leading.exception()  # type: ignore[misc]
        finally:
            await session.close()


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
    runner: Callable[..., None] = asyncio.run
    if find_spec("uvloop"):
        import uvloop

        runner = uvloop.run
    code = 0
    try:
        runner(serve(config))
    except DistopError as error:
        log.error("coordinator_failed", extra={"code": error.code, "error": str(error)})
        code = error.kind.exit_code
    if hanging := _hanging_threads():
        # Python would wait for them without end. What they do is repeated elsewhere or not wanted any more.
        log.warning("threads_abandoned", extra={"threads": hanging})
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _hanging_threads() -> list[str]:
    """Planning or publishing that has not ended, a moment after everything else has."""
    deadline = time.monotonic() + LAST_S
    ours = [thread for thread in threading.enumerate() if thread.name.startswith((PLANNING, PUBLISHING))]
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ours if thread.is_alive()]
