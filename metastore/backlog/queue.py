"""The backlog of a table: batches that wait to be applied, in the byte order of their names.

``<table>.backlog.<batch>`` is one batch, ``<table>.applied.<batch>`` the end of one, and ``<table>.ordering``
how the table is fed: its gates, its position, and what blocks it. The transaction that publishes a batch also
removes it from the backlog, so the removed batch is the applied one, whatever arrived meanwhile
(checklist B3).

``_backlog.<table>`` says that a leader should look. Every change that may let a batch go on writes it in the
same transaction; the leader removes it, unless it was written since, when nothing is left to do. No lost
event can strand a batch (B5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from distop.errors import BatchDiffers, BatchLate, TableNotFound
from distop.metastore.backlog.batches import AppliedRecord, BatchRecord, check_batch, ordering_of
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Compare, Get, Op, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import decode, encode


class Queued(Enum):
    """The result of queueing a batch."""

    QUEUED = "queued"
    ALREADY_QUEUED = "already queued"
    ALREADY_APPLIED = "already applied"
    SKIPPED = "skipped before"
    FAILED = "failed before"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A batch after it was queued."""

    became: Queued
    operation: str = ""
    """The operation that applies it, or has applied it."""
    late: bool = False
    """It sorts before an applied one, and the table will stop at it."""


async def enqueue(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    record: BatchRecord,
    *,
    republish: bool = False,
    also: tuple[Op, ...] = (),
) -> Answer:
    """Queue a batch. Idempotent: an equal batch that is already queued or applied stays as it is (B1).

    Parameters
    ----------
    republish:
        Apply it again if it was applied before, and replace one that is queued.
    also:
        Written in the same transaction: the audit entry.

    Raises
    ------
    BatchDiffers
        A batch with this name is queued with different content, or is being applied.
    BatchLate
        It sorts before an applied one, and the table rejects such batches.
    TableNotFound, Exhausted
        Nothing was written.
    """
    check_batch(batch)
    entry_key, applied_key = keys.backlog(batch), keys.applied(batch)
    wanted = (keys.table, keys.ordering, entry_key, applied_key)

    async def decide(read: TxnResult) -> tuple[Txn | None, Answer]:
        table, ordering_kv, entry, applied = (read.one(index, key) for index, key in enumerate(wanted))
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        if applied.exists:
            done = decode(applied.value, AppliedRecord, applied.key)
            if done.uid == record.uid or not (republish or entry.exists):
                became = Queued.SKIPPED if done.outcome == "skipped" else Queued.ALREADY_APPLIED
                return None, Answer(became=became, operation=done.operation)
        if entry.exists:
            standing = decode(entry.value, BatchRecord, entry.key)
            if standing.uid == record.uid:
                return None, Answer(became=Queued.QUEUED, operation=standing.operation)
            if standing.digest == record.digest:
                return None, Answer(became=Queued.ALREADY_QUEUED, operation=standing.operation)
            if standing.operation or not republish:
                raise BatchDiffers(
                    f"batch {batch!r} of table {keys.name!r} is "
                    f"{'being applied' if standing.operation else 'queued'} with different content",
                    details={"table": keys.name, "batch": batch, "operation": standing.operation},
                )
        ordering = ordering_of(ordering_kv)
        # A republished batch is never late. For others the decision is made when their turn comes; the answer
        # says what it would be now.
        late = not republish and ordering.is_late(batch)
        if late and ordering.late == "reject":
            raise BatchLate(
                f"table {keys.name!r} takes no late batch, and {batch!r} is one: {ordering.why_late(batch)}",
                details={"table": keys.name, "batch": batch, "last": ordering.last},
            )
        compares: tuple[Compare, ...] = (unchanged(table), unchanged(entry), unchanged(applied))
        if ordering.late == "reject":
            compares += (unchanged(ordering_kv),)
        entered = encode(msgspec.structs.replace(record, anyway=republish))
        reached("enqueue.before")
        txn = Txn(compares, (Put(entry_key, entered), Put(keys.backlog_index, b"{}"), *also))
        return txn, Answer(became=Queued.QUEUED, late=late and ordering.stops_at(batch))

    reads = [Get(key) for key in wanted]
    what, replied = f"table {keys.name!r}", lambda: reached("enqueue.after")
    return (await update(client, reads, decide, what=what, replied=replied))[0]
