"""The claims that tasks of this host hold, under one lease.

A lease is an incarnation: when it is lost all claims under it are lost, and the next one starts without any.
One task looks again and again at what is bound to the lease, and releases the claims that are nobody's: those
of tasks that vanished, of runs that are over, of requests whose outcome stayed unknown or that arrived late.
So no attempt waits for a lease that this host keeps renewing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Protocol

from distop.errors import Compacted, DistopError, LeaseLost
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue
from distop.metastore.etcd.watch import KeyEvent, watch
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import (
    Claimed,
    Occupied,
    Outcome,
    Verdict,
    claim,
    release_claim,
    save_checkpoint,
)
from distop.metastore.operations.runs import Run
from distop.metastore.records.operation import ClaimRecord
from distop.metastore.records.record import readable
from distop.process.loop import cancel_all, log_failure

log = logging.getLogger(__name__)

CLAIM_WAIT_S = 20.0
"""How long a request for a claim waits for the attempt that holds it, before the task has to ask again."""

LOOK_S, _RETRY_S = 10.0, 0.5
"""How often a desk looks whether claims are nobody's without a reason to do so, in seconds."""

# Not sent yet, for want of a lease.
_NOBODY_YET = Occupied("", KeyValue.missing(b""), 0)


class Claimant(Protocol):
    """The holder of a claim. Called on the event loop; must not block."""

    closed: bool
    """Whether it is gone, so that a claim made for it must be released."""

    def claim_lost(self, run: Run, partition: str, claim: int, reason: str) -> None:
        """The claim is gone; the attempt no longer owns the job."""


@dataclass
class _Held:
    run: Run
    partition: str
    claim: int
    checkpoint: KeyValue
    claimant: Claimant


