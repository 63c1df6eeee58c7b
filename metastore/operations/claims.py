"""Claims: one attempt owns a job, and its checkpoints.

A claim is a key bound to the lease of the attempt's sidecar; its create revision is the fence of everything
the attempt writes. An attempt that was paused past that lease has lost its claim, and can mark nothing and
save nothing, even if no other attempt has claimed the job since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distop.errors import InvalidArgument
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Put, Txn, absent, created_at, unchanged
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.operations.jobs import Outcome, Verdict
from distop.metastore.operations.runs import Run
from distop.metastore.records.operation import MAX_CHECKPOINT_BYTES, ClaimRecord
from distop.metastore.records.record import decode, encode

if TYPE_CHECKING:
    from distop.metastore.etcd.client import EtcdClient


@dataclass(frozen=True, slots=True)
class Claimed:
    """The job belongs to the attempt as long as the claim's key, created at ``claim``, exists."""

    claim: int
    checkpoint: KeyValue
    """The last checkpoint of an earlier attempt."""


@dataclass(frozen=True, slots=True)
class Occupied:
    """Another attempt owns the job."""

    holder: str
    """Id of that attempt."""
    standing: KeyValue
    """Its claim."""
    revision: int
    """The revision of the read, to watch from the next one on."""


def claim_txn(run: Run, partition: str, record: ClaimRecord, lease: int) -> Txn:
    """IF the run is held AND the job has no result AND no claim THEN a claim under ``lease``."""
    keys = run.keys
    claim, job, progress = keys.claim(partition), keys.job_state(partition), keys.progress(partition)
    return Txn(
        (*run.held(), absent(job), absent(claim)),
        (Put(claim, encode(record), lease), Get(progress)),
        (Get(keys.state), Get(keys.runner), Get(job), Get(claim)),
    )


def adopt_txn(run: Run, partition: str, record: ClaimRecord, claim: int, lease: int) -> Txn:
    """IF the claim created at ``claim`` still exists (and the rest of :func:`claim_txn`) THEN it is bound to
    ``lease``. Its create revision stays, so no other attempt can have owned the job in between."""
    keys = run.keys
    key, job = keys.claim(partition), keys.job_state(partition)
    return Txn(
        (*run.held(), absent(job), created_at(key, claim)),
        (Put(key, encode(record), lease), Get(keys.progress(partition))),
        (Get(keys.state), Get(keys.runner), Get(job), Get(key)),
    )


async def claim(
    client: EtcdClient, run: Run, partition: str, record: ClaimRecord, lease: int, *, held: int = 0
) -> Claimed | Occupied | Verdict:
    """Claim a job for an attempt, or move its claim to another lease.

    Parameters
    ----------
    held:
        Create revision of the attempt's existing claim; 0: it has none. A claim that was lost meanwhile is
        never silently created again: another attempt may have owned the job in between.

    Returns
    -------
    A :class:`Verdict` (LOST or GONE) when the job can no longer be claimed. A repetition after a lost reply
    finds its own claim by the attempt's id.

    Raises
    ------
    LeaseLost
        ``lease`` has expired; nothing was claimed.
    """
    key, job = run.keys.claim(partition), run.keys.job_state(partition)
    while True:
        txn = (
            adopt_txn(run, partition, record, held, lease)
            if held
            else claim_txn(run, partition, record, lease)
        )
        reached("claim.before")
        result = await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("claim.after"))
        if result.succeeded:
            return Claimed(held or result.revision, result.one(1, run.keys.progress(partition)))
        reason = run.why_over(result.one(0, run.keys.state), result.one(1, run.keys.runner))
        standing = result.one(3, key)
        if reason:
            return Verdict(Outcome.GONE, reason)
        if result.one(2, job).exists:
            return Verdict(Outcome.LOST, "the job has a result")
        if held:
            return Verdict(Outcome.GONE, "its claim is lost")
        owner = decode(standing.value, ClaimRecord, key)
        if owner.attempt != record.attempt:
            return Occupied(owner.attempt, standing, result.revision)
        # Our own, from a copy whose reply was lost. Under another lease if another sidecar sent that one.
        held = standing.create_revision


async def release_claim(client: EtcdClient, key: bytes, claim: int) -> None:
    """Release a claim, given its key and create revision; does nothing if it is already lost."""
    reached("unclaim.before")
    txn = Txn((created_at(key, claim),), (Delete(key),))
    await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("unclaim.after"))


def checkpoint_txn(run: Run, partition: str, claim: int, value: bytes, before: KeyValue) -> Txn:
    """IF the run is held AND the job has no result AND the claim exists AND the checkpoint is as known THEN
    it is ``value``. The last compare prevents a delayed older save from undoing a newer one."""
    keys = run.keys
    job, owned = keys.job_state(partition), created_at(keys.claim(partition), claim)
    return Txn(
        (*run.held(), absent(job), owned, unchanged(before)),
        (Put(keys.progress(partition), value),),
        (Get(keys.state), Get(keys.runner), Get(job), Get(keys.claim(partition)), Get(before.key)),
    )


async def save_checkpoint(
    client: EtcdClient, run: Run, partition: str, claim: int, value: bytes, before: KeyValue
) -> KeyValue | Verdict:
    """Save the progress of a claimed job.

    Parameters
    ----------
    before:
        The checkpoint that this attempt knows: from :class:`Claimed`, or from its last save.

    Returns
    -------
    The present checkpoint, for the next save; or a :class:`Verdict` (LOST or GONE) when the attempt no longer
    owns the job, and nothing was saved.

    Raises
    ------
    InvalidArgument
        See :func:`check_checkpoint`.
    """
    check_checkpoint(value)
    if claim <= 0:
        raise InvalidArgument("only a claimed job has checkpoints", details={"field": "claim"})
    while True:
        txn = checkpoint_txn(run, partition, claim, value, before)
        reached("checkpoint.before")
        result = await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("checkpoint.after"))
        if result.succeeded:
            created = before.create_revision or result.revision
            return KeyValue(before.key, value, result.revision, created)
        if reason := run.why_over(result.one(0, run.keys.state), result.one(1, run.keys.runner)):
            return Verdict(Outcome.GONE, reason)
        if result.one(2, run.keys.job_state(partition)).exists:
            return Verdict(Outcome.LOST, "the job has a result")
        if result.one(3, run.keys.claim(partition)).create_revision != claim:
            return Verdict(Outcome.GONE, "its claim is lost")
        # We own the job, so the present value is our own: this save, or an earlier one whose reply was lost.
        before = result.one(4, before.key)
        if before.value == value:
            return before


def check_checkpoint(value: object) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for what cannot be a checkpoint."""
    if not isinstance(value, bytes):
        raise InvalidArgument(f"the checkpoint is {type(value).__name__}, and must be bytes")
    if len(value) > MAX_CHECKPOINT_BYTES:
        raise InvalidArgument(
            f"the checkpoint takes {len(value):,} bytes, at most {MAX_CHECKPOINT_BYTES:,} are allowed",
            hint="save large progress to a file, and its path as the checkpoint",
        )
