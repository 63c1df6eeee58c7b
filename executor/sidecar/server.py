"""The sidecar: one process per worker host, through which the tasks there reach etcd.

It holds the lease of the host's claims, groups marks, and notifies tasks the moment their work is no longer
needed. Tasks talk to it over a Unix socket (see ``wire.py``), each by a :class:`TaskConnection`. It keeps no
state that could be lost: a mark is answered once etcd has it, and a task without an answer sends it again, to
this sidecar or the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from distop.errors import CorruptRecord, DistopError, Exhausted, InvalidArgument, Unavailable, shortened
from distop.executor.host.connect import connect
from distop.executor.host.scratch_sweep import keep_swept
from distop.executor.host.sidecar_folder import SidecarFolder, is_locked, sweep_folders, wait_for_lock
from distop.executor.ledger.ledger import Ledger
from distop.executor.sidecar import wire
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.registration import incarnation, own_record, registered
from distop.metastore.operations.jobs import Claimed, Mark, Occupied, Verdict, count_try
from distop.metastore.operations.runs import Run
from distop.metastore.records.names import MAX_NAME_BYTES, OperationId
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES
from distop.process.loop import cancel_all, event_loop, kept_running, log_failure, notify_manager, settle_heap

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from distop.executor.host.metrics import MetricsConfig, ServedMetrics

log = logging.getLogger(__name__)

HIGH_WATER, LOW_WATER = 2048, 512
"""Unanswered marks at which the sidecar stops reading from a connection, and at which it resumes."""

MAX_RUNS = 64
"""Runs that one connection may be attached to; a task has one."""

MAX_REQUESTS = 64
"""Concurrent claims and checkpoints of one connection; a task has one."""

MAX_CONNECTIONS = 1024
"""Most connected tasks; more are refused."""

YIELD_S = 60.0
"""How long ``distop sidecar`` waits for the sidecar that a task has started to end."""

_RETRY_S = 0.5

_LOOK_S = 0.5
"""How often a sidecar that a task has started looks whether ``distop sidecar`` waits for it to end."""

_SUCCEED_S = 5.0
"""How long ``distop sidecar`` waits for one that has been asked to end."""


class TaskConnection(asyncio.Protocol):
    """Reads a task's requests, and answers them when etcd does."""

    def __init__(self, ledger: Ledger, connections: set[TaskConnection], *, refuse: bool) -> None:
        self.closed = False
        self._ledger = ledger
        self._connections = connections
        self._refuse = refuse
        self._frames = wire.Frames(wire.FromTask)
        self._runs: dict[int, Run] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._claims = False
        self._unanswered = 0
        self._paused = False

    # -- the socket ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._connections.add(self)
        if self._refuse:
            self._reply(wire.failed([], Exhausted("too many tasks are connected to this sidecar")))
            self.close()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._handle(message)
        except (CorruptRecord, InvalidArgument, KeyError) as error:
            # The peer does not use our protocol; nothing it sends can be trusted.
            log.warning("connection_garbled", extra={"error": str(error)})
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._connections.discard(self)
        for run in self._runs.values():
            self._ledger.oversight.detach(run, self)
        self._runs.clear()
        # Requests in progress continue: their effect in etcd must be known, so that a claim without an owner
        # is released. Marks continue, too: their task may already be asking another sidecar.
        self._ledger.desk.claimant_gone(self)

    def close(self) -> None:
        """Answer what can be answered, then end."""
        self._transport.close()

    def _reply(self, message: wire.FromSidecar) -> None:
        if not self.closed:
            self._transport.write(wire.frame(message))

    # -- requests ------------------------------------------------------------------------------------

    def _handle(self, message: wire.FromTask) -> None:
        match message:
            case wire.MarkGroup():
                self._mark(self._runs[message.run], message.marks)
            case wire.Attach():
                if len(self._runs) >= MAX_RUNS:
                    raise InvalidArgument("more runs than a task has")
                operation = OperationId.parse(message.operation)
                run = Run(self._ledger.client.keyspace.operation(operation), message.token)
                self._runs[message.run] = run
                desk = self._ledger.desk if message.claims else None
                self._claims = self._claims or message.claims
                self._ledger.oversight.attach(run, self, claims=desk)
            case wire.Detach():
                run = self._runs.pop(message.run)
                self._ledger.oversight.detach(run, self)
                self._ledger.desk.claimant_gone(self, run)  # also of what it was given once the run was over
            case wire.ClaimRequest():
                self._soon(message.number, self._claim(self._runs[message.run], message))
            case wire.ReleaseRequest():
                self._soon(message.number, self._release(self._runs[message.run], message))
            case wire.AttemptFailed():
                self._soon(message.number, self._count_try(self._runs[message.run], message))
            case wire.SaveRequest():
                self._soon(message.number, self._save(self._runs[message.run], message))

    def _mark(self, run: Run, marks: list[tuple[int, Mark]]) -> None:
        good = [(number, mark) for number, mark in marks if self._acceptable(number, mark)]
        self._unanswered += len(good)
        if good:
            self._ledger.batcher.submit(run, self, good)
        if self._unanswered >= HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _acceptable(self, number: int, mark: Mark) -> bool:
        """One bad mark must not make etcd refuse its whole group."""
        if len(mark.value) <= MAX_JOB_RECORD_BYTES and len(mark.partition.encode()) <= MAX_NAME_BYTES:
            return True
        name = shortened(mark.partition, 100)
        too_large = InvalidArgument(
            f"the record or name of job {name!r} is too long: {len(mark.value):,} bytes"
        )
        self._reply(wire.failed([number], too_large))
        return False

    async def _claim(self, run: Run, asked: wire.ClaimRequest) -> None:
        answer = await self._ledger.desk.claim(run, self, asked.partition, asked.attempt, held=asked.held)
        if isinstance(answer, Claimed) and self._runs.get(asked.run) is not run and not self.closed:
            await self._ledger.desk.release(run, asked.partition, answer.claim)  # it has left meanwhile
            return
        match answer:
            case Claimed():
                existing = answer.checkpoint
                checkpoint = existing.value if existing.exists else None
                until = self._ledger.desk.owned_until
                self._reply(wire.ClaimAnswer(asked.number, answer.claim, checkpoint, until))
            case Occupied():
                self._reply(wire.ClaimOccupied(asked.number, answer.holder))
            case Verdict():
                self._reply(wire.Refused(asked.number, answer.outcome, answer.reason))

    async def _release(self, run: Run, asked: wire.ReleaseRequest) -> None:
        await self._ledger.desk.release(run, asked.partition, asked.claim)
        self._reply(wire.RequestDone(asked.number))

    async def _save(self, run: Run, asked: wire.SaveRequest) -> None:
        verdict = await self._ledger.desk.save(run, asked.partition, asked.claim, asked.value)
        if verdict is None:
            self._reply(wire.RequestDone(asked.number))
        else:
            self._reply(wire.Refused(asked.number, verdict.outcome, verdict.reason))

    async def _count_try(self, run: Run, asked: wire.AttemptFailed) -> None:
        await count_try(self._ledger.client, run, asked.partition, asked.attempt, asked.error)
        self._reply(wire.RequestDone(asked.number))

    def _soon(self, number: int, request: Coroutine[Any, Any, None]) -> None:
        if len(self._requests) >= MAX_REQUESTS:
            request.close()
            self._reply(wire.failed([number], Exhausted("too many requests of one task at once")))
            return
        task = asyncio.create_task(self._answer(number, request))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _answer(self, number: int, request: Coroutine[Any, Any, None]) -> None:
        try:
            await request
        except DistopError as error:
            self._reply(wire.failed([number], error))

    # -- events of the ledger ------------------------------------------------------------------------

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        """A call of :class:`~distop.executor.ledger.ledger.Submitter`."""
        self._reply(
            wire.Verdicts([(number, verdict.outcome, verdict.reason) for number, _, verdict in answers])
        )
        self._read_on(len(answers))

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """A call of :class:`~distop.executor.ledger.ledger.Submitter`."""
        self._reply(wire.failed(numbers, error))
        self._read_on(len(numbers))

    def _read_on(self, answered: int) -> None:
        self._unanswered -= answered
        if self._paused and not self.closed and self._unanswered <= LOW_WATER:
            self._paused = False
            self._transport.resume_reading()

    def run_over(self, run: Run, reason: str) -> None:
        """A call of :class:`~distop.executor.ledger.oversight.RunListener`."""
        for number in self._numbers_of(run):
            self._reply(wire.Over(number, reason))

    def claim_lost(self, run: Run, partition: str, claim: int, reason: str) -> None:
        """A call of :class:`~distop.executor.ledger.claims.Claimant`."""
        for number in self._numbers_of(run):
            self._reply(wire.ClaimLost(number, partition, claim, reason))

    def renewed(self, until: float) -> None:
        """The lease of all claims was renewed."""
        if self._claims:
            self._reply(wire.Renewed(until))

    def _numbers_of(self, run: Run) -> list[int]:
        return [number for number, known in self._runs.items() if known.key == run.key]


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
    def sidecar_folder(self) -> SidecarFolder:
        return (
            SidecarFolder(self.folder)
            if self.folder
            else SidecarFolder.of(self.etcd.endpoints, self.etcd.prefix)
        )


