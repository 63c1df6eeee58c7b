"""Retention: the newest operations of a table, the highest of its finished batches, and requests for a
time."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from distop.errors import OutcomeUnknown
from distop.metastore.backlog.batches import DONE, OrderingRecord, ordering_of
from distop.metastore.backlog.decisions import change_ordering
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Op, Txn
from distop.metastore.operations import requests
from distop.metastore.operations.series import forget_series
from distop.metastore.records.components import escape
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode
from distop.metastore.tables import audit

KEEP = 1000
"""Finished operations remembered per table."""

EVERY = 64
"""A table is pruned when an instance number divisible by this finishes."""

FORGET_BITE = 1000
"""Batches deleted by one transaction, as one range of keys."""

SLACK = 8
"""A table remembers at most this share more of its batches than configured."""

_BITE = 100
"""Operations deleted by one transaction, under etcd's 128."""


async def prune(client: EtcdClient, keys: TableKeys, *, now: float, keep: int = KEEP) -> int:
    """Delete the oldest finished operations of a table beyond ``keep``; return how many. Also prunes its
    audit trail, and the batches and requests it remembers.

    Operations that still have keys are kept: their collector reads their outcome from the history. Deleting
    is idempotent, so a lost reply is ignored; the next call continues.
    """
    keyspace = keys.keyspace
    active = await client.scan(keyspace.active + escape(keys.name).encode() + b".", keys_only=True)
    await audit.prune(client, keys.audit_prefix)
    await forget_batches(client, keys)
    await requests.forget(client, keys, now)
    spared = {keys.history(keyspace.parse_active(kv.key)) for kv in active.kvs}
    listing = await client.scan(keys.history_prefix)
    records = [
        (kv.key, decode(kv.value, HistoryRecord, kv.key)) for kv in listing.kvs if kv.key not in spared
    ]
    records.sort(key=lambda item: item[1].finished_at, reverse=True)
    victims = records[keep:]
    for _, record in victims:
        if record.series is not None:
            await forget_series(client, keys, record.series)
    for start in range(0, len(victims), _BITE):
        deletes: list[Op] = [Delete(key) for key, _ in victims[start : start + _BITE]]
        try:
            reached("prune.before")
            await client.txn(Txn(then=tuple(deletes)))
            reached("prune.after")
        except OutcomeUnknown:
            continue
    return len(victims)


async def forget_batches(client: EtcdClient, keys: TableKeys) -> int:
    """Delete the lowest finished batches, beyond the number that the table remembers.

    They are listed only when there may be an eighth more than that: so the cost of a batch does not grow with
    the number remembered. Each step is in the transaction that records how far the memory reaches from then
    on: a batch that is published again later is known as applied, or known as forgotten.

    Returns how many.
    """
    ordering = ordering_of(await client.get(keys.ordering))
    keep = ordering.remember
    if ordering.applied < ordering.forget_at:
        return await _forget_unordered(client, keys, keep)
    listing = await client.scan(keys.applied_prefix, keys_only=True)
    victims = [one.key for one in listing.kvs[: max(0, len(listing.kvs) - keep)]]
    for start in range(0, len(victims), FORGET_BITE):
        bite = victims[start : start + FORGET_BITE]
        await _forget(client, keys, bite[0], bite[-1])
    room = keep + keep // SLACK - (len(listing.kvs) - len(victims))

    async def change(now: OrderingRecord) -> tuple[OrderingRecord, Txn] | None:
        if now.remember != keep or not room:
            return None
        # Counted from before the listing: batches applied meanwhile may count twice, but are never missed.
        return msgspec.structs.replace(now, forget_at=ordering.applied + room), Txn()

    if ordering.applied:
        await change_ordering(client, keys, change, request="")
    return len(victims) + await _forget_unordered(client, keys, keep)


async def _forget_unordered(client: EtcdClient, keys: TableKeys, keep: int) -> int:
    """Of unordered batches the ones that were applied last are remembered."""
    listing = await client.scan(keys.unordered(DONE), keys_only=True)
    oldest = sorted(listing.kvs, key=lambda kv: kv.mod_revision)[: max(0, len(listing.kvs) - keep)]
    for start in range(0, len(oldest), _BITE):
        with suppress(OutcomeUnknown):
            await client.txn(Txn(then=tuple(Delete(kv.key) for kv in oldest[start : start + _BITE])))
    return len(oldest)


async def _forget(client: EtcdClient, keys: TableKeys, first: bytes, last: bytes) -> None:
    name = last[len(keys.applied_prefix) :].decode()

    async def change(now: OrderingRecord) -> tuple[OrderingRecord, Txn]:
        forgotten = max(now.forgotten, name, key=str.encode)
        changed = msgspec.structs.replace(now, forgotten=forgotten)
        return changed, Txn(then=(Delete(first, last + b"\0"),))

    await change_ordering(client, keys, change, request="")
