"""One task's connection to its sidecar, seen from the sidecar."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

from distop.errors import CorruptRecord, DistopError, Exhausted, InvalidArgument, shortened
from distop.executor.ledger.ledger import Ledger
from distop.executor.sidecar import wire
from distop.metastore.operations import claims
from distop.metastore.operations.jobs import Mark, Verdict
from distop.metastore.operations.runs import Run
from distop.metastore.operations.tries import count_try
from distop.metastore.records.names import MAX_NAME_BYTES
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES
from distop.metastore.records.operation_id import OperationId

log = logging.getLogger(__name__)

HIGH_WATER, LOW_WATER = 2048, 512
"""Unanswered marks at which the sidecar stops reading from a connection, and at which it resumes."""

MAX_RUNS = 64
"""Runs that one connection may be attached to; a task has one."""

MAX_REQUESTS = 64
"""Concurrent claims and checkpoints of one connection; a task has one."""


class Connection(asyncio.Protocol):
    """Reads a task's requests, and answers them when etcd does."""

    def __init__(self, ledger: Ledger, connections: set[Connection], *, refuse: bool) -> None:
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
            case wire.Marks():
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
            case wire.Claim():
                self._soon(message.number, self._claim(self._runs[message.run], message))
            case wire.Release():
                self._soon(message.number, self._release(self._runs[message.run], message))
            case wire.Tried():
                self._soon(message.number, self._count_try(self._runs[message.run], message))
            case wire.Save():
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

    async def _claim(self, run: Run, asked: wire.Claim) -> None:
        answer = await self._ledger.desk.claim(run, self, asked.partition, asked.attempt, held=asked.held)
        if isinstance(answer, claims.Claimed) and self._runs.get(asked.run) is not run and not self.closed:
            await self._ledger.desk.release(run, asked.partition, answer.claim)  # it has left meanwhile
            return
        match answer:
            case claims.Claimed():
                found = answer.checkpoint
                checkpoint = found.value if found.exists else None
                until = self._ledger.desk.owned_until
                self._reply(wire.Claimed(asked.number, answer.claim, checkpoint, until))
            case claims.Occupied():
                self._reply(wire.Occupied(asked.number, answer.holder))
            case Verdict():
                self._reply(wire.Refused(asked.number, answer.outcome, answer.reason))

    async def _release(self, run: Run, asked: wire.Release) -> None:
        await self._ledger.desk.release(run, asked.partition, asked.claim)
        self._reply(wire.Done(asked.number))

    async def _save(self, run: Run, asked: wire.Save) -> None:
        verdict = await self._ledger.desk.save(run, asked.partition, asked.claim, asked.value)
        if verdict is None:
            self._reply(wire.Done(asked.number))
        else:
            self._reply(wire.Refused(asked.number, verdict.outcome, verdict.reason))

    async def _count_try(self, run: Run, asked: wire.Tried) -> None:
        await count_try(self._ledger.client, run, asked.partition, asked.attempt, asked.error)
        self._reply(wire.Done(asked.number))

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
        """See :class:`~distop.executor.ledger.batcher.Submitter`."""
        self._reply(wire.Verdicts([(number, said.outcome, said.reason) for number, _, said in answers]))
        self._read_on(len(answers))

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """See :class:`~distop.executor.ledger.batcher.Submitter`."""
        self._reply(wire.failed(numbers, error))
        self._read_on(len(numbers))

    def _read_on(self, answered: int) -> None:
        self._unanswered -= answered
        if self._paused and not self.closed and self._unanswered <= LOW_WATER:
            self._paused = False
            self._transport.resume_reading()

    def run_over(self, run: Run, reason: str) -> None:
        """See :class:`~distop.executor.ledger.oversight.RunListener`."""
        for number in self._numbers_of(run):
            self._reply(wire.Over(number, reason))

    def claim_lost(self, run: Run, partition: str, claim: int, reason: str) -> None:
        """See :class:`~distop.executor.ledger.claims.Claimant`."""
        for number in self._numbers_of(run):
            self._reply(wire.ClaimLost(number, partition, claim, reason))

    def renewed(self, until: float) -> None:
        """The lease of all claims was renewed."""
        if self._claims:
            self._reply(wire.Renewed(until))

    def _numbers_of(self, run: Run) -> list[int]:
        return [number for number, known in self._runs.items() if known.key == run.key]