@dataclass
class Sidecar:
    """A sidecar that serves on an event loop."""

    config: SidecarConfig
    connections: set[TaskConnection] = field(default_factory=set)
    accepted: int = 0
    refused: int = 0
    """Connections that were accepted, and refused, so far."""
    _last_connected: float = 0.0
    _leaves_claims: bool = False

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``, or until no task has been connected for long enough."""
        folder = self.config.sidecar_folder
        client, metrics = connect(self.config.etcd, self.config.metrics)
        self.ledger = Ledger(client)
        loop = asyncio.get_running_loop()
        folder.socket.unlink(missing_ok=True)  # of a killed predecessor; its lock is ours now
        server = await loop.create_unix_server(self._connected, str(folder.socket), backlog=128)
        os.chmod(folder.socket, 0o600)  # other users cannot reach it in its folder either
        lease = asyncio.create_task(kept_running("lease", partial(self._keep_lease, client)))
        dead = asyncio.create_task(asyncio.to_thread(sweep_folders, folder), name="sidecar-places")
        sweep = asyncio.create_task(kept_running("scratch", partial(keep_swept, client, folder.scratch)))
        reached("sidecar.middle")
        folder.pid_file.write_text(f"{os.getpid()}\n")
        notify_manager("READY=1")
        log.info("sidecar_started", extra={"socket": str(folder.socket)})
        try:
            if metrics is not None:
                await self._show(metrics)
            await self._until_idle(stop)
        finally:
            # New tasks must find no sidecar before the present ones are released: they then start another
            # one.
            folder.socket.unlink(missing_ok=True)
            server.close()
            await self.ledger.batcher.flush(self.config.drain_s)
            self._leaves_claims = self.ledger.desk.leave_claims()
            for connection in list(self.connections):
                connection.close()
            await cancel_all(lease, sweep)
            await asyncio.gather(dead, return_exceptions=True)
            await self.ledger.close()
            if metrics is not None:
                await metrics.stop()
            await client.close()
            folder.pid_file.unlink(missing_ok=True)
            log.info("sidecar_stopped")

    def _connected(self) -> TaskConnection:
        self._last_connected = asyncio.get_running_loop().time()
        full = len(self.connections) >= MAX_CONNECTIONS
        self.accepted += not full
        self.refused += full
        return TaskConnection(self.ledger, self.connections, refuse=full)

    async def _show(self, metrics: ServedMetrics) -> None:
        from distop.executor.ledger.metrics import is_registered, sidecar_metrics

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
            if idle_s is not None and is_locked(self.config.sidecar_folder.service_lock):
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
                log_failure(log, "sidecar_lease_not_granted", error)
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
    folder = config.sidecar_folder.prepare()
    with contextlib.ExitStack() as locks:

        def taken(path: Path, patience_s: float = 0.0) -> bool:
            lock = wait_for_lock(path, patience_s)
            if lock is not None:
                locks.callback(os.close, lock)
            return lock is not None

        service = config.idle_exit_s is None and taken(folder.service_lock, _SUCCEED_S)
        serves = taken(folder.serving_lock, YIELD_S if service else 0.0)
        if service and not serves:
            raise Unavailable(
                f"the sidecar at {folder.socket} does not end for this one",
                hint=f"end its process, which {folder.pid_file} names",
            )
        if not serves:
            log.info("sidecar_runs_already", extra={"socket": str(folder.socket)})
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
