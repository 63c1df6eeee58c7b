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

How the table is fed is changed by settings, and by decisions about its batches. Each is one transaction that
compares ``.ordering`` as read, writes the audit entry, and stores the request's id there. So a repeated
request, after a lost reply or through another coordinator, is recognised as done, whatever was changed since;
the change and its audit entry happen once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import msgspec

from distop import errors
from distop.metastore.backlog import batches
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import decode, encode

Change: TypeAlias = Callable[
    [batches.OrderingRecord], Awaitable[tuple[batches.OrderingRecord, etcd.Txn] | None]
]
"""From the present record to the new one, with further writes; ``None``: nothing
changes."""


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
    again: bool = False
    """It waited or had failed before, and has other content now."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Of an applied one: see ``AppliedRecord``."""


async def enqueue(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    record: batches.BatchRecord,
    *,
    ordered: bool,
    republish: bool = False,
    replace: bool = False,
    rewritten_since: str = "",
    also: tuple[etcd.Put, ...] = (),
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
    batches.check_batch(batch)
    wanted = (
        keys.table,
        keys.ordering,
        keys.backlog(batch),
        keys.applied(batch),
        *(
            keys.unordered(state, batch)
            for state in (batches.WAITING, batches.RUNNING, batches.FAILED, batches.DONE)
        ),
        *(op.key for op in also),
    )

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, Answer]:
        table, ordering_kv, *own = read.each(wanted)
        entry, applied, waiting, running, failed, done, *written = own
        if not table.exists:
            raise errors.TableNotFound.named(keys.name)
        ordering = batches.ordering_of(ordering_kv)
        if batch in ordering.returning or batch in ordering.returning_unordered:
            raise errors.Busy(
                f"batch {batch!r} of table {keys.name!r} was rolled back, and is being put back"
            )
        queued = [
            (kv, decode(kv.value, batches.BatchRecord, kv.key))
            for kv in (entry, waiting, running, failed)
            if kv.exists
        ]
        ends = [decode(kv.value, batches.AppliedRecord, kv.key) for kv in (applied, done) if kv.exists]
        if rewritten_since:
            last = max(ends, key=lambda end: end.at, default=None)
            if queued:
                return None, Answer(became=Queued.ALREADY_QUEUED)
            if last is None or (last.outcome, last.operation) != ("applied", rewritten_since):
                return None, Answer(became=Queued.ALREADY_APPLIED, operation=last.operation if last else "")
            # Rows that one operation has added with those of other batches cannot be distinguished.
            if not replace or last.together > 1:
                put = etcd.Put(keys.ordering, encode(ordering.with_rewritten(batch)))
                compares = tuple(map(etcd.unchanged, (table, ordering_kv, *own)))
                return etcd.Txn(compares, (put,)), Answer(became=Queued.REWRITTEN, operation=last.operation)
        # An old copy of a request may arrive at any time: when the batch was published again, taken back or
        # forgotten since.
        anyway = republish or replace
        is_copy = any(kv.exists for kv in written) or (anyway and record.uid in ordering.decided)
        known = _ended_before(record, ends, again=bool(queued) or (anyway and not is_copy))
        entered, in_order = record, ordered
        if replace and known is None and not is_copy:
            entered = _instead(keys, batch, record, ends)
            in_order = not done.exists
        for kv, existing in queued:
            known = known or _queued_before(record, existing, failed=kv is failed, republish=republish)
            if known is None and not is_copy and (existing.operation or not (kv is failed or anyway)):
                anew = f"once it is applied, give its new content to distop batch replace {keys.name} {batch}"
                raise errors.BatchDiffers(
                    f"batch {batch!r} of table {keys.name!r} is "
                    f"{'being applied' if existing.operation else 'queued'} with different content",
                    hint=anew if existing.operation else "",
                    details={"table": keys.name, "batch": batch, "operation": existing.operation},
                )
        if known is not None or is_copy:
            return None, known or Answer(became=Queued.QUEUED)
        # A republished batch is never late. For others the decision is made when their turn comes; the answer
        # says what it would be now.
        late = in_order and not anyway and ordering.is_late(batch)
        if late and ordering.late == "reject":
            raise errors.BatchLate(
                f"table {keys.name!r} takes no late batch, and {batch!r} is one: {ordering.why_late(batch)}",
                details={"table": keys.name, "batch": batch, "last": ordering.last},
            )
        # An unordered batch has no turn at which somebody could decide.
        if not (in_order or anyway or queued) and ordering.is_forgotten(batch):
            raise errors.BatchLate(
                f"batch {batch!r} of table {keys.name!r} may have been applied before: batches up to "
                f"{ordering.forgotten!r} are not remembered by name",
                hint="if it was not, publish it with --republish",
                details={"table": keys.name, "batch": batch},
            )
        before = entry if in_order else waiting
        replaced = [kv for kv, _ in queued if kv is not before]
        left = ordering.unstaged() if ordering.has_staged(batch) else ordering
        left = batches.without_failed(left.without_rewritten(batch), batch)
        if anyway:
            left = msgspec.structs.replace(left, decided=[*left.decided, record.uid][-batches.MAX_DECIDED :])
        if entry in replaced:
            left = batches.without_block(left, batch)
        value = encode(msgspec.structs.replace(entered, anyway=anyway))
        ops: tuple[etcd.Op, ...] = (etcd.Put(before.key, value), etcd.Put(keys.backlog_index, b"{}"), *also)
        ops += tuple(etcd.DeleteRange(kv.key) for kv in replaced)
        compares = tuple(map(etcd.unchanged, (table, *own)))
        if left != ordering:
            ops += (etcd.Put(keys.ordering, encode(left)),)
        if left != ordering or not in_order or ordering.late == "reject":
            compares += (etcd.unchanged(ordering_kv),)
        reached("enqueue.before")
        late = late and ordering.stops_at(batch)
        return etcd.Txn(compares, ops), Answer(became=Queued.QUEUED, late=late, again=bool(queued))

    reads = [etcd.Get(key) for key in wanted]
    subject, replied = f"table {keys.name!r}", lambda: reached("enqueue.after")
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


