"""Batches and requests that a rollback takes out of a table, and those that it brings back.

What a table has applied is what its history says. The transaction that moves the main branch records the
difference (:func:`rollback_txn`): batches in ``.ordering``, whose gate it closes, and requests in
``.undone``. So from that moment on nothing that is gone counts as applied. The table's leader then moves the
batches to where they had waited, some at a time, whenever it looks (:func:`put_back`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from distop.errors import Busy, Conflict, PreconditionFailed, RolledBack
from distop.metastore.backlog import batches
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import RequestRecord
from distop.metastore.records.record import Record, decode, encode

MAX_UNDONE_BYTES = 400_000
"""Largest record of what rollbacks have taken out: two of them fit a transaction."""

MAX_BROUGHT_BACK = 20
"""Most batches that going forward again applies: each takes up to four operations of the transaction."""

_BITE = 20
"""Batches put back by one transaction."""


class UndoneRequest(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A request whose rows were rolled back."""

    operation: str = ""
    """What it had started last; empty: a commit of another program."""
    remaining: str = msgspec.field(default="", name="still")
    """What it had started before, whose rows are in the table: so the request is done all the same."""
    by: str
    """The operation that rolled its rows back."""
    forget_at: float
    """Until when the request is remembered."""


class UndoneRecord(Record, kw_only=True):
    """``<table>.undone``: the requests whose rows were rolled back."""

    requests: dict[str, UndoneRequest] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What some snapshots of a table have applied, each with its operation."""

    batches: dict[str, str] = field(default_factory=dict)
    unordered: dict[str, str] = field(default_factory=dict)
    requests: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Also until when they are remembered. Without an operation: commits of other programs."""


@dataclass(frozen=True, kw_only=True)
class RollbackDifference:
    """What a move of the main branch changes of what counts as applied."""

    gone: Done
    """No longer part of the table's history."""
    back: Done
    """Part of it again."""
    left: Done
    """All that is part of it then."""


async def rollback_txn(
    client: EtcdClient, keys: TableKeys, moved: RollbackDifference, *, by: str, now: float
) -> etcd.Txn:
    """The part of the transaction that moves the main branch.

    Raises
    ------
    PreconditionFailed
        There is more than one rollback can take out, or bring back.
    Busy
        What the one before has taken out does not wait again yet.
    Conflict
        A batch that comes back is being applied again.
    """
    read = await client.read_at_once([etcd.Get(keys.ordering), etcd.Get(keys.undone)])
    ordering_kv, undone_kv = read.single(0, keys.ordering), read.single(1, keys.undone)
    txn = _requests(keys, undone_kv, moved, by=by, now=now)
    gone, back, left = moved.gone, moved.back, moved.left
    if not any((gone.batches, gone.unordered, back.batches, back.unordered)):
        return txn
    ordering = batches.ordering_of(ordering_kv)
    if ordering.returning or ordering.returning_unordered:
        raise Busy(f"batches of table {keys.name!r} that were rolled back before are still being put back")
    returning, unordered = _returning(gone.batches, left.batches), _returning(gone.unordered, left.unordered)
    changed = msgspec.structs.replace(ordering, returning=returning, returning_unordered=unordered)
    if not changed.running:  # otherwise its publication finds out
        changed = changed.unstaged()
    changed = changed.without_rewritten(*returning, *unordered)
    if any(not entry.remaining for entry in (*returning.values(), *unordered.values())):
        awaiting = "" if changed.awaiting in returning else changed.awaiting
        changed = msgspec.structs.replace(changed, gate="closed", closed_by=by, held_by=by, awaiting=awaiting)
    changed, again = await _applied_again(client, keys, changed, moved, now)
    value = encode(changed)
    if len(value) > MAX_UNDONE_BYTES:
        raise _too_many(f"{len(returning) + len(unordered):,} batches")
    put = etcd.Txn(
        (etcd.unchanged(ordering_kv),), (etcd.Put(keys.ordering, value), etcd.Put(keys.backlog_index, b"{}"))
    )
    return txn + put + again


def _returning(gone: Mapping[str, str], left: Mapping[str, str]) -> dict[str, batches.Returning]:
    """The batches to put back."""
    return {
        name: batches.Returning(operation=operation, remaining=left.get(name, ""))
        for name, operation in gone.items()
    }


