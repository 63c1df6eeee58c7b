"""The part of a finishing transaction that concerns the operation's batches.

Applied batches leave the backlog, and the table's position moves. Failed ones stay, and the first blocks the
table, unless the error is transient. Several that failed together are applied one by one afterwards: only
that shows which of them is faulty. Where rows may be in the table, each of them waits for a decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distop.coordinator.backlog.policy import Failure
from distop.coordinator.backlog.unordered import share_of_unordered
from distop.errors import Cancelled, shortened
from distop.metastore.backlog.batches import (
    MAX_ERROR_LENGTH,
    AppliedRecord,
    BatchRecord,
    Block,
    OrderingRecord,
    ordering_of,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, Txn, unchanged
from distop.metastore.operations.parking import COMPLETION_FAILED
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode, encode

Entries = Sequence[tuple[str, KeyValue, BatchRecord]]


async def share_of(
    client: EtcdClient,
    keys: TableKeys,
    arg: OperationArg,
    *,
    failure: Failure | None,
    now: float,
    result: HistoryRecord | None = None,
) -> Txn:
    """The finishing transaction's part for the batches of an operation; empty without any.

    ``result``: of the operation, for the lines of its batches.
    """
    if arg.unordered:
        return await share_of_unordered(client, keys, arg, failure=failure, now=now, result=result)
    if not arg.batches:
        return Txn()
    wanted = [keys.ordering, *(keys.backlog(batch) for batch in arg.batches)]
    read = await client.read_at_once([Get(key) for key in wanted])
    ordering_kv = read.one(0, keys.ordering)
    ordering = ordering_of(ordering_kv)
    kvs = [read.one(index, key) for index, key in enumerate(wanted)][1:]
    compares = (unchanged(ordering_kv), *(unchanged(kv) for kv in kvs))
    # An entry that was removed by hand, or given to another operation, is no longer ours.
    entries = [
        (batch, kv, record)
        for batch, kv in zip(arg.batches, kvs, strict=True)
        if kv.exists and (record := decode(kv.value, BatchRecord, kv.key)).operation == str(arg.id)
    ]
    if ordering.running != str(arg.id):
        return Txn(compares)
    changed, ops = (
        _applied(keys, arg, ordering, entries, now, result)
        if failure is None
        else _failed(arg, ordering, entries, failure, now)
    )
    return Txn(compares, (Put(keys.ordering, encode(changed)), Put(keys.backlog_index, b"{}"), *ops))


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
        applied = encode(AppliedRecord.of(arg.id, record, now, result, len(arg.batches)))
        ops += [Delete(kv.key), Put(keys.applied(batch), applied)]
    awaiting = arg.batches[-1] if ordering.validation else ""
    done = ordering.done_with(*(batch for batch, _, _ in entries))
    return msgspec.structs.replace(done, running="", awaiting=awaiting), ops


def _failed(
    arg: OperationArg,
    ordering: OrderingRecord,
    entries: Entries,
    failure: Failure,
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
        block = Block(batch=entries[0][0], code=failure.code, error=message, operation=str(arg.id), at=now)
    return msgspec.structs.replace(ordering, running="", blocked=block), ops
