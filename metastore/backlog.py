"""The backlog of a table: batches that wait to be applied, in the byte order of their names.

``<table>.backlog.<batch>`` is one batch, ``<table>.applied.<batch>`` what became of one, and
``<table>.ordering`` how the table is fed: its gates, how far it has come, and what it is blocked by. A batch
leaves the backlog in the very transaction that publishes it, so the one that is popped is the one that was
applied, whatever arrived meanwhile (checklist B3).

``_backlog.<table>`` says that a leader should look. Whoever changes anything that may let a batch go on
writes it in the same transaction; the leader removes it, unless it was written since, once there is nothing
it can do. There is no event whose loss could strand a batch (B5).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import msgspec

from distop.errors import (
    BatchDiffers,
    BatchLate,
    Exhausted,
    OutcomeUnknown,
    PreconditionFailed,
    TableNotFound,
)
from distop.metastore.batches import (
    LATE,
    AppliedRecord,
    BatchRecord,
    Block,
    OrderingRecord,
    check_batch,
    ordering_of,
)
from distop.metastore.client import EtcdClient
from distop.metastore.crashpoints import reached
from distop.metastore.keyspace import TableKeys
from distop.metastore.records import decode, encode
from distop.metastore.settle import settle
from distop.metastore.txn import Delete, Get, Op, Put, Txn, unchanged

MAX_TRIES = 60
"""How often a change of the backlog is tried again after a lost race."""


class Queued(Enum):
    """What became of a call that queues a batch."""

    QUEUED = "queued"
    ALREADY_QUEUED = "already queued"
    ALREADY_APPLIED = "already applied"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What there is to say of a batch after it was queued."""

    became: Queued
    operation: str = ""
    """That applies it, or has applied it."""
    late: bool = False
    """It sorts before one that was applied, and the table is blocked by it."""


async def enqueue(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    record: BatchRecord,
    *,
    republish: bool = False,
    beside: tuple[Op, ...] = (),
) -> Answer:
    """Queue a batch. Safe to repeat: an equal batch that is queued or applied already stays what it is (B1).

    Parameters
    ----------
    republish:
        Apply it again if it was applied before, and replace one that is queued.
    beside:
        What is written along with it: the audit entry.

    Raises
    ------
    BatchDiffers
        A batch of this name is queued with another content, or is being applied.
    BatchLate
        It sorts before one that was applied, and the table rejects such batches.
    TableNotFound, Exhausted
        As they say; nothing was written.
    """
    check_batch(batch)
    entry_key, applied_key = keys.backlog(batch), keys.applied(batch)
    wanted = (keys.table, keys.ordering, entry_key, applied_key)
    for tries in range(MAX_TRIES):
        read = await client.read_at_once([Get(key) for key in wanted])
        table, ordering_kv, entry, applied = (read.one(index, key) for index, key in enumerate(wanted))
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        if applied.exists:
            done = decode(applied.value, AppliedRecord, applied.key)
            if done.uid == record.uid or not republish:
                return Answer(became=Queued.ALREADY_APPLIED, operation=done.operation)
        if entry.exists:
            standing = decode(entry.value, BatchRecord, entry.key)
            if standing.uid == record.uid:
                return Answer(became=Queued.QUEUED, operation=standing.operation)
            if standing.digest == record.digest:
                return Answer(became=Queued.ALREADY_QUEUED, operation=standing.operation)
            if standing.operation or not republish:
                raise BatchDiffers(
                    f"batch {batch!r} of table {keys.name!r} is "
                    f"{'being applied' if standing.operation else 'queued'} with another content",
                    details={"table": keys.name, "batch": batch, "operation": standing.operation},
                )
        ordering = ordering_of(ordering_kv)
        late = not republish and not applied.exists and batch.encode() < ordering.last.encode()
        puts: tuple[Op, ...] = (Put(entry_key, encode(record)), Put(keys.backlog_index, b"{}"), *beside)
        if late and ordering.late == "reject":
            raise BatchLate(
                f"batch {batch!r} sorts before {ordering.last!r}, which table {keys.name!r} has applied",
                details={"table": keys.name, "batch": batch, "last": ordering.last},
            )
        blocks = late and ordering.late == "block" and ordering.blocked is None
        if blocks:
            error = f"it sorts before {ordering.last!r}, which was applied already"
            block = Block(batch=batch, code=LATE, error=error, at=record.queued_at)
            puts += (Put(keys.ordering, encode(msgspec.structs.replace(ordering, blocked=block))),)
        compares = (unchanged(table), unchanged(ordering_kv), unchanged(entry), unchanged(applied))
        reached("enqueue.before")
        try:
            result = await client.txn(Txn(compares, puts))
            reached("enqueue.after")
            if result.succeeded:
                return Answer(became=Queued.QUEUED, late=late and ordering.late == "block")
        except OutcomeUnknown:
            pass  # its uid tells, when it is read again
        await asyncio.sleep(random.uniform(0, min(0.01 * 1.3**tries, 1.0)))
    raise Exhausted(f"table {keys.name!r} is too busy: {MAX_TRIES} tries in a row lost a race")


