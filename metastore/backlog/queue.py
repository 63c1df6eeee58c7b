"""The backlog of a table: batches that wait to be applied, in the byte order of their names.

``<table>.backlog.<batch>`` is one batch, ``<table>.applied.<batch>`` the end of one, and ``<table>.ordering``
how the table is fed: its gates, its position, and what blocks it. The transaction that publishes a batch also
removes it from the backlog, so the removed batch is the applied one, whatever arrived meanwhile
(checklist B3).

``_backlog.<table>`` says that a leader should look. Every change that may let a batch go on writes it in the
same transaction; the leader removes it, unless it was written since, when nothing is left to do. No lost
event can strand a batch (B5).

A batch has one name, whether it is applied in order or without one: :mod:`~.batches` has the keys of the
latter. So a batch is published by reading all of its keys, and is applied once whichever way it comes (B1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from distop.errors import BatchDiffers, BatchLate, Busy, InvalidArgument, NotFound, TableNotFound
from distop.metastore.backlog.batches import (
    DONE,
    FAILED,
    MAX_DECIDED,
    REPLACES,
    RUNNING,
    WAITING,
    AppliedRecord,
    BatchRecord,
    check_batch,
    ordering_of,
    without_block,
    without_failed,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, Op, Put, Txn, TxnResult, unchanged
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
    REWRITTEN = "rewritten"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A batch after it was queued."""

    became: Queued
    operation: str = ""
    """The operation that applies it, or has applied it."""
    late: bool = False
    """It sorts before an applied one, and the table will stop at it."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Of an applied one: see ``AppliedRecord``."""


async def enqueue(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    record: BatchRecord,
    *,
    ordered: bool,
    republish: bool = False,
    replace: bool = False,
    rewritten_since: str = "",
    also: tuple[Put, ...] = (),
) -> Answer:
    """Publish a batch. Idempotent: an equal batch that is already queued or applied stays as it is (B1), also
    if it was published the other way.

    An unordered batch that has failed is retried if it is published with other content.

    Parameters
    ----------
    ordered:
        Whether it is applied in the order of names; else as soon as possible.
    republish:
        Apply it again if it was applied before, or has failed, and replace one that is queued.
    replace:
        Apply a batch that was applied before again, the same way, in place of the rows that it has added;
        without an argument with that of then.
    rewritten_since:
        The operation that has applied the batch, whose source was written again since: ``replace`` it, or
        else name it in the ordering. Nothing happens if the batch waits, or another operation has applied it
        since.
    also:
        Written in the same transaction: the audit entry, of this call alone.

    Raises
    ------
    BatchDiffers
        A batch with this name is queued with different content, or is being applied.
    NotFound
        It is to be replaced, and was not applied.
    BatchLate
        It sorts before an applied one, and the table rejects such batches; or, unordered, it sorts where the
        table does not remember what was applied.
    TableNotFound, Exhausted
        (:class:`~distop.errors.Busy` while a rollback puts it back.) Nothing was written.
    """
    check_batch(batch)
    wanted = (
        keys.table,
        keys.ordering,
        keys.backlog(batch),
        keys.applied(batch),
        *(keys.unordered(state, batch) for state in (WAITING, RUNNING, FAILED, DONE)),
        *(op.key for op in also),
    )

    async def decide(read: TxnResult) -> tuple[Txn | None, Answer]:
        table, ordering_kv, *own = (read.one(index, key) for index, key in enumerate(wanted))
        entry, applied, waiting, running, failed, done, *written = own
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        ordering = ordering_of(ordering_kv)
        if batch in ordering.returning or batch in ordering.returning_unordered:
            raise Busy(f"batch {batch!r} of table {keys.name!r} was rolled back, and is being put back")
        queued = [
            (kv, decode(kv.value, BatchRecord, kv.key))
            for kv in (entry, waiting, running, failed)
            if kv.exists
        ]
        ends = [decode(kv.value, AppliedRecord, kv.key) for kv in (applied, done) if kv.exists]
        if rewritten_since:
            last = max(ends, key=lambda end: end.at, default=None)
            if queued:
                return None, Answer(became=Queued.ALREADY_QUEUED)
            if last is None or (last.outcome, last.operation) != ("applied", rewritten_since):
                return None, Answer(became=Queued.ALREADY_APPLIED, operation=last.operation if last else "")
            # Rows that one operation has added with those of other batches cannot be told apart.
            if not replace or last.together > 1:
                put = Put(keys.ordering, encode(ordering.with_rewritten(batch)))
                compares = tuple(map(unchanged, (table, ordering_kv, *own)))
                return Txn(compares, (put,)), Answer(became=Queued.REWRITTEN, operation=last.operation)
        # An old copy of a request may arrive at any time: when the batch was published again, taken back or
        # forgotten since.
        anyway = republish or replace
        is_copy = any(kv.exists for kv in written) or (anyway and record.uid in ordering.decided)
        known = _ended_before(record, ends, again=bool(queued) or (anyway and not is_copy))
        entered, in_order = record, ordered
        if replace and known is None and not is_copy:
            entered = _instead(keys, batch, record, ends)
            in_order = not done.exists
        for kv, standing in queued:
            known = known or _queued_before(record, standing, failed=kv is failed, republish=republish)
            if known is None and not is_copy and (standing.operation or not (kv is failed or anyway)):
                raise BatchDiffers(
                    f"batch {batch!r} of table {keys.name!r} is "
                    f"{'being applied' if standing.operation else 'queued'} with different content",
                    details={"table": keys.name, "batch": batch, "operation": standing.operation},
                )
        if known is not None or is_copy:
            return None, known or Answer(became=Queued.QUEUED)
        # A republished batch is never late. For others the decision is made when their turn comes; the answer
        # says what it would be now.
        late = in_order and not anyway and ordering.is_late(batch)
        if late and ordering.late == "reject":
            raise BatchLate(
                f"table {keys.name!r} takes no late batch, and {batch!r} is one: {ordering.why_late(batch)}",
                details={"table": keys.name, "batch": batch, "last": ordering.last},
            )
        # An unordered batch has no turn at which somebody could decide.
        if not (in_order or anyway or queued) and ordering.is_forgotten(batch):
            raise BatchLate(
                f"batch {batch!r} of table {keys.name!r} may have been applied before: batches up to "
                f"{ordering.forgotten!r} are not remembered by name",
                hint="if it was not, publish it with --republish",
                details={"table": keys.name, "batch": batch},
            )
        place = entry if in_order else waiting
        replaced = [kv for kv, _ in queued if kv is not place]
        left = ordering.unstaged() if ordering.has_staged(batch) else ordering
        left = without_failed(left.without_rewritten(batch), batch)
        if anyway:
            left = msgspec.structs.replace(left, decided=[*left.decided, record.uid][-MAX_DECIDED:])
        if entry in replaced:
            left = without_block(left, batch)
        value = encode(msgspec.structs.replace(entered, anyway=anyway))
        ops: tuple[Op, ...] = (Put(place.key, value), Put(keys.backlog_index, b"{}"), *also)
        ops += tuple(Delete(kv.key) for kv in replaced)
        compares = tuple(map(unchanged, (table, *own)))
        if left != ordering:
            ops += (Put(keys.ordering, encode(left)),)
        if left != ordering or not in_order or ordering.late == "reject":
            compares += (unchanged(ordering_kv),)
        reached("enqueue.before")
        late = late and ordering.stops_at(batch)
        return Txn(compares, ops), Answer(became=Queued.QUEUED, late=late)

    reads = [Get(key) for key in wanted]
    what, replied = f"table {keys.name!r}", lambda: reached("enqueue.after")
    return (await update(client, reads, decide, what=what, replied=replied))[0]