class ClaimDesk:
    """Makes claims and saves checkpoints for tasks; belongs to one event loop."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._member = ""
        self.begun = 0
        """How many leases this process has had so far."""
        self._session: LeaseSession | None = None
        self._renewed = asyncio.Event()
        self._held: dict[bytes, _Held] = {}
        """By the key of the claim, as all that follows."""
        self._asking: dict[bytes, list[str]] = {}
        """Attempts whose claim may be in transit."""
        self._due = asyncio.Event()
        """Set when a claim may be nobody's."""
        self._looking: asyncio.Task[None] | None = None

    def begin(self, member: str, session: LeaseSession) -> None:
        """Claim under this lease from now on. ``member`` names its owner for users who read a claim."""
        self._member, self._session = member, session
        self.begun += 1
        self._renewed.set()

    @property
    def owned_until(self) -> float:
        """Until when all claims are certainly held, by ``boot_clock``."""
        return self._session.deadline if self._session is not None else 0.0

    def lease_lost(self) -> None:
        """All claims are lost with the lease; requests wait for the next :meth:`begin`."""
        self._session = None
        self._renewed.clear()
        for held in list(self._held.values()):
            self._lose(held, "the sidecar has lost its lease")

    def leave_claims(self) -> bool:
        """Leave the claims for the next sidecar to move to its lease; return whether there are any."""
        held = bool(self._held)
        self._held.clear()
        if self._looking is not None:
            self._looking.cancel()
        return held

    async def claim(
        self, run: Run, claimant: Claimant, partition: str, attempt: str, *, held: int = 0
    ) -> Claimed | Occupied | Verdict:
        """Claim a job, waiting :data:`CLAIM_WAIT_S` for an attempt that holds it.

        ``held`` is a claim of the attempt from an earlier incarnation of this host's sidecar, which is moved
        to this lease.
        """
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="claims")
        key = run.keys.claim(partition)
        self._asking.setdefault(key, []).append(attempt)
        try:
            answer, session = await self._claim_or_wait(run, partition, attempt, held)
        except (DistopError, asyncio.CancelledError):
            self._due.set()  # it may have been made all the same
            raise
        finally:
            self._asking[key].remove(attempt)
            if not self._asking[key]:
                del self._asking[key]
        if isinstance(answer, Verdict) and answer.outcome is Outcome.GONE:
            self._due.set()  # a copy whose reply was lost may have made it while the run was held
        if isinstance(answer, Claimed):
            if claimant.closed or session is not self._session:
                self._due.set()
                return Verdict(Outcome.GONE, "the sidecar has lost its lease")
            self._held[key] = _Held(run, partition, answer.claim, answer.checkpoint, claimant)
        return answer

    async def release(self, run: Run, partition: str, claim: int) -> None:
        """Release the claim of a job, given the create revision of its key."""
        self.forget(run, partition, claim)
        await release_claim(self._client, run.keys.claim(partition), claim)

    async def save(self, run: Run, partition: str, claim: int, value: bytes) -> Verdict | None:
        """Save a checkpoint; a verdict if the attempt no longer owns the job."""
        held = self._held.get(run.keys.claim(partition))
        if held is None or held.claim != claim:
            return Verdict(Outcome.GONE, "its claim is lost")
        saved = await save_checkpoint(self._client, run, partition, claim, value, held.checkpoint)
        if isinstance(saved, Verdict):
            return saved
        held.checkpoint = saved
        return None

    def forget(self, run: Run, partition: str, claim: int) -> None:
        """The job's mark released the claim, or the task did."""
        key = run.keys.claim(partition)
        if key in self._held and self._held[key].claim == claim:
            del self._held[key]

    def claimant_gone(self, claimant: Claimant, run: Run | None = None) -> None:
        """Release all that it holds: its process has ended. With ``run``: for that, which it has left."""
        for held in list(self._held.values()):
            if held.claimant is claimant and (run is None or held.run.key == run.key):
                self._give_back(held)

    async def close(self) -> None:
        """Stop everything in progress. Its claims end with its lease."""
        await cancel_all(self._looking)

    # -- events of the watch over the run (see ClaimListener) ----------------------------------------

    def claims_listed(self, run: Run, claims: dict[str, KeyValue], revision: int) -> None:
        for held in self._held_for(run):
            existing = claims.get(held.partition)
            younger = held.claim > revision
            if not younger and (existing is None or existing.create_revision != held.claim):
                self._lose(held, "its claim is lost")

    def claim_changed(self, run: Run, partition: str, event: KeyEvent) -> None:
        held = self._held.get(event.kv.key)
        if held is not None and event.is_delete and event.kv.mod_revision > held.claim:
            self._lose(held, "its claim is lost")

    def claims_over(self, run: Run) -> None:
        # The operation may go on with another run, on hosts that could only wait for the end of our lease.
        for held in self._held_for(run):
            self._give_back(held)

    def _held_for(self, run: Run) -> list[_Held]:
        return [held for held in self._held.values() if held.run.key == run.key]

    def _lose(self, held: _Held, reason: str) -> None:
        self.forget(held.run, held.partition, held.claim)
        held.claimant.claim_lost(held.run, held.partition, held.claim, reason)

    # -- claiming and giving back --------------------------------------------------------------------

    def _give_back(self, held: _Held) -> None:
        self.forget(held.run, held.partition, held.claim)
        self._due.set()

    async def _look(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._release_nobodys()
            except Exception as error:
                log_failure(log, "claims_not_released", error)
                self._due.set()
                await asyncio.sleep(_RETRY_S)

    async def _release_nobodys(self) -> None:
        """Release each claim under the lease that no attempt here holds or asks for. No other process can
        end it while we renew the lease."""
        if (session := self._session) is None:
            return
        bound = await self._client.lease_keys(session.lease_id)
        keys = [key for key in bound if key.endswith(b".claim") and key not in self._held]
        if not keys:
            return
        read = await self._client.read_many([Get(key) for key in keys])
        records = read.each(keys)
        nobodys = [
            release_claim(self._client, kv.key, kv.create_revision) for kv in records if self._is_nobodys(kv)
        ]
        await asyncio.gather(*nobodys)

    def _is_nobodys(self, existing: KeyValue) -> bool:
        if self._session is None or existing.lease != self._session.lease_id or existing.key in self._held:
            return False
        record = readable(existing.value, ClaimRecord)
        return record is None or record.attempt not in self._asking.get(existing.key, ())

    async def _claim_or_wait(
        self, run: Run, partition: str, attempt: str, held: int
    ) -> tuple[Claimed | Occupied | Verdict, LeaseSession | None]:
        deadline = asyncio.get_running_loop().time() + CLAIM_WAIT_S
        answer: Claimed | Occupied | Verdict = _NOBODY_YET
        while True:
            # Only waiting is cut short, never a transaction: its effect must be known.
            try:
                async with asyncio.timeout_at(deadline):
                    if isinstance(answer, Occupied) and answer is not _NOBODY_YET:
                        if self._is_nobodys(answer.existing):
                            self._due.set()
                        await self._until_changed(run, partition, answer.revision)
                    await self._renewed.wait()
            except TimeoutError:
                return answer, None
            session = self._session
            if session is None:
                continue
            record = ClaimRecord(attempt=attempt, member=self._member)
            try:
                answer = await claim(self._client, run, partition, record, session.lease_id, held=held)
            except LeaseLost:
                answer = _NOBODY_YET
                if session is self._session:
                    self.lease_lost()  # etcd knew before our own clock did
            if not isinstance(answer, Occupied):
                return answer, session

    async def _until_changed(self, run: Run, partition: str, revision: int) -> None:
        """Wait for a change of the job's keys: claim, progress and state are adjacent."""
        start, end = run.keys.claim(partition), run.keys.job_state(partition) + b"\0"
        changes = watch(self._client, start, end, from_revision=revision + 1)
        progress = run.keys.progress(partition)
        try:
            async with aclosing(changes):
                async for batch in changes:
                    if any(event.kv.key != progress for event in batch.events):
                        return
        except Compacted:
            return
