"""The results of jobs: *mark*, alone or in groups, and the meaning of the answer.

A failed compare is an answer, not an error. A sender that repeats a mark after a lost reply sets
``repeated``, since only then "the operation is gone" leaves open whether the first copy counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from distop.errors import CorruptRecord, InvalidArgument, JobResultTooLarge, encodable, shortened
from distop.metastore.etcd.txn import (
    MAX_REQUEST_BYTES,
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Txn,
    TxnResult,
    absent,
    created_at,
)
from distop.metastore.operations.runs import Run
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES, JobRecord
from distop.metastore.records.record import decode, encode

SUCCESS, FAILED = "success", "failed"
"""States of a job's record."""

MAX_GROUP = 120
"""Marks in one transaction: each is one operation of the outer one, which needs room for the reads of its
failure branch and for the widest mark inside (etcd adds them up to 128)."""


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
    """Its result is the job's."""
    LOST = "lost"
    """The job has another result; this attempt does not count."""
    GONE = "gone"
    """Its run or its claim is over; it does not count, now or later."""
    UNKNOWN = "unknown"
    """The operation is over and it is unknown whether this attempt counted. Delete nothing of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a mark."""

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
        if count and (size > MAX_REQUEST_BYTES or mark.partition in partitions):
            return count
        partitions.add(mark.partition)
    return min(len(marks), MAX_GROUP)


def is_plain(mark: Mark) -> bool:
    """Whether a mark can go into a :func:`flat_txn`: no claim, no checkpoint, sent for the first time."""
    return not (mark.claim or mark.checkpointed or mark.repeated)


def flat_txn(run: Run, marks: Sequence[Mark]) -> Txn:
    """IF the run is held AND none of these jobs has a result THEN all the results.

    All or nothing, and much cheaper than nested transactions, for etcd and for us: it is tried first, since a
    job rarely has a result already. If it fails nothing was written, and :func:`mark_txn` follows.
    """
    keys = [run.keys.job_state(mark.partition) for mark in marks]
    free = tuple(absent(key) for key in keys)
    puts = tuple(Put(key, mark.value) for key, mark in zip(keys, marks, strict=True))
    return Txn(run.held() + free, puts, lane=run.keys.table_prefix)


def mark_txn(run: Run, marks: Sequence[Mark]) -> Txn:
    """IF the run is held THEN, for each mark on its own, IF its job has no result (and its claim stands)
    THEN the result, and claim and checkpoint gone.

    One transaction for many jobs, so that etcd writes its log once; nested, so that a lost race of one job
    does not affect the others.
    """
    keys = run.keys
    reads = [Get(keys.state), Get(keys.runner), Get(keys.arg, keys_only=True)]
    reads += [Get(keys.job_state(mark.partition)) for mark in marks if mark.repeated]
    each = tuple(_one_mark(keys, mark) for mark in marks)
    return Txn(run.held(), each, tuple(reads), lane=keys.table_prefix)


def _one_mark(keys: OperationKeys, mark: Mark) -> Txn:
    job = keys.job_state(mark.partition)
    compares: tuple[Compare, ...] = (absent(job),)
    then: tuple[Op, ...] = (Put(job, mark.value),)
    if mark.claim:
        claim = keys.claim(mark.partition)
        compares += (created_at(claim, mark.claim),)
        then += (Delete(claim),)
    if mark.checkpointed:
        then += (Delete(keys.progress(mark.partition)),)
    return Txn(compares, then, (Get(job),))


def verdicts(run: Run, marks: Sequence[Mark], result: TxnResult) -> list[Verdict]:
    """The effect of a :func:`mark_txn` on each of the marks."""
    keys = run.keys
    if result.succeeded:
        nested = zip(marks, result.results, strict=True)
        return [WON if _won(one) else _verdict_inside(keys, mark, one) for mark, one in nested]
    state, runner = result.one(0, keys.state), result.one(1, keys.runner)
    # Names return when a table is dropped or renamed and made anew. What was started after this run began is
    # another operation, and its keys say nothing about these marks.
    other = result.one(2, keys.arg).create_revision > run.token
    reason, found, answers = run.why_over(state, runner), 3, []
    for mark in marks:
        job = KeyValue.missing(b"")
        if mark.repeated:
            job = result.one(found, keys.job_state(mark.partition))
            found += 1
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
    return isinstance(result, TxnResult) and result.succeeded


def _verdict_inside(keys: OperationKeys, mark: Mark, result: object) -> Verdict:
    if not isinstance(result, TxnResult):
        raise CorruptRecord(f"etcd gave no nested answer for {mark.partition!r} of {keys.operation}")
    job = result.one(0, keys.job_state(mark.partition))
    return _verdict_on(job, mark) if job.exists else Verdict(Outcome.GONE, "its claim is lost")


def _verdict_on(job: KeyValue, mark: Mark) -> Verdict:
    try:
        standing = decode(job.value, JobRecord, job.key).attempt
    except CorruptRecord as error:
        return Verdict(Outcome.LOST, str(error))
    if standing == mark.attempt:
        return WON
    return Verdict(Outcome.LOST, f"attempt {standing} was first")
