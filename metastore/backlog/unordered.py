"""Unordered batches: each is applied as soon as possible, concurrently with others (checklist B13).

``<table>.unordered.<state>.<batch>`` is one such batch: ``waiting`` to be applied, ``running``, ``failed``,
which needs a decision, or ``done``. One transaction moves it to the next state: the one that starts its
operation, or finishes it. So it is applied once, and failures are counted and not lost. Batches that have
failed for good are also named in ``<table>.ordering``, where users of the table see
them.
"""

from __future__ import annotations

import msgspec

from distop.errors import BatchDiffers, TableNotFound
from distop.metastore.backlog.batches import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    AppliedRecord,
    BatchRecord,
    Block,
    OrderingRecord,
    check_batch,
    ordering_of,
)
from distop.metastore.backlog.queue import Answer, Queued
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import decode, encode


async def add(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    record: BatchRecord,
    *,
    republish: bool = False,
    also: tuple[Op, ...] = (),
) -> Answer:
    """Publish an unordered batch. Idempotent, as :func:`~.queue.enqueue` is; a failed one is retried if it
    comes with different content.

    Raises as :func:`~.queue.enqueue`, except for late batches.
    """
    check_batch(batch)
    states = (WAITING, RUNNING, FAILED, DONE)
    wanted = (keys.table, keys.ordering, *(keys.unordered(state, batch) for state in states))

    async def decide(read: TxnResult) -> tuple[Txn | None, Answer]:
        table, ordering_kv, waiting, running, failed, done = (
            read.one(index, key) for index, key in enumerate(wanted)
        )
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        if done.exists:
            was = decode(done.value, AppliedRecord, done.key)
            if was.uid == record.uid or not republish:
                became = Queued.SKIPPED if was.outcome == "skipped" else Queued.ALREADY_APPLIED
                return None, Answer(became=became, operation=was.operation)
        for kv in (waiting, running, failed):
            if not kv.exists:
                continue
            standing = decode(kv.value, BatchRecord, kv.key)
            if standing.uid == record.uid and kv is not failed:
                return None, Answer(became=Queued.QUEUED, operation=standing.operation)
            if standing.digest == record.digest and not (kv is failed and republish):
                became = Queued.FAILED if kv is failed else Queued.ALREADY_QUEUED
                return None, Answer(became=became, operation=standing.operation)
            if kv is running or (kv is waiting and not republish):
                raise BatchDiffers(
                    f"batch {batch!r} of table {keys.name!r} is "
                    f"{'being applied' if kv is running else 'queued'} with different content",
                    details={"table": keys.name, "batch": batch, "operation": standing.operation},
                )
        compares = tuple(unchanged(kv) for kv in (table, waiting, running, failed, done))
        ops: tuple[Op, ...] = (Put(waiting.key, encode(record)), Put(keys.backlog_index, b"{}"), *also)
        ops += tuple(Delete(kv.key) for kv in (failed, done) if kv.exists)
        if failed.exists:
            compares += (unchanged(ordering_kv),)
            ops += (Put(keys.ordering, encode(without_failed(ordering_of(ordering_kv), batch))),)
        reached("enqueue.before")
        return Txn(compares, ops), Answer(became=Queued.QUEUED)

    reads = [Get(key) for key in wanted]
    what, replied = f"table {keys.name!r}", lambda: reached("enqueue.after")
    return (await update(client, reads, decide, what=what, replied=replied))[0]


def without_failed(ordering: OrderingRecord, batch: str) -> OrderingRecord:
    """This batch no longer needs a decision."""
    left = [block for block in ordering.failed if block.batch != batch]
    return msgspec.structs.replace(ordering, failed=left)


def gave_up(
    keys: TableKeys, ordering_kv: KeyValue, at: KeyValue, batch: str, record: BatchRecord, block: Block
) -> Txn:
    """The batch with this key has failed for good: it needs a decision."""
    ordering = without_failed(ordering_of(ordering_kv), batch)
    changed = msgspec.structs.replace(ordering, failed=[*ordering.failed, block])
    ops = (
        Delete(at.key),
        Put(keys.unordered(FAILED, batch), encode(record)),
        Put(keys.ordering, encode(changed)),
    )
    return Txn((unchanged(ordering_kv), unchanged(at)), ops)
