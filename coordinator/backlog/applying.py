"""The part of a finishing transaction that concerns the operation's batches.

Applied batches leave the backlog, and the table's position moves. One that was only written to a branch stays
until that is published, by whichever operation. Failed ones stay, and the first blocks the table, unless the
error is transient. Several that failed together are applied one by one afterwards: only that shows which of
them is faulty. Where rows may be in the table, each of them waits for a decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distop.commit.contract import BRANCH, PUBLISHED, REBASED, SNAPSHOT
from distop.coordinator.backlog.policy import BatchFailure
from distop.coordinator.backlog.unordered import share_of_unordered
from distop.errors import Cancelled, shortened
from distop.metastore.backlog.batches import (
    MAX_ERROR_LENGTH,
    AppliedRecord,
    BatchBlock,
    BatchRecord,
    OrderingRecord,
    StagedBatch,
    ordering_of,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Op, Put, Txn, unchanged
from distop.metastore.operations.ending import COMPLETION_FAILED
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode, encode

Entries = Sequence[tuple[str, KeyValue, BatchRecord]]


async def share_of(
    client: EtcdClient,
    keys: TableKeys,
    arg: OperationArg,
    *,
    failure: BatchFailure | None,
    now: float,
    result: HistoryRecord | None = None,
) -> Txn:
    """The finishing transaction's part for the batches of an operation; empty without any.

    ``result``: of the operation, for the lines of its batches, and for what it has done to a branch.
    """
    if arg.unordered:
        return await share_of_unordered(client, keys, arg, failure=failure, now=now, result=result)
    facts = result.facts if result is not None and failure is None else {}
    published = facts.get(BRANCH) if PUBLISHED in facts else None
    if not arg.batches and published is None:
        return Txn()
    ordering_kv = await client.get(keys.ordering)
    ordering = ordering_of(ordering_kv)
    staged = ordering.staged
    if staged is not None and staged.branch == published:
        kv = await client.get(keys.backlog(staged.batch))
        operation = str(arg.id) if facts.get(REBASED) else staged.operation
        return _published(keys, arg, ordering_kv, staged, kv, OperationId.parse(operation), now)
    if not arg.batches:
        return Txn()
    read = await client.read_at_once([Get(keys.backlog(batch)) for batch in arg.batches])
    kvs = [read.single(index, keys.backlog(batch)) for index, batch in enumerate(arg.batches)]
    compares = (unchanged(ordering_kv), *(unchanged(kv) for kv in kvs))
    # An entry that was removed by hand, or given to another operation, is no longer ours.
    entries = [
        (batch, kv, record)
        for batch, kv in zip(arg.batches, kvs, strict=True)
        if kv.exists and (record := decode(kv.value, BatchRecord, kv.key)).operation == str(arg.id)
    ]
    if ordering.running != str(arg.id):
        return Txn(compares)
    if failure is not None:
        changed, ops = _failed(arg, ordering, entries, failure, now)
    elif (
        staged is not None and facts.get(BRANCH) == staged.branch and result is not None and SNAPSHOT in facts
    ):
        changed, ops = _staged(arg, ordering, staged, entries, result)
    else:
        changed, ops = _applied(keys, arg, ordering, entries, now, result)
    return Txn(compares, (Put(keys.ordering, encode(changed)), Put(keys.backlog_index, b"{}"), *ops))


def _published(
    keys: TableKeys,
    arg: OperationArg,
    ordering_kv: KeyValue,
    staged: StagedBatch,
    entry: KeyValue,
    operation: OperationId,
    now: float,
) -> Txn:
    """The staged batch is part of the table; ``operation``: the one that its snapshot names."""
    ordering = ordering_of(ordering_kv)
    batch = staged.batch
    awaiting = "" if ordering.awaiting == batch else ordering.awaiting
    running = "" if ordering.running == str(arg.id) else ordering.running
    changed = msgspec.structs.replace(
        ordering.done_with(batch), staged=None, awaiting=awaiting, running=running
    )
    record = decode(entry.value, BatchRecord, entry.key) if entry.exists else BatchRecord(type="")
    done = msgspec.structs.replace(
        AppliedRecord.of(operation, record, now),
        rows=staged.rows,
        bytes=staged.bytes,
        files=staged.files,
        markers=staged.markers,
        decided_by=staged.approved_by if arg.batches else arg.started_by,
    )
    ops: list[Op] = [Put(keys.applied(batch), encode(done))]
    ops += [DeleteRange(entry.key)] if entry.exists else []
    return Txn(
        (unchanged(ordering_kv), unchanged(entry)),
        (Put(keys.ordering, encode(changed)), Put(keys.backlog_index, b"{}"), *ops),
    )


def _staged(
    arg: OperationArg, ordering: OrderingRecord, staged: StagedBatch, entries: Entries, result: HistoryRecord
) -> tuple[OrderingRecord, list[Op]]:
    """The batch waits for its approval, at its place."""
    ops: list[Op] = []
    markers: dict[str, str] = {}
    for _, kv, record in entries:
        markers = AppliedRecord.of(arg.id, record, 0.0, plan=arg.argument).markers
        earlier = record.earlier + record.attempts
        waits = msgspec.structs.replace(record, operation="", attempts=0, earlier=earlier, code="", error="")
        ops.append(Put(kv.key, encode(waits)))
    written = msgspec.structs.replace(
        staged,
        operation=str(arg.id),
        snapshot=result.facts[SNAPSHOT],
        rows=result.count("rows"),
        bytes=result.count("bytes"),
        files=result.count("files"),
        markers=markers,
    )
    awaiting = staged.batch if entries else ""
    changed = msgspec.structs.replace(ordering, running="", staged=written, awaiting=awaiting)
    return (changed if entries else changed.unstaged()), ops


def _applied(
    keys: TableKeys,
    arg: OperationArg,
    ordering: OrderingRecord,
    entries: Entries,
    now: float,
    result: HistoryRecord | None,
) -> tuple[OrderingRecord, list[Op]]:
    ops: list[Op] = []
    for batch, kv, record in entries:
        applied = encode(AppliedRecord.of(arg.id, record, now, result, len(arg.batches), arg.argument))
        ops += [DeleteRange(kv.key), Put(keys.applied(batch), applied)]
    # One that was to be staged, and has changed nothing, needs no approval.
    awaiting = arg.batches[-1] if ordering.validation and ordering.staged is None else ""
    done = ordering.done_with(*(batch for batch, _, _ in entries))
    return msgspec.structs.replace(done, running="", staged=None, awaiting=awaiting), ops


def _failed(
    arg: OperationArg,
    ordering: OrderingRecord,
    entries: Entries,
    failure: BatchFailure,
    now: float,
) -> tuple[OrderingRecord, list[Op]]:
    ops: list[Op] = []
    alone = len(arg.batches) > 1
    # A cancellation, or an abort, concerns no batch: whoever wanted it decides about the first one.
    by_hand = failure.in_doubt or failure.code in (Cancelled.code, COMPLETION_FAILED)
    spent = by_hand if alone else not failure.passes
    for _, kv, record in entries:
        attempts = record.attempts if alone else failure.attempts(record)
        spent = spent or (attempts >= ordering.max_attempts and not failure.waits)
        left = msgspec.structs.replace(record, operation="", attempts=attempts, in_doubt=failure.in_doubt)
        left.alone = alone or record.alone
        if not alone or failure.in_doubt:
            left.code, left.error = failure.code, shortened(failure.message, MAX_ERROR_LENGTH)
        ops.append(Put(kv.key, encode(left)))
    block = ordering.blocked
    if spent and block is None and entries:
        message = shortened(failure.message, MAX_ERROR_LENGTH)
        block = BatchBlock(
            batch=entries[0][0], code=failure.code, error=message, operation=str(arg.id), at=now
        )
    # A batch is on its branch only if its operation has succeeded.
    staged = ordering.staged if ordering.staged is not None and ordering.staged.operation else None
    return msgspec.structs.replace(ordering, running="", staged=staged, blocked=block), ops
