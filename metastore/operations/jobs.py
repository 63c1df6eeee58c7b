"""Jobs of an operation: their claims and checkpoints, failed attempts, and the *marks* of their results.

A failed compare is an answer, not an error. A sender that repeats a mark after a lost reply sets
``repeated``, since only then "the operation is gone" leaves open whether the first copy counted.

A claim is a key bound to the lease of the attempt's sidecar; its create revision is the fence of everything
the attempt writes. An attempt that was paused past that lease has lost its claim, and can mark nothing and
save nothing, even if no other attempt has claimed the job since.

Failed attempts are counted in etcd, so that the count survives the process that made them. Only failures that
are followed by another attempt are written, so a successful job costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from distop.errors import CorruptRecord, InvalidArgument, JobResultTooLarge, encodable, shortened
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.update import PATIENCE_S, settle, update
from distop.metastore.operations.runs import Run
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import (
    MAX_CHECKPOINT_BYTES,
    MAX_JOB_RECORD_BYTES,
    ClaimRecord,
    JobRecord,
)
from distop.metastore.records.record import Record, decode, encode

if TYPE_CHECKING:
    from distop.metastore.etcd.client import EtcdClient

log = logging.getLogger(__name__)

SUCCESS, FAILED = "success", "failed"
"""States of a job's record."""

MAX_GROUP = 120
"""Marks in one transaction: each is one operation of the outer one, which needs room for the reads of its
failure branch and for the widest mark inside (etcd adds them up to 128)."""

MAX_ERROR_CHARACTERS = 300
_READ_AT_ONCE = 60


def success_record(attempt: str, result: Mapping[str, Any], at: float, *, run: int = 0) -> bytes:
    """The value of a successful job. ``run``: the run token, if the plan is dynamic.

    Raises
    ------
    JobResultTooLarge
        It takes more than :data:`~distop.metastore.records.operation.MAX_JOB_RECORD_BYTES`; with its size.
    InvalidArgument
        The result is not JSON.
    """
    try:
        value = encode(
            JobRecord(state=SUCCESS, attempt=attempt, result=dict(result), at=at, run=run), checked=False
        )
    except (TypeError, ValueError, InvalidArgument) as error:
        raise InvalidArgument(f"the result of the job is not JSON: {error.__cause__ or error}") from error
    if len(value) > MAX_JOB_RECORD_BYTES:
        raise JobResultTooLarge(
            f"the result of the job takes {len(value):,} bytes, at most {MAX_JOB_RECORD_BYTES:,} are allowed"
        )
    return value