def _instead(
    keys: TableKeys, batch: str, record: batches.BatchRecord, ends: Sequence[batches.AppliedRecord]
) -> batches.BatchRecord:
    """The batch that replaces the rows of one that was applied."""
    last = max(ends, key=lambda end: end.at, default=None)
    if last is None or last.outcome != "applied":
        raise errors.NotFound(
            f"batch {batch!r} of table {keys.name!r} was not applied, as far as is remembered",
            hint=f"publish it: distop batch add {keys.name} {batch}",
            details={"table": keys.name, "batch": batch},
        )
    kept = record if record.argument else last.batch
    if kept is None:
        raise errors.InvalidArgument(
            f"the argument of batch {batch!r} was not kept", hint="give it", details={"field": "argument"}
        )
    if kept.type != record.type:
        raise errors.InvalidArgument(
            f"batch {batch!r} was applied by {kept.type!r}, whose argument is not one of {record.type!r}",
            hint=f"give an argument, or --type {kept.type}",
            details={"field": "type"},
        )
    if batches.REPLACES in record.argument:
        raise errors.InvalidArgument(
            f"batch {batch!r} replaces the rows of {last.operation}, which has applied it last",
            hint="leave out --replaces",
            details={"field": batches.REPLACES},
        )
    return msgspec.structs.replace(
        record,
        argument={**kept.argument, batches.REPLACES: last.operation},
        options=kept.options,
        digest=kept.digest,
    )


def _ended_before(
    record: batches.BatchRecord, ends: Sequence[batches.AppliedRecord], *, again: bool
) -> Answer | None:
    """The answer for a batch that was applied or skipped; ``None``: it was not, or is applied ``again``."""
    if not ends or (again and all(end.uid != record.uid for end in ends)):
        return None
    last = max(ends, key=lambda end: end.at)
    became = Queued.SKIPPED if last.outcome == "skipped" else Queued.ALREADY_APPLIED
    return Answer(became=became, operation=last.operation, markers=last.markers)


def _queued_before(
    record: batches.BatchRecord, existing: batches.BatchRecord, *, failed: bool, republish: bool
) -> Answer | None:
    """The answer for a batch that is equal to one that waits, is being applied or has failed."""
    own = existing.uid == record.uid
    if not own and (existing.digest != record.digest or (failed and republish)):
        return None
    became = Queued.FAILED if failed else Queued.QUEUED if own else Queued.ALREADY_QUEUED
    return Answer(became=became, operation=existing.operation)


