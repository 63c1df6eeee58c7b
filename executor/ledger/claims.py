"""The claims that tasks of this host hold, under one lease.

A lease is an incarnation: when it is lost all claims under it are lost, and the next one starts without any.
Claims of tasks that vanished are released, so that another attempt need not wait for a lease that this
host keeps renewing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from distop.errors import Compacted, CorruptRecord, DistopError, LeaseLost
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.etcd.watch import Event, watch
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.claims import Claimed, Occupied, claim, release_claim, save_checkpoint
from distop.metastore.operations.jobs import Outcome, Verdict
from distop.metastore.operations.runs import Run
from distop.metastore.records.operation import ClaimRecord
from distop.metastore.records.record import decode

log = logging.getLogger(__name__)

CLAIM_WAIT_S = 20.0
"""How long a request for a claim waits for the attempt that holds it, before the task has to ask again."""

_Key = tuple[bytes, int, str]

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
        """Leases so far."""
        self._session: LeaseSession | None = None
        self._renewed = asyncio.Event()
        self._held: dict[_Key, _Held] = {}
        self._asking: dict[_Key, list[str]] = {}
        """Attempts whose claim may be in transit."""
        self._chores: set[asyncio.Task[None]] = set()

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
        return held

    async def claim(
        self, run: Run, claimant: Claimant, partition: str, attempt: str, *, held: int = 0
    ) -> Claimed | Occupied | Verdict:
        """Claim a job, waiting :data:`CLAIM_WAIT_S` for an attempt that holds it.

        ``held`` is a claim of the attempt from an earlier incarnation of this host's sidecar, which is moved
        to this lease.
        """
        key = (*run.key, partition)
        self._asking.setdefault(key, []).append(attempt)
        try:
            answer, session = await self._claim_or_wait(run, partition, attempt, held)
        except (DistopError, asyncio.CancelledError):
            # It may have been made anyway, and its watch event was ignored while we asked.
            self._soon(self._disown(run, partition, attempt))
            raise
        finally:
            self._asking[key].remove(attempt)
            if not self._asking[key]:
                del self._asking[key]
        if isinstance(answer, Verdict) and answer.outcome is Outcome.GONE:
            # A copy whose reply was lost may have made it while the run was held.
            self._soon(self._disown(run, partition, attempt))
        if isinstance(answer, Claimed):
            if claimant.closed or session is not self._session:
                self._soon(self._release(run, partition, answer.claim))
                return Verdict(Outcome.GONE, "the sidecar has lost its lease")
            self._held[key] = _Held(run, partition, answer.claim, answer.checkpoint, claimant)
        return answer

    async def release(self, run: Run, partition: str, claim: int) -> None:
        """Release a claim."""
        self.forget(run, partition, claim)
        await release_claim(self._client, run, partition, claim)

    async def save(self, run: Run, partition: str, claim: int, value: bytes) -> Verdict | None:
        """Save a checkpoint; a verdict if the attempt no longer owns the job."""
        held = self._held.get((*run.key, partition))
        if held is None or held.claim != claim:
            return Verdict(Outcome.GONE, "its claim is lost")
        saved = await save_checkpoint(self._client, run, partition, claim, value, held.checkpoint)
        if isinstance(saved, Verdict):
            return saved
        held.checkpoint = saved
        return None

    def forget(self, run: Run, partition: str, claim: int) -> None:
        """The job's mark released the claim, or the task did."""
        held = self._held.get((*run.key, partition))
        if held is not None and held.claim == claim:
            del self._held[*run.key, partition]

    def claimant_gone(self, claimant: Claimant, run: Run | None = None) -> None:
        """Release all that it holds: its process has ended. With ``run``: for that, which it has left."""
        for held in list(self._held.values()):
            if held.claimant is claimant and (run is None or held.run.key == run.key):
                self._give_back(held)

    async def close(self) -> None:
        """Stop everything in progress. Its claims end with its lease."""
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    # -- events of the watch over the run (see ClaimListener) ----------------------------------------

    def claims_listed(self, run: Run, claims: dict[str, KeyValue], revision: int) -> None:
        for held in [held for key, held in self._held.items() if key[:2] == run.key]:
            standing = claims.get(held.partition)
            younger = held.claim > revision
            if not younger and (standing is None or standing.create_revision != held.claim):
                self._lose(held, "its claim is lost")
        for partition, standing in claims.items():
            self._release_if_nobodys(run, partition, standing)

    def claim_changed(self, run: Run, partition: str, event: Event) -> None:
        held = self._held.get((*run.key, partition))
        if event.kind == "put":
            self._release_if_nobodys(run, partition, event.kv)
        elif held is not None and event.kv.mod_revision > held.claim:
            self._lose(held, "its claim is lost")

    def claims_over(self, run: Run) -> None:
        # The operation may go on with another run, on hosts that could only wait for the end of our lease.
        for held in [held for key, held in self._held.items() if key[:2] == run.key]:
            self._give_back(held)

    def _release_if_nobodys(self, run: Run, partition: str, standing: KeyValue) -> None:
        """A delayed copy of a claim may arrive after its attempt has ended. Under our own lease we can detect
        it, and no other process could end it while we renew the lease."""
        key = (*run.key, partition)
        if self._session is None or standing.lease != self._session.lease_id:
            return
        asking, held = self._asking.get(key, []), self._held.get(key)
        # A claim listed without its value may belong to any requester; they will see for themselves.
        may_be_asked_for = bool(asking) and (not standing.value or _attempt_of(standing) in asking)
        if not may_be_asked_for and (held is None or held.claim != standing.create_revision):
            self._soon(self._release(run, partition, standing.create_revision))

    def _lose(self, held: _Held, reason: str) -> None:
        self.forget(held.run, held.partition, held.claim)
        held.claimant.claim_lost(held.run, held.partition, held.claim, reason)

    # -- claiming and giving back --------------------------------------------------------------------

    def _give_back(self, held: _Held) -> None:
        self.forget(held.run, held.partition, held.claim)
        self._soon(self._release(held.run, held.partition, held.claim))

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
                        self._release_if_nobodys(run, partition, answer.standing)
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

    async def _disown(self, run: Run, partition: str, attempt: str) -> None:
        standing = await self._client.get(run.keys.claim(partition))
        if standing.exists and _attempt_of(standing) == attempt:
            self._release_if_nobodys(run, partition, standing)

    async def _release(self, run: Run, partition: str, claim: int) -> None:
        await release_claim(self._client, run, partition, claim)

    def _soon(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._tolerate(chore))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _tolerate(self, chore: Coroutine[Any, Any, None]) -> None:
        try:
            await chore
        except DistopError as error:
            log.warning("claim_not_released", extra={"error": str(error)})


def _attempt_of(standing: KeyValue) -> str:
    try:
        return decode(standing.value, ClaimRecord, standing.key).attempt
    except CorruptRecord:
        return ""