async def change_ordering(
    client: EtcdClient,
    keys: TableKeys,
    change: Callable[[OrderingRecord], tuple[OrderingRecord, tuple[Op, ...]] | None],
    *,
    beside: tuple[Op, ...] = (),
) -> OrderingRecord:
    """Read the ordering, change it, and write it if nobody else has; again, if somebody has.

    ``change`` gives the new record and what is written along with it; ``None``: it is as it should be. What
    it raises is raised. A leader looks at the table afterwards.
    """
    for tries in range(MAX_TRIES):
        read = await client.read_at_once([Get(keys.table), Get(keys.ordering)])
        table, kv = read.one(0, keys.table), read.one(1, keys.ordering)
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        wanted = change(ordering_of(kv))
        if wanted is None:
            return ordering_of(kv)
        record, ops = wanted
        txn = Txn(
            (unchanged(table), unchanged(kv)),
            (Put(keys.ordering, encode(record)), Put(keys.backlog_index, b"{}"), *ops, *beside),
        )
        try:
            if (await client.txn(txn)).succeeded:
                return record
        except OutcomeUnknown:
            pass  # what is read next shows whether it happened: the change is asked again
        await asyncio.sleep(random.uniform(0, min(0.01 * 1.3**tries, 1.0)))
    raise Exhausted(f"table {keys.name!r} is too busy: {MAX_TRIES} tries in a row lost a race")


async def open_gate(client: EtcdClient, keys: TableKeys, *, beside: tuple[Op, ...] = ()) -> OrderingRecord:
    """Let what was collected be applied (B6). Safe to repeat."""

    def change(now: OrderingRecord) -> tuple[OrderingRecord, tuple[Op, ...]] | None:
        return None if now.gate == "open" else (msgspec.structs.replace(now, gate="open"), ())

    return await change_ordering(client, keys, change, beside=beside)


async def approve(
    client: EtcdClient, keys: TableKeys, batch: str, *, beside: tuple[Op, ...] = ()
) -> OrderingRecord:
    """Let the next batch come after this one (B7). Safe to repeat.

    Parameters
    ----------
    batch:
        The one that was looked at; empty: whichever waits. Named, it never approves another.

    Raises
    ------
    PreconditionFailed
        Another batch waits for approval.
    """

    def change(now: OrderingRecord) -> tuple[OrderingRecord, tuple[Op, ...]] | None:
        if not now.awaiting:
            return None
        if batch and batch != now.awaiting:
            raise PreconditionFailed(
                f"batch {now.awaiting!r} of table {keys.name!r} waits for approval, not {batch!r}",
                details={"table": keys.name, "batch": now.awaiting},
            )
        return msgspec.structs.replace(now, awaiting=""), ()

    return await change_ordering(client, keys, change, beside=beside)


async def unblock(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    *,
    skip: bool,
    now: float,
    beside: tuple[Op, ...] = (),
) -> OrderingRecord:
    """Decide about a blocked table: try its batch again, or leave the batch out for good (B8).

    Parameters
    ----------
    batch:
        The one that blocks; empty: whichever does.

    Raises
    ------
    PreconditionFailed
        The table is not blocked, or by another batch.
    """
    for tries in range(MAX_TRIES):
        read = await client.read_at_once([Get(keys.table), Get(keys.ordering)])
        table, kv = read.one(0, keys.table), read.one(1, keys.ordering)
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        ordering = ordering_of(kv)
        block = ordering.blocked
        if block is None or (batch and batch != block.batch):
            by = f", but by {block.batch!r}" if block is not None else ""
            raise PreconditionFailed(
                f"table {keys.name!r} is not blocked{f' by {batch!r}' if batch else ''}{by}",
                details={"table": keys.name},
            )
        entry_key = keys.backlog(block.batch)
        entry = await client.get(entry_key)
        record = msgspec.structs.replace(ordering, blocked=None)
        ops: tuple[Op, ...] = ()
        if entry.exists:
            queued = decode(entry.value, BatchRecord, entry.key)
            if skip:
                done = AppliedRecord(outcome="skipped", digest=queued.digest, uid=queued.uid, at=now)
                ops = (Delete(entry_key), Put(keys.applied(block.batch), encode(done)))
            else:
                ops = (Put(entry_key, encode(msgspec.structs.replace(queued, attempts=0))),)
        if skip:
            record = msgspec.structs.replace(record, last=max(record.last, block.batch, key=str.encode))
        puts = (Put(keys.ordering, encode(record)), Put(keys.backlog_index, b"{}"), *ops, *beside)
        txn = Txn((unchanged(table), unchanged(kv), unchanged(entry)), puts)
        try:
            reached("unblock.before")
            result = await settle(client, txn, patience_s=4 * client.config.timeout_s, tries=8, insist=False)
            reached("unblock.after")
            if result.succeeded:
                return record
        except OutcomeUnknown:
            raise
        seen = await client.get(keys.ordering)
        if seen.value == encode(record):
            return record  # our own copy, whose reply was lost
        await asyncio.sleep(random.uniform(0, min(0.01 * 1.3**tries, 1.0)))
    raise Exhausted(f"table {keys.name!r} is too busy: {MAX_TRIES} tries in a row lost a race")