async def change_ordering(
    client: EtcdClient,
    keys: TableKeys,
    change: Change,
    *,
    request: str,
    also: tuple[etcd.Op, ...] = (),
) -> batches.OrderingRecord:
    """Read the ordering, change it, and write it if it is unchanged since; retry otherwise.

    Raises the errors of ``change``. A leader examines the table afterwards.

    Parameters
    ----------
    request:
        Id of the call, the same in its repetitions. Empty: the change is idempotent.
    also:
        Written in the same transaction: the audit entry.
    """

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, batches.OrderingRecord]:
        table, kv = read.single(0, keys.table), read.single(1, keys.ordering)
        if not table.exists:
            raise errors.TableNotFound.named(keys.name)
        now = batches.ordering_of(kv)
        if request and request in now.decided:
            return None, now
        wanted = await change(now)
        if wanted is None:
            return None, now
        decided = [*now.decided, request][-batches.MAX_DECIDED :] if request else now.decided
        record = msgspec.structs.replace(wanted[0], decided=decided)
        puts = (etcd.Put(keys.ordering, encode(record)), etcd.Put(keys.backlog_index, b"{}"), *also)
        reached("ordering.before")
        return etcd.Txn((etcd.unchanged(table), etcd.unchanged(kv)), puts) + wanted[1], record

    subject, replied = f"table {keys.name!r}", lambda: reached("ordering.after")
    reads = (etcd.Get(keys.table), etcd.Get(keys.ordering))
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


async def set_ordering(
    client: EtcdClient,
    keys: TableKeys,
    settings: dict[str, object],
    *,
    request: str,
    also: tuple[etcd.Op, ...] = (),
) -> batches.OrderingRecord:
    """Change the named fields; a late batch that blocks the table is applied if such batches now are (B4).
    Idempotent.

    Raises :class:`~distop.errors.InvalidArgument` for an invalid value.
    """

    async def change(now: batches.OrderingRecord) -> tuple[batches.OrderingRecord, etcd.Txn] | None:
        changed = msgspec.structs.replace(now, **settings)
        if settings.get("before"):
            changed = msgspec.structs.replace(changed, validation=True)
        if settings.get("gate") == "open":
            changed = changed.opened()
        elif "gate" in settings and not now.held_by:
            changed = msgspec.structs.replace(changed, closed_by=request)
        block = changed.blocked
        if block is not None and block.code == batches.LATE and not changed.stops_at(block.batch):
            changed = msgspec.structs.replace(changed, blocked=None)
        if changed.remember != now.remember:
            changed = msgspec.structs.replace(changed, forget_at=0)
        return None if changed == now else (changed, etcd.Txn())

    return await change_ordering(client, keys, change, request=request, also=also)


async def open_gate(
    client: EtcdClient,
    keys: TableKeys,
    *,
    request: str,
    signal: str = "",
    closed_by: str = "",
    also: tuple[etcd.Op, ...] = (),
) -> batches.OrderingRecord:
    """Let the collected batches be applied (B6). Idempotent.

    Parameters
    ----------
    signal:
        What opens it: an equal signal opens it once, even if the gate was closed since.
    closed_by:
        The request that has closed it, if only that is to be undone.

    Raises
    ------
    PreconditionFailed
        Another request, or a rollback, has closed it since.
    """

    async def change(now: batches.OrderingRecord) -> tuple[batches.OrderingRecord, etcd.Txn] | None:
        if signal and signal in now.signals:
            return None
        if closed_by and now.gate == "closed" and now.closed_by != closed_by:
            raise errors.PreconditionFailed(
                f"the gate of table {keys.name!r} was closed by {now.held_by or 'another request'} meanwhile",
                hint=f"to have the collected batches applied all the same: distop backlog open {keys.name}",
                details={"table": keys.name},
            )
        signals = [*now.signals, signal][-batches.MAX_DECIDED :] if signal else now.signals
        changed = msgspec.structs.replace(now.opened(), signals=signals)
        return None if changed == now else (changed, etcd.Txn())

    return await change_ordering(client, keys, change, request=request, also=also)


