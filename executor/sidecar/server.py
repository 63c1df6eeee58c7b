"""The sidecar: one process per worker host, through which the tasks there reach etcd.

It holds the lease of the host's claims, groups marks, and notifies tasks the moment their work is no longer
needed. Tasks talk to it over a Unix socket (see ``wire.py``). It keeps no state that could be lost: a mark is
answered once etcd has it, and a task without an answer sends it again, to this sidecar or the
next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from distop.errors import DistopError, Unavailable
from distop.executor.host.connect import connect
from distop.executor.host.folder_sweep import sweep_folders
from distop.executor.host.scratch_sweep import keep_swept
from distop.executor.host.sidecar_folder import SidecarFolder, is_locked, wait_for_lock
from distop.executor.ledger.ledger import Ledger
from distop.executor.sidecar.connection import Connection
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.members import incarnation
from distop.metastore.members.own_record import own_record
from distop.metastore.members.registration import registered
from distop.process.followers import kept_running
from distop.process.heap import settle_heap
from distop.process.loop import event_loop
from distop.process.systemd import tell_manager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from distop.executor.host.metrics import MetricsConfig, ServedMetrics

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
"""Most connected tasks; more are refused."""

YIELD_S = 60.0
"""How long ``distop sidecar`` waits for the sidecar that a task has started to end."""

_RETRY_S = 0.5

_LOOK_S = 0.5
"""How often a sidecar that a task has started looks whether ``distop sidecar`` waits for it to end."""

_SUCCEED_S = 5.0
"""How long ``distop sidecar`` waits for one that has been asked to end."""


@dataclass(frozen=True, kw_only=True)
class SidecarConfig:
    """The settings of a sidecar."""

    etcd: EtcdConfig
    folder: Path | None = None
    """The folder of its socket; by default where tasks look for it."""
    lease_ttl_s: int = 5
    """Seconds after which the claims of a host that vanished are free."""
    idle_exit_s: float | None = None
    """End after this many seconds without a connection, or when one that never ends by itself (``None``)
    waits to take over."""
    drain_s: float = 2.0
    """How long marks in progress may take when it is asked to end."""
    metrics: MetricsConfig | None = None
    """Where its metrics are served; ``None``: nowhere."""

    @property
    def place(self) -> SidecarFolder:
        return (
            SidecarFolder(self.folder)
            if self.folder
            else SidecarFolder.of(self.etcd.endpoints, self.etcd.prefix)
        )


@dataclass
class Sidecar:
    """A sidecar that serves on an event loop."""

    config: SidecarConfig
    connections: set[Connection] = field(default_factory=set)
    accepted: int = 0
    refused: int = 0
    """Connections so far."""
    _last_connected: float = 0.0
    _leaves_claims: bool = False

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``, or until no task has been connected for long enough."""
        place = self.config.place
        client, metrics = connect(self.config.etcd, self.config.metrics)
        self.ledger = Ledger(client)
        loop = asyncio.get_running_loop()
        place.socket.unlink(missing_ok=True)  # of a killed predecessor; its lock is ours now
        server = await loop.create_unix_server(self._connected, str(place.socket), backlog=128)
        os.chmod(place.socket, 0o600)  # other users cannot reach it in its folder either
        lease = asyncio.create_task(kept_running("lease", partial(self._keep_lease, client)))
        dead = asyncio.create_task(asyncio.to_thread(sweep_folders, place), name="sidecar-places")
        sweep = asyncio.create_task(kept_running("scratch", partial(keep_swept, client, place.scratch)))
        reached("sidecar.middle")
        place.pid_file.write_text(f"{os.getpid()}\n")
        tell_manager("READY=1")
        log.info("sidecar_started", extra={"socket": str(place.socket)})
        try:
            if metrics is not None:
                await self._show(metrics)
            await self._until_idle(stop)
        finally:
            # New tasks must find no sidecar before the present ones are released: they then start another
            # one.
            place.socket.unlink(missing_ok=True)
            server.close()
            await self.ledger.batcher.flush(self.config.drain_s)
            self._leaves_claims = self.ledger.desk.leave_claims()
            for connection in list(self.connections):
                connection.close()
            sweep.cancel()
            lease.cancel()
            await asyncio.gather(lease, sweep, dead, return_exceptions=True)
            await self.ledger.close()
            if metrics is not None:
                await metrics.stop()
            await client.close()
            place.pid_file.unlink(missing_ok=True)
            log.info("sidecar_stopped")

    def _connected(self) -> Connection:
        self._last_connected = asyncio.get_running_loop().time()
        full = len(self.connections) >= MAX_CONNECTIONS
        self.accepted += not full
        self.refused += full
        return Connection(self.ledger, self.connections, refuse=full)

    async def _show(self, metrics: ServedMetrics) -> None:
        from distop.executor.ledger.metrics import is_registered
        from distop.executor.sidecar.metrics import sidecar_metrics

        def read() -> Iterator[Metric]:
            connected = len(self.connections)
            return sidecar_metrics(
                self.ledger, connected=connected, accepted=self.accepted, refused=self.refused
            )

        await metrics.start(read, lambda: is_registered(self.ledger))

    def _renewed(self, until: float) -> None:
        for connection in self.connections:
            connection.renewed(until)

    async def _until_idle(self, stop: asyncio.Event) -> None:
        idle_s, clock = self.config.idle_exit_s, asyncio.get_running_loop().time
        self._last_connected = clock()
        while not stop.is_set():
            if self.connections:
                self._last_connected = clock()
            elif idle_s is not None and clock() - self._last_connected >= idle_s:
                log.info("sidecar_idle")
                return
            if idle_s is not None and is_locked(self.config.place.service_lock):
                log.info("sidecar_gives_way")
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if idle_s is None else min(_LOOK_S, max(0.05, idle_s / 4))):
                    await stop.wait()

    async def _keep_lease(self, client: EtcdClient) -> None:
        """One lease after the other, each a new incarnation; ends (with its lease) when cancelled."""
        desk, loop = self.ledger.desk, asyncio.get_running_loop()

        def renewed(until: float) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._renewed, until)

        while True:
            session = LeaseSession(client, self.config.lease_ttl_s, renewed=renewed)
            member = incarnation("sidecar")
            try:
                await session.start()
                entry = registered(
                    client,
                    session,
                    own_record(member, "sidecar"),
                    missed=self.config.idle_exit_s is None,  # one that a task has started comes and goes
                    replied=lambda: reached("sidecar.register.after"),
                )
                async with entry:
                    log.info("sidecar_registered", extra={"member": member})
                    desk.begin(member, session)
                    await session.lost.wait()
                    log.warning("sidecar_lease_lost")
                    desk.lease_lost()
            except DistopError as error:
                log.warning("sidecar_lease_not_granted", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_S)
            finally:
                if self._leaves_claims:
                    # The lease must stay until its claims have moved to the next sidecar's.
                    with contextlib.suppress(DistopError):
                        await client.delete(client.keyspace.executor(member))
                await session.close(revoke=not self._leaves_claims)