def _requests(
    keys: TableKeys, kv: etcd.KeyValue, moved: RollbackDifference, *, by: str, now: float
) -> etcd.Txn:
    """The part for the requests: what the last operation of each has written is in the table, what an earlier
    one has, or nothing."""
    known = decode(kv.value, UndoneRecord, kv.key).requests if kv.exists else {}
    gone, left = (
        moved.gone.requests,
        {name: operations[0] for name, operations in moved.left.requests.items()},
    )
    undone = {name: request for name, request in known.items() if request.forget_at > now}
    for name, (operation, forget_at) in gone.items():
        before = undone.get(name)
        if before is not None and before.remaining == operation:
            operation = before.operation  # the last one had gone before
        if forget_at > now:
            undone[name] = UndoneRequest(operation=operation, by=by, forget_at=forget_at)
    requests = {
        name: msgspec.structs.replace(request, remaining=left.get(name, ""))
        for name, request in undone.items()
        if left.get(name) != request.operation
    }
    if not (requests or kv.exists):
        return etcd.Txn()
    value = encode(UndoneRecord(requests=requests))
    if len(value) > MAX_UNDONE_BYTES:
        raise _too_many(f"{len(requests):,} requests that are still remembered")
    return etcd.Txn((etcd.unchanged(kv),), (etcd.Put(keys.undone, value),))


def _too_many(subject: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"with this rollback {subject} would be gone, more than one record holds",
        hint="roll back to a later snapshot first: distop snapshot list TABLE lists them",
        details={"field": "snapshot"},
    )


async def _applied_again(
    client: EtcdClient,
    keys: TableKeys,
    ordering: batches.OrderingRecord,
    moved: RollbackDifference,
    now: float,
) -> tuple[batches.OrderingRecord, etcd.Txn]:
    """The part for batches that come back: where they wait again they must not be applied twice."""
    gone, back = moved.gone, moved.back
    ways = (True, gone.batches, back.batches), (False, gone.unordered, back.unordered)
    places = [
        (name, operation, batch_keys(keys, name, ordered=ordered))
        for ordered, without, some in ways
        for name, operation in some.items()
        if name not in without
    ]
    if len(places) > MAX_BROUGHT_BACK:
        raise PreconditionFailed(
            f"this would bring back {len(places):,} batches, at most {MAX_BROUGHT_BACK} at a time can be",
            hint="go forward to an earlier snapshot first",
            details={"field": "snapshot"},
        )
    wanted = [etcd.Get(key) for _, _, own in places for key in own]
    read = await client.read_at_once(wanted) if wanted else None
    txn, index = etcd.Txn(), 0
    for name, operation, own in places:
        assert read is not None
        end, *open_ones = (read.single(index + at, key) for at, key in enumerate(own))
        index += len(own)
        txn += etcd.Txn(tuple(etcd.unchanged(kv) for kv in (end, *open_ones)))
        waits = [decode(kv.value, batches.BatchRecord, kv.key) for kv in open_ones if kv.exists]
        if running := next((record.operation for record in waits if record.operation), ""):
            raise Conflict(f"batch {name!r} of table {keys.name!r} is being applied by {running}")
        ordering = batches.without_block(batches.without_failed(ordering, name), name)
        if end.exists:
            continue  # it had not been put back yet
        record = waits[0] if waits else batches.BatchRecord(type="")
        done = batches.AppliedRecord.of(OperationId.parse(operation), record, now)
        txn += etcd.Txn(
            (),
            (*(etcd.DeleteRange(kv.key) for kv in open_ones if kv.exists), etcd.Put(end.key, encode(done))),
        )
        if name in back.batches:
            ordering = ordering.done_with(name)
    return ordering, txn


def batch_keys(keys: TableKeys, batch: str, *, ordered: bool) -> tuple[bytes, ...]:
    """The keys of a batch, in order or without one: that of its end, then where it waits."""
    if ordered:
        return keys.applied(batch), keys.backlog(batch)
    return tuple(
        keys.unordered(state, batch)
        for state in (batches.DONE, batches.WAITING, batches.RUNNING, batches.FAILED)
    )