async def approve(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    *,
    branch: str = "",
    request: str,
    by: str = "",
    also: tuple[etcd.Op, ...] = (),
) -> batches.OrderingRecord:
    """Let the next batch come after this one; if it is staged, let it be published (B7). Its end says by
    whom. Idempotent.

    Parameters
    ----------
    batch:
        The batch that was checked; empty: the waiting one. If named, no other is approved.
    branch:
        The branch that was looked at: the batch is not approved if it was staged again since. Empty: the
        present one.

    Raises
    ------
    PreconditionFailed
        Another batch, or branch, waits for approval.
    """

    async def change(now: batches.OrderingRecord) -> tuple[batches.OrderingRecord, etcd.Txn] | None:
        if not now.awaiting:
            return None
        if batch and batch != now.awaiting:
            raise errors.PreconditionFailed(
                f"batch {now.awaiting!r} of table {keys.name!r} waits for approval, not {batch!r}",
                details={"table": keys.name, "batch": now.awaiting},
            )
        if now.staged is None and not branch:
            end, approval = await client.get(keys.applied(now.awaiting)), etcd.Txn()
            if end.exists:  # it may be forgotten, or removed by hand
                with suppress(errors.CorruptRecord):  # the table must go on without it
                    done = msgspec.structs.replace(
                        decode(end.value, batches.AppliedRecord, end.key), decided_by=by
                    )
                    approval = etcd.Txn((etcd.unchanged(end),), (etcd.Put(end.key, encode(done)),))
            return msgspec.structs.replace(now, awaiting=""), approval
        present = now.staged.branch if now.staged is not None else ""
        if now.staged is None or branch not in ("", present):
            raise errors.PreconditionFailed(
                f"batch {now.awaiting!r} of table {keys.name!r} waits on branch {present!r}, not {branch!r}",
                hint=f"look at it again: distop table why {keys.name}",
                details={"table": keys.name, "batch": now.awaiting, "branch": present},
            )
        approved = msgspec.structs.replace(now.staged, approved_by=by)
        return msgspec.structs.replace(now, awaiting="", staged=approved), etcd.Txn()

    return await change_ordering(client, keys, change, request=request, also=also)


async def unblock(
    client: EtcdClient,
    keys: TableKeys,
    batch: str,
    *,
    skip: bool,
    now: float,
    request: str,
    by: str = "",
    also: tuple[etcd.Op, ...] = (),
) -> batches.OrderingRecord:
    """Decide about a blocked table: retry its batch, or skip the batch for good (B8). The same for a batch
    that is staged: its branch is dropped.

    Parameters
    ----------
    batch:
        The one that blocks or is staged, or, being late, is about to block; empty: the present one. Or a
        failed unordered batch. While a rollback holds the table any waiting batch may be skipped.

    Raises
    ------
    PreconditionFailed
        The table is not blocked, or another batch blocks it.
    """

    def skipped(record: batches.BatchRecord) -> batches.AppliedRecord:
        return batches.AppliedRecord(
            outcome="skipped",
            digest=record.digest,
            uid=record.uid,
            at=now,
            attempts=record.earlier + record.attempts,
            decided_by=by,
        )

    def again(record: batches.BatchRecord) -> batches.BatchRecord:
        earlier = record.earlier + record.attempts
        return msgspec.structs.replace(record, attempts=0, earlier=earlier, code="", error="")

    async def of_unordered(ordering: batches.OrderingRecord) -> tuple[batches.OrderingRecord, etcd.Txn]:
        entry = await client.get(keys.unordered(batches.FAILED, batch))
        if skip and ordering.held_by and not entry.exists:
            entry = await client.get(keys.unordered(batches.WAITING, batch))
        done = await client.get(keys.unordered(batches.DONE, batch))
        ops: tuple[etcd.Op, ...] = ()
        if entry.exists:
            failed = decode(entry.value, batches.BatchRecord, entry.key)
            waits = etcd.Put(keys.unordered(batches.WAITING, batch), encode(again(failed)))
            ops = (etcd.DeleteRange(entry.key), *(_skipped(done, skipped(failed)) if skip else [waits]))
        return batches.without_failed(ordering, batch), etcd.Txn(
            (etcd.unchanged(entry), etcd.unchanged(done)), ops
        )

    async def change(ordering: batches.OrderingRecord) -> tuple[batches.OrderingRecord, etcd.Txn] | None:
        if batch and any(entry.batch == batch for entry in ordering.failed):
            return await of_unordered(ordering)
        block, staged = ordering.blocked, ordering.staged
        if block is None and staged is not None and not ordering.running and batch in ("", staged.batch):
            block = batches.BatchBlock(batch=staged.batch, code="")
        entry = await client.get(keys.backlog(batch or (block.batch if block is not None else "")))
        held = skip and ordering.held_by != ""
        if (
            held
            and batch
            and not entry.exists
            and (await client.get(keys.unordered(batches.WAITING, batch))).exists
        ):
            return await of_unordered(ordering)
        if block is None and entry.exists and (held or ordering.stops_at(batch)):
            block = batches.BatchBlock(
                batch=batch, code=batches.LATE
            )  # the leader is about to say so, or holds it
        if block is None or (batch and batch != block.batch):
            by = f", but by {block.batch!r}" if block is not None else ""
            raise errors.PreconditionFailed(
                f"table {keys.name!r} is not blocked{f' by {batch!r}' if batch else ''}{by}",
                details={"table": keys.name},
            )
        record = msgspec.structs.replace(ordering, blocked=None)
        record = record.unstaged() if record.has_staged(block.batch) else record
        ops: tuple[etcd.Op, ...] = ()
        applied = await client.get(keys.applied(block.batch))
        if entry.exists:
            queued = decode(entry.value, batches.BatchRecord, entry.key)
            if skip:
                ops = (etcd.DeleteRange(entry.key), *_skipped(applied, skipped(queued)))
            else:
                anyway = queued.anyway or block.code == batches.LATE
                waits = msgspec.structs.replace(again(queued), anyway=anyway, in_doubt=False)
                ops = (etcd.Put(entry.key, encode(waits)),)
        if skip:
            record = record.done_with(block.batch)
        return record, etcd.Txn((etcd.unchanged(entry), etcd.unchanged(applied)), ops)

    return await change_ordering(client, keys, change, request=request, also=also)


