"""What is remembered of finished operations: the newest of a table, one line for each series of them, the
highest of its finished batches, and requests for a time.

A series is the batches of a stream, or those of an ordered backlog. The history keeps one line for it: that
of its last successful operation, with the number of earlier ones. The transaction that finishes the next one
replaces it, so the line always matches what it counts. Operations that fail or are cancelled have lines of
their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from distop.errors import CorruptRecord, InvalidName, OutcomeUnknown
from distop.metastore.backlog.batches import DONE, OrderingRecord, ordering_of
from distop.metastore.backlog.queue import change_ordering
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.starting import forget_requests, forgotten
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, escape
from distop.metastore.records.operation import (
    HistoryRecord,
    OperationArg,
    RequestRecord,
    SeriesEntry,
    SeriesNote,
    SeriesRecord,
)
from distop.metastore.records.record import decode, encode, readable
from distop.metastore.tables import audit

log = logging.getLogger(__name__)

LAST = 10
"""Operations of a series that its line names."""

MAX_LINES = 20
"""Earlier lines that wait until their operations are collected; more are left to pruning."""

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


async def continued(
    client: EtcdClient, keys: TableKeys, arg: OperationArg, history: HistoryRecord
) -> tuple[HistoryRecord, etcd.Txn]:
    """The line of a successful operation of a series, and the changes to the line before.

    The request of the operation before is deleted, too. A repetition of it is refused by another compare: the
    watermark of the stream, or the batch that is no longer in the backlog.

    What cannot be read of the line before is not continued: it must not hold up the series.
    """
    key = keys.series(arg.series)
    pointer = await client.get(key)
    before = SeriesNote(name=arg.series, since=history.started_at)
    gone = etcd.Txn()
    if (last := _last_of(pointer)) is not None:
        before, gone = await _replaced(client, keys, last, before)
    rows = history.count("rows") or 0
    entry = SeriesEntry(
        operation=str(arg.id), started_at=history.started_at, finished_at=history.finished_at, rows=rows
    )
    note = msgspec.structs.replace(
        before, count=before.count + 1, rows=before.rows + rows, last=[*before.last, entry][-LAST:]
    )
    moved = etcd.Txn(
        (etcd.unchanged(pointer),), (etcd.Put(key, encode(SeriesRecord(operation=str(arg.id)))),)
    )
    return msgspec.structs.replace(history, series=note), moved + gone


def _last_of(pointer: etcd.KeyValue) -> OperationId | None:
    """The operation that a series names as its last one; ``None`` also if that cannot be read."""
    if not pointer.exists:
        return None
    try:
        return OperationId.parse(decode(pointer.value, SeriesRecord, pointer.key).operation)
    except (CorruptRecord, InvalidName):
        return None


async def _replaced(
    client: EtcdClient, keys: TableKeys, last: OperationId, anew: SeriesNote
) -> tuple[SeriesNote, etcd.Txn]:
    """The summary of the last line, and the removal of it and of earlier ones that had to wait.

    The line of an operation with quarantined rows stays, as if there were no series: it says where they are.
    Others stay while their operation has keys: the collector reads from them what to keep. An operation
    without keys never gets any again, so this needs no compare. Its request may be another operation's by
    now, once it was forgotten: that one stays.
    """
    line = keys.history(last)
    kv = await client.get(line)
    if (record := readable(kv.value, HistoryRecord)) is None:
        return anew, etcd.Txn()  # it was deleted, or the doctor reports it
    note = record.series or anew
    ended = [] if record.facts.get("quarantine") else [str(last)]
    lines = [OperationId.parse(line) for line in [*note.lines, *ended]]
    request = keys.request(record.run)
    wanted = [request, *(keys.operation(line).arg for line in lines)]
    read = await client.read_at_once([etcd.Get(key) for key in wanted])
    asked, *args = read.each(wanted)
    waiting = [str(line) for line, arg in zip(lines, args, strict=True) if arg.exists]
    gone = etcd.Txn(
        then=tuple(etcd.DeleteRange(keys.history(line)) for line in lines if str(line) not in waiting)
    )
    if record.run and asked.exists:
        with suppress(CorruptRecord):  # then it stays: when it is to be forgotten is not known
            known = decode(asked.value, RequestRecord, request)
            if known.operation == str(last):
                gone += etcd.Txn((etcd.unchanged(asked),), forgotten(keys, record.run, known))
    return msgspec.structs.replace(note, lines=waiting[-MAX_LINES:]), gone


async def forget_series(client: EtcdClient, keys: TableKeys, note: SeriesNote) -> None:
    """Delete a series whose last line is about to be deleted, unless it continues with another line."""
    pointer = await client.get(keys.series(note.name))
    if not pointer.exists:
        return
    # Its value cannot be compared: a newer version may have written fields that this one does not know.
    with suppress(CorruptRecord, OutcomeUnknown):
        if decode(pointer.value, SeriesRecord, pointer.key).operation == note.last[-1].operation:
            await client.txn(etcd.Txn((etcd.unchanged(pointer),), (etcd.DeleteRange(pointer.key),)))


async def entry_of(
    client: EtcdClient, keys: TableKeys, operation: OperationId
) -> tuple[SeriesEntry, int] | None:
    """An operation's data in the line of its series, if it has no line of its own any more, with its
    revision."""
    for pointer in (await client.scan(keys.series_prefix)).kvs:
        if (last := _last_of(pointer)) is None:
            continue
        kv = await client.get(keys.history(last))
        # What cannot be read is reported by the doctor; it must not hide other series.
        record = readable(kv.value, HistoryRecord)
        for entry in record.series.last if record is not None and record.series is not None else ():
            if entry.operation == str(operation):
                return entry, kv.mod_revision
    return None


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
    await forget_requests(client, keys, now)
    spared = {keys.history(operation) for operation, _ in etcd.named(active.kvs, keyspace.parse_active)}
    listing = await client.scan(keys.history_prefix)
    # What cannot be read is reported by the doctor; it must not keep all others.
    records = [
        (kv, record)
        for kv in listing.kvs
        if kv.key not in spared and (record := readable(kv.value, HistoryRecord)) is not None
    ]
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


def _removal(kvs: Sequence[etcd.KeyValue]) -> etcd.Txn:
    """IF the keys are as read THEN they are gone."""
    return etcd.Txn(tuple(map(etcd.unchanged, kvs)), tuple(etcd.DeleteRange(kv.key) for kv in kvs))


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

    async def change(now: OrderingRecord) -> tuple[OrderingRecord, etcd.Txn] | None:
        if now.remember != keep or not room:
            return None
        # Counted from before the listing: batches applied meanwhile may count twice, but are never missed.
        return msgspec.structs.replace(now, forget_at=ordering.applied + room), etcd.Txn()

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


async def _forget(client: EtcdClient, keys: TableKeys, first: etcd.KeyValue, last: etcd.KeyValue) -> None:
    name = last.key[len(keys.applied_prefix) :].decode()

    async def change(now: OrderingRecord) -> tuple[OrderingRecord, etcd.Txn] | None:
        # The table that is compared was read before: while this key stands, it is the one that was listed.
        if (await client.get(first.key)).mod_revision != first.mod_revision:
            return None
        forgotten = max(now.forgotten, name, key=str.encode)
        changed = msgspec.structs.replace(now, forgotten=forgotten)
        return changed, etcd.Txn(then=(etcd.DeleteRange(first.key, last.key + b"\0"),))

    await change_ordering(client, keys, change, request="")