def _instead(keys: TableKeys, batch: str, record: BatchRecord, ends: Sequence[AppliedRecord]) -> BatchRecord:
    """The batch that replaces the rows of one that was applied."""
    last = max(ends, key=lambda end: end.at, default=None)
    if last is None or last.outcome != "applied":
        raise NotFound(
            f"batch {batch!r} of table {keys.name!r} was not applied, as far as is remembered",
            hint=f"publish it: distop backlog add {keys.name} {batch}",
            details={"table": keys.name, "batch": batch},
        )
    if not record.argument and last.batch is None:
        raise InvalidArgument(
            f"the argument of batch {batch!r} was not kept", hint="give it", details={"field": "argument"}
        )
    kept = record if record.argument or last.batch is None else last.batch
    return msgspec.structs.replace(
        record,
        argument={**kept.argument, REPLACES: last.operation},
        options=kept.options,
        digest=kept.digest,
    )


def _ended_before(record: BatchRecord, ends: Sequence[AppliedRecord], *, again: bool) -> Answer | None:
    """The answer for a batch that was applied or skipped; ``None``: it was not, or is applied ``again``."""
    if not ends or (again and all(end.uid != record.uid for end in ends)):
        return None
    last = max(ends, key=lambda end: end.at)
    became = Queued.SKIPPED if last.outcome == "skipped" else Queued.ALREADY_APPLIED
    return Answer(became=became, operation=last.operation, markers=last.markers)


def _queued_before(
    record: BatchRecord, standing: BatchRecord, *, failed: bool, republish: bool
) -> Answer | None:
    """The answer for a batch that is equal to one that waits, is being applied or has failed."""
    own = standing.uid == record.uid
    if not own and (standing.digest != record.digest or (failed and republish)):
        return None
    became = Queued.FAILED if failed else Queued.QUEUED if own else Queued.ALREADY_QUEUED
    return Answer(became=became, operation=standing.operation)