async def put_back(client: EtcdClient, keys: TableKeys, ordering_kv: etcd.KeyValue) -> etcd.Txn:
    """The transaction that lets some of the batches wait again that a rollback has taken out.

    One that was queued meanwhile stays as it is, but replaces no rows that are gone. One that was not kept
    (see :class:`AppliedRecord`) is only forgotten: it is applied if it is published again.
    """
    ordering = batches.ordering_of(ordering_kv)
    some = [(name, True) for name in sorted(ordering.returning, key=str.encode)]
    some = [*some, *((name, False) for name in sorted(ordering.returning_unordered))][:_BITE]
    reads = [key for name, ordered in some for key in batch_keys(keys, name, ordered=ordered)]
    read = await client.read_at_once([etcd.Get(key) for key in reads])
    left, left_unordered = dict(ordering.returning), dict(ordering.returning_unordered)
    txn, index = etcd.Txn((etcd.unchanged(ordering_kv),)), 0
    for name, ordered in some:
        own = batch_keys(keys, name, ordered=ordered)
        end, *open_ones = (read.single(index + at, key) for at, key in enumerate(own))
        index += len(own)
        entry = (left if ordered else left_unordered).pop(name)
        record = decode(end.value, batches.AppliedRecord, end.key) if end.exists else None
        if record is None or record.operation != entry.operation:
            continue  # applied again since
        ops: tuple[etcd.Op, ...] = (etcd.DeleteRange(end.key),)
        if entry.remaining:
            ops = (etcd.Put(end.key, encode(record.by_earlier(entry.remaining))),)
        elif record.batch is not None and not any(kv.exists for kv in open_ones):
            # Its place in the order is behind it: it was applied there before.
            again = msgspec.structs.replace(record.batch, anyway=True)
            ops += (etcd.Put(open_ones[0].key, encode(_instead_of(again, entry.remaining))),)
        for kv in open_ones:
            if kv.exists:
                waiting = decode(kv.value, batches.BatchRecord, kv.key)
                if waiting.argument.get(batches.REPLACES) == entry.operation:
                    ops += (etcd.Put(kv.key, encode(_instead_of(waiting, entry.remaining))),)
        txn += etcd.Txn(tuple(etcd.unchanged(kv) for kv in (end, *open_ones)), ops)
    changed = msgspec.structs.replace(ordering, returning=left, returning_unordered=left_unordered)
    if not left and ordering.returning:
        changed = msgspec.structs.replace(changed, last=await _last(client, keys, ordering))
    return txn + etcd.Txn((), (etcd.Put(keys.ordering, encode(changed)), etcd.Put(keys.backlog_index, b"{}")))


def _instead_of(batch: batches.BatchRecord, operation: str) -> batches.BatchRecord:
    """A batch that replaces what this operation has written; empty: nothing, as its rows are gone."""
    others = {name: value for name, value in batch.argument.items() if name != batches.REPLACES}
    argument = {**others, batches.REPLACES: operation} if operation else others
    return msgspec.structs.replace(batch, argument=argument)


async def _last(client: EtcdClient, keys: TableKeys, ordering: batches.OrderingRecord) -> str:
    """The highest batch that is still applied, or skipped."""
    end = prefix_end(keys.applied_prefix)
    most = len(ordering.returning) + 1
    highest = await client.get_range(keys.applied_prefix, end, keys_only=True, limit=most, backwards=True)
    names = [kv.key[len(keys.applied_prefix) :].decode() for kv in highest.kvs]
    gone = {name for name, entry in ordering.returning.items() if not entry.remaining}
    remaining = [name for name in names if name not in gone]
    return max([ordering.forgotten, *remaining], key=str.encode)


async def effective_operation(client: EtcdClient, keys: TableKeys, run: str, record: RequestRecord) -> str:
    """The name of the operation whose rows a request has in the table; empty: none has succeeded.

    Raises :class:`~distop.errors.RolledBack` if there is none any more.
    """
    kv = await client.get(keys.undone)
    undone = decode(kv.value, UndoneRecord, kv.key).requests.get(run) if kv.exists else None
    if undone is None or undone.operation not in ("", record.done_by):
        return record.done_by
    if undone.remaining:
        return undone.remaining
    raise RolledBack(
        f"what run {run!r} wrote to table {keys.name!r} was rolled back by {undone.by}",
        details={"field": "run", "operation": record.done_by, "by": undone.by},
    )