def run(config: SidecarConfig) -> int:
    """Serve until SIGTERM, SIGINT, or idle; the exit code. Also 0 if another sidecar serves here and goes on.

    Raises
    ------
    Unavailable
        The sidecar that a task has started did not end for this one within :data:`YIELD_S`.
    """
    place = config.place.prepare()
    with contextlib.ExitStack() as locks:

        def taken(path: Path, patience_s: float = 0.0) -> bool:
            lock = wait_for_lock(path, patience_s)
            if lock is not None:
                locks.callback(os.close, lock)
            return lock is not None

        service = config.idle_exit_s is None and taken(place.service_lock, _SUCCEED_S)
        serves = taken(place.serving_lock, YIELD_S if service else 0.0)
        if service and not serves:
            raise Unavailable(
                f"the sidecar at {place.socket} does not end for this one",
                hint=f"end its process, which {place.pid_file} names",
            )
        if not serves:
            log.info("sidecar_runs_already", extra={"socket": str(place.socket)})
            return 0
        settle_heap()
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(_until_signalled(config))
    return 0


async def _until_signalled(config: SidecarConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Sidecar(config).serve(stop)


def main(arguments: list[str] | None = None) -> int:
    """The program that a task starts when its host has no sidecar. The environment names etcd."""
    parser = argparse.ArgumentParser(prog="distop-sidecar", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle-exit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--lease-ttl", type=int, default=5, metavar="SECONDS")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return run(
        SidecarConfig(
            etcd=EtcdConfig.from_env(),
            folder=given.folder,
            idle_exit_s=given.idle_exit,
            lease_ttl_s=given.lease_ttl,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
