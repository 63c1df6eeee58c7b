"""Retention: the newest operations of a table, the highest of its finished batches, and requests for a
time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from distop.errors import CorruptRecord, OutcomeUnknown
from distop.metastore.backlog.batches import DONE, OrderingRecord, ordering_of
from distop.metastore.backlog.decisions import change_ordering
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.named import named
from distop.metastore.etcd.txn import Delete, KeyValue, Txn, unchanged
from distop.metastore.operations import requests
from distop.metastore.operations.series import forget_series
from distop.metastore.records.components import escape
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode
from distop.metastore.tables import audit

log = logging.getLogger(__name__)

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


async def prune_after(client: EtcdClient, keys: TableKeys, ended: OperationId, *, now: float) -> None:
    """Call :func:`prune` when some operations have ended; an error must not make that seem to have failed."""
    if ended.instance % EVERY:
        return
    try:
        await prune(client, keys, now=now)
    except Exception as error:  # a defect, too
        log.warning("history_not_pruned", extra={"table": keys.name, "error": str(error)})


async def prune(client: EtcdClient, keys: TableKeys, *, now: float, keep: int = KEEP) -> int:
    """Delete the oldest finished operations of a table beyond ``keep``; return how many. Also prunes its
    audit trail, and the batches and requests it remembers.

    Operations that still have keys are kept: their collector reads their outcome from the history. Only what
    is as it was listed is deleted: the same name may be another table's by then. So a lost reply is ignored;
    the next call continues.
    """
    keyspace = keys.keyspace
    active = await client.scan(keyspace.active + escape(keys.name).encode() + b".", keys_only=True)
    await audit.prune(client, keys.audit_prefix)
    try:
        await forget_batches(client, keys)
    except CorruptRecord as error:  # how many to remember is unknown: all of them
        log.warning("batches_not_pruned", extra={"table": keys.name, "error": str(error)})
    await requests.forget(client, keys, now)
    spared = {keys.history(operation) for operation, _ in named(active.kvs, keyspace.parse_active)}
    listing = await client.scan(keys.history_prefix)
    records = []
    for kv in listing.kvs:
        with suppress(CorruptRecord):  # the doctor reports it; it must not keep all others
            if kv.key not in spared:
                records.append((kv, decode(kv.value, HistoryRecord, kv.key)))
    records.sort(key=lambda item: item[1].finished_at, reverse=True)
    victims = records[keep:]
    for _, record in victims:
        if record.series is not None:
            await forget_series(client, keys, record.series)
    for start in range(0, len(victims), _BITE):
        try:
            reached("prune.before")
            await client.txn(_removal([kv for kv, _ in victims[start : start + _BITE]]))
            reached("prune.after")
        except OutcomeUnknown:
            continue
    return len(victims)


def _removal(kvs: Sequence[KeyValue]) -> Txn:
    """IF the keys are as read THEN they are gone."""
    return Txn(tuple(map(unchanged, kvs)), tuple(Delete(kv.key) for kv in kvs))


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
    victims = listing.kvs[: max(0, len(listing.kvs) - keep)]
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
            await client.txn(_removal(oldest[start : start + _BITE]))
    return len(oldest)


async def _forget(client: EtcdClient, keys: TableKeys, first: KeyValue, last: KeyValue) -> None:
    name = last.key[len(keys.applied_prefix) :].decode()

    async def change(now: OrderingRecord) -> tuple[OrderingRecord, Txn] | None:
        # The table that is compared was read before: while this key stands, it is the one that was listed.
        if (await client.get(first.key)).mod_revision != first.mod_revision:
            return None
        forgotten = max(now.forgotten, name, key=str.encode)
        changed = msgspec.structs.replace(now, forgotten=forgotten)
        return changed, Txn(then=(Delete(first.key, last.key + b"\0"),))

    await change_ordering(client, keys, change, request="")