def failure_record(attempt: str, code: str, message: str, at: float, *, run: int = 0) -> bytes:
    """The value of a failed job; the text ``CODE: message`` is shortened until it fits."""
    text = encodable(f"{code}: {message}")
    limit = MAX_JOB_RECORD_BYTES
    while True:
        error = shortened(text, limit)
        value = encode(JobRecord(state=FAILED, attempt=attempt, error=error, at=at, run=run), checked=False)
        excess = len(value) - MAX_JOB_RECORD_BYTES
        if excess <= 0:
            return value
        # A character takes up to six bytes, so cutting a sixth never cuts too much.
        limit = min(limit, len(error)) - max(1, excess // 6)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A job's result before it is written to etcd."""

    partition: str
    attempt: str
    """The attempt; also part of ``value``."""
    value: bytes
    """From :func:`success_record` or :func:`failure_record`."""
    claim: int = 0
    """Create revision of the attempt's claim; 0: the job was not claimed."""
    checkpointed: bool = False
    """Whether the job may have a checkpoint, which the mark deletes."""
    repeated: bool = False
    """Whether a copy of it may have reached etcd before."""


class Outcome(Enum):
    """The outcome of an attempt."""

    WON = "won"
    """The result of the attempt is the job's result."""
    LOST = "lost"
    """The job has another result; this attempt does not count."""
    GONE = "gone"
    """Its run or its claim is over; it does not count, now or later."""
    UNKNOWN = "unknown"
    """The operation is over and it is unknown whether this attempt counted. Delete nothing of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mark, and why."""

    outcome: Outcome
    reason: str = ""


WON = Verdict(Outcome.WON)


def take_group(run: Run, marks: Sequence[Mark]) -> int:
    """How many of ``marks``, from the first, fit into one transaction; at least one.

    A partition is in it at most once: etcd refuses a transaction that may write a key twice.
    """
    partitions: set[str] = set()
    # Escaping triples a name at worst; four keys of a job may be in the transaction.
    size, root = 0, 4 * (len(run.keys.root) + len(b"..progress"))
    for count, mark in enumerate(marks[:MAX_GROUP]):
        size += root + 12 * len(mark.partition.encode()) + len(mark.value)
        if count and (size > etcd.MAX_REQUEST_BYTES or mark.partition in partitions):
            return count
        partitions.add(mark.partition)
    return min(len(marks), MAX_GROUP)


def is_plain(mark: Mark) -> bool:
    """Whether a mark can go into a :func:`flat_txn`: no claim, no checkpoint, sent for the first time."""
    return not (mark.claim or mark.checkpointed or mark.repeated)


def flat_txn(run: Run, marks: Sequence[Mark]) -> etcd.Txn:
    """IF the run is held AND none of these jobs has a result THEN all the results.

    All or nothing, and much cheaper than nested transactions, for etcd and for us: it is tried first, since a
    job rarely has a result already. If it fails nothing was written, and :func:`mark_txn` follows.
    """
    keys = [run.keys.job_state(mark.partition) for mark in marks]
    free = tuple(etcd.absent(key) for key in keys)
    puts = tuple(etcd.Put(key, mark.value) for key, mark in zip(keys, marks, strict=True))
    return etcd.Txn(run.held() + free, puts, lane=run.keys.table_prefix)


def mark_txn(run: Run, marks: Sequence[Mark]) -> etcd.Txn:
    """IF the run is held THEN, for each mark on its own, IF its job has no result (and its claim exists)
    THEN the result, and claim and checkpoint gone.

    One transaction for many jobs, so that etcd writes its log once; nested, so that a lost race of one job
    does not affect the others.
    """
    keys = run.keys
    reads = [etcd.Get(keys.state), etcd.Get(keys.runner), etcd.Get(keys.arg, keys_only=True)]
    reads += [etcd.Get(keys.job_state(mark.partition)) for mark in marks if mark.repeated]
    each = tuple(_one_mark(keys, mark) for mark in marks)
    return etcd.Txn(run.held(), each, tuple(reads), lane=keys.table_prefix)


def _one_mark(keys: OperationKeys, mark: Mark) -> etcd.Txn:
    job = keys.job_state(mark.partition)
    # A result is written once, and removed only with .state or by a later run of a dynamic plan: the first
    # mark wins, whichever attempt it comes from.
    compares: tuple[etcd.Compare, ...] = (etcd.absent(job),)
    then: tuple[etcd.Op, ...] = (etcd.Put(job, mark.value),)
    if mark.claim:
        claim = keys.claim(mark.partition)
        compares += (etcd.created_at(claim, mark.claim),)
        then += (etcd.DeleteRange(claim),)
    if mark.checkpointed:
        then += (etcd.DeleteRange(keys.progress(mark.partition)),)
    return etcd.Txn(compares, then, (etcd.Get(job),))


def verdicts(run: Run, marks: Sequence[Mark], result: etcd.TxnResult) -> list[Verdict]:
    """The effect of a :func:`mark_txn` on each of the marks."""
    keys = run.keys
    if result.succeeded:
        nested = zip(marks, result.results, strict=True)
        return [WON if _won(outcome) else _verdict_inside(keys, mark, outcome) for mark, outcome in nested]
    state, runner = result.single(0, keys.state), result.single(1, keys.runner)
    # Names return when a table is dropped or renamed and made anew. What was started after this run began is
    # another operation, and its keys say nothing about these marks.
    other = result.single(2, keys.arg).create_revision > run.token
    reason, position, answers = run.why_over(state, runner), 3, []
    for mark in marks:
        job = etcd.KeyValue.missing(b"")
        if mark.repeated:
            job = result.single(position, keys.job_state(mark.partition))
            position += 1
        if job.exists and not other:
            answers.append(_verdict_on(job, mark))
        elif mark.repeated and (other or not state.exists):
            # Its first copy may have won, and the operation may have been published and cleared since.
            answers.append(Verdict(Outcome.UNKNOWN, reason))
        else:
            # While .state exists results are never removed, so none was written; and none can be any more.
            answers.append(Verdict(Outcome.GONE, reason))
    return answers


def _won(result: object) -> bool:
    return isinstance(result, etcd.TxnResult) and result.succeeded


def _verdict_inside(keys: OperationKeys, mark: Mark, result: object) -> Verdict:
    if not isinstance(result, etcd.TxnResult):
        raise CorruptRecord(f"etcd gave no nested answer for {mark.partition!r} of {keys.operation}")
    job = result.single(0, keys.job_state(mark.partition))
    return _verdict_on(job, mark) if job.exists else Verdict(Outcome.GONE, "its claim is lost")


def _verdict_on(job: etcd.KeyValue, mark: Mark) -> Verdict:
    try:
        existing = decode(job.value, JobRecord, job.key).attempt
    except CorruptRecord as error:
        return Verdict(Outcome.LOST, str(error))
    if existing == mark.attempt:
        return WON
    return Verdict(Outcome.LOST, f"attempt {existing} was first")


@dataclass(frozen=True, slots=True)
class Claimed:
    """The job belongs to the attempt as long as the claim's key, created at ``claim``, exists."""

    claim: int
    checkpoint: etcd.KeyValue
    """The last checkpoint of an earlier attempt."""


@dataclass(frozen=True, slots=True)
class Occupied:
    """Another attempt owns the job."""

    holder: str
    """Id of that attempt."""
    existing: etcd.KeyValue
    """The key of the other attempt's claim."""
    revision: int
    """The revision of the read, to watch from the next one on."""


def claim_txn(run: Run, partition: str, record: ClaimRecord, lease: int) -> etcd.Txn:
    """IF the run is held AND the job has no result AND no claim THEN a claim under ``lease``."""
    keys = run.keys
    claim, job, progress = keys.claim(partition), keys.job_state(partition), keys.progress(partition)
    return etcd.Txn(
        (*run.held(), etcd.absent(job), etcd.absent(claim)),
        (etcd.Put(claim, encode(record), lease), etcd.Get(progress)),
        (etcd.Get(keys.state), etcd.Get(keys.runner), etcd.Get(job), etcd.Get(claim)),
    )


def adopt_txn(run: Run, partition: str, record: ClaimRecord, claim: int, lease: int) -> etcd.Txn:
    """IF the claim created at ``claim`` still exists (and the rest of :func:`claim_txn`) THEN it is bound to
    ``lease``. Its create revision stays, so no other attempt can have owned the job in between."""
    keys = run.keys
    key, job = keys.claim(partition), keys.job_state(partition)
    return etcd.Txn(
        (*run.held(), etcd.absent(job), etcd.created_at(key, claim)),
        (etcd.Put(key, encode(record), lease), etcd.Get(keys.progress(partition))),
        (etcd.Get(keys.state), etcd.Get(keys.runner), etcd.Get(job), etcd.Get(key)),
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
            return Claimed(held or result.revision, result.single(1, run.keys.progress(partition)))
        reason = run.why_over(result.single(0, run.keys.state), result.single(1, run.keys.runner))
        existing = result.single(3, key)
        if reason:
            return Verdict(Outcome.GONE, reason)
        if result.single(2, job).exists:
            return Verdict(Outcome.LOST, "the job has a result")
        if held:
            return Verdict(Outcome.GONE, "its claim is lost")
        owner = decode(existing.value, ClaimRecord, key)
        if owner.attempt != record.attempt:
            return Occupied(owner.attempt, existing, result.revision)
        # Our own, from a copy whose reply was lost. Under another lease if another sidecar sent that one.
        held = existing.create_revision


async def release_claim(client: EtcdClient, key: bytes, claim: int) -> None:
    """Release a claim, given its key and create revision; does nothing if it is already lost."""
    reached("unclaim.before")
    txn = etcd.Txn((etcd.created_at(key, claim),), (etcd.DeleteRange(key),))
    await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("unclaim.after"))


def checkpoint_txn(run: Run, partition: str, claim: int, value: bytes, before: etcd.KeyValue) -> etcd.Txn:
    """IF the run is held AND the job has no result AND the claim exists AND the checkpoint is as known THEN
    it is ``value``. The last compare prevents a delayed older save from undoing a newer one."""
    keys = run.keys
    job, owned = keys.job_state(partition), etcd.created_at(keys.claim(partition), claim)
    return etcd.Txn(
        (*run.held(), etcd.absent(job), owned, etcd.unchanged(before)),
        (etcd.Put(keys.progress(partition), value),),
        (
            etcd.Get(keys.state),
            etcd.Get(keys.runner),
            etcd.Get(job),
            etcd.Get(keys.claim(partition)),
            etcd.Get(before.key),
        ),
    )


async def save_checkpoint(
    client: EtcdClient, run: Run, partition: str, claim: int, value: bytes, before: etcd.KeyValue
) -> etcd.KeyValue | Verdict:
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
            return etcd.KeyValue(before.key, value, result.revision, created)
        if reason := run.why_over(result.single(0, run.keys.state), result.single(1, run.keys.runner)):
            return Verdict(Outcome.GONE, reason)
        if result.single(2, run.keys.job_state(partition)).exists:
            return Verdict(Outcome.LOST, "the job has a result")
        if result.single(3, run.keys.claim(partition)).create_revision != claim:
            return Verdict(Outcome.GONE, "its claim is lost")
        # We own the job, so the present value is our own: this save, or an earlier one whose reply was lost.
        before = result.single(4, before.key)
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


class TriesRecord(Record, kw_only=True):
    """``<root>.<partition>.tries``: attempts at a job that failed and were not the last."""

    tries: int
    attempt: str
    """The one that was counted last; a repetition is recognised by it."""
    error: str = ""
    """``CODE: message`` of that one."""


async def count_try(client: EtcdClient, run: Run, partition: str, attempt: str, error: str) -> None:
    """IF the run is held AND the job has no result AND the count is as read THEN one more.

    For a run that is over, or a job that is done: nothing happens.
    """
    keys = run.keys
    key, job = keys.tries(partition), keys.job_state(partition)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        existing = read.single(3, key)
        if read.got(2) or run.why_over(read.single(0, keys.state), read.single(1, keys.runner)):
            return None, None
        before = _read(existing)
        if before is not None and before.attempt == attempt:
            return None, None  # counted, by a copy whose reply was lost
        tries = (before.tries if before else 0) + 1
        count = TriesRecord(tries=tries, attempt=attempt, error=shortened(error, MAX_ERROR_CHARACTERS))
        reached("try.before")
        return etcd.Txn(
            (*run.held(), etcd.absent(job), etcd.unchanged(existing)), (etcd.Put(key, encode(count)),)
        ), None

    reads = [etcd.Get(path) for path in (keys.state, keys.runner, job, key)]
    subject, replied = f"job {partition!r} of {keys.operation}", lambda: reached("try.after")
    await update(client, reads, decide, subject=subject, patience_s=PATIENCE_S, replied=replied)


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """The result of the attempts at a job so far."""

    tries: int
    error: str = ""


async def read_tries(
    client: EtcdClient, keys: OperationKeys, kvs: Iterable[etcd.KeyValue]
) -> dict[str, Tried]:
    """The counts among the keys of an operation, by partition; without any, nothing is read."""
    jobs = (keys.partition_of(kv.key) for kv in kvs)
    names = [job[0] for job in jobs if job is not None and job[1] == "tries"]
    tried = {}
    for start in range(0, len(names), _READ_AT_ONCE):
        some = names[start : start + _READ_AT_ONCE]
        result = await client.read_at_once([etcd.Get(keys.tries(name)) for name in some])
        for index, name in enumerate(some):
            record = _read(result.single(index, keys.tries(name)))
            if record is not None:
                tried[name] = Tried(record.tries, record.error)
    return tried


def _read(kv: etcd.KeyValue) -> TriesRecord | None:
    """A count; ``None`` if there is none. One that cannot be read is counted anew: it must not keep the job
    from running."""
    try:
        return decode(kv.value, TriesRecord, kv.key) if kv.exists else None
    except CorruptRecord as error:
        log.warning("tries_unreadable", extra={"error": str(error)})
        return None