def _skipped(end: etcd.KeyValue, skipped: batches.AppliedRecord) -> list[etcd.Put]:
    """What becomes of a skipped batch; nothing if it was applied before: its rows stay in the table."""
    before = decode(end.value, batches.AppliedRecord, end.key) if end.exists else None
    return [] if before is not None and before.outcome == "applied" else [etcd.Put(end.key, encode(skipped))]


async def take_back(
    client: EtcdClient, keys: TableKeys, batch: str, *, request: str, also: tuple[etcd.Op, ...] = ()
) -> batches.OrderingRecord:
    """Remove a batch that is not applied yet, as if it had never been published. Idempotent.

    Raises
    ------
    NotFound
        No such batch waits.
    PreconditionFailed
        It is being applied.
    """
    places = (
        keys.backlog(batch),
        *(keys.unordered(state, batch) for state in (batches.WAITING, batches.FAILED, batches.RUNNING)),
    )

    async def change(now: batches.OrderingRecord) -> tuple[batches.OrderingRecord, etcd.Txn] | None:
        read = await client.read_at_once([etcd.Get(key) for key in places])
        kvs = read.each(places)
        existing = [(kv, decode(kv.value, batches.BatchRecord, kv.key)) for kv in kvs if kv.exists]
        if not existing:
            raise errors.NotFound(
                f"no batch {batch!r} of table {keys.name!r} waits",
                hint=f"list waiting batches: distop batch list {keys.name}",
                details={"table": keys.name, "batch": batch},
            )
        operation = next((record.operation for _, record in existing if record.operation), "")
        if operation:
            raise errors.PreconditionFailed(
                f"batch {batch!r} of table {keys.name!r} is being applied by {operation}",
                hint=f"cancel that first: distop operation cancel {operation}",
                details={"table": keys.name, "batch": batch, "operation": operation},
            )
        left = batches.without_block(batches.without_failed(now, batch), batch)
        left = left.unstaged() if left.has_staged(batch) else left
        deletes = tuple(etcd.DeleteRange(kv.key) for kv, _ in existing)
        return left, etcd.Txn(tuple(etcd.unchanged(kv) for kv in kvs), deletes)

    return await change_ordering(client, keys, change, request=request, also=also)
