"""Series of operations: the batches of a stream, or those of an ordered backlog.

The history keeps one line for a series: that of its last successful operation, with the number of earlier
ones. The transaction that finishes the next one replaces it, so the line always matches what it counts.
Operations that fail or are cancelled have lines of their own.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from distop.errors import CorruptRecord, InvalidName, OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Put, Txn, unchanged
from distop.metastore.operations.requests import forgotten
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import (
    HistoryRecord,
    OperationArg,
    RequestRecord,
    SeriesEntry,
    SeriesNote,
    SeriesRecord,
)
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode, encode

LAST = 10
"""Operations of a series that its line names."""

MAX_LINES = 20
"""Earlier lines that wait until their operations are collected; more are left to pruning."""


async def continued(
    client: EtcdClient, keys: TableKeys, arg: OperationArg, history: HistoryRecord
) -> tuple[HistoryRecord, Txn]:
    """The line of a successful operation of a series, and the changes to the line before.

    The request of the operation before is deleted, too. A repetition of it is refused by another compare: the
    watermark of the stream, or the batch that is no longer in the backlog.

    What cannot be read of the line before is not continued: it must not hold up the series.
    """
    key = keys.series(arg.series)
    pointer = await client.get(key)
    before = SeriesNote(name=arg.series, since=history.started_at)
    gone = Txn()
    if (last := _last_of(pointer)) is not None:
        before, gone = await _replaced(client, keys, last, before)
    rows = history.count("rows") or 0
    entry = SeriesEntry(
        operation=str(arg.id), started_at=history.started_at, finished_at=history.finished_at, rows=rows
    )
    note = msgspec.structs.replace(
        before, count=before.count + 1, rows=before.rows + rows, last=[*before.last, entry][-LAST:]
    )
    moved = Txn((unchanged(pointer),), (Put(key, encode(SeriesRecord(operation=str(arg.id)))),))
    return msgspec.structs.replace(history, series=note), moved + gone


def _last_of(pointer: KeyValue) -> OperationId | None:
    """The operation that a series names as its last one; ``None`` also if that cannot be read."""
    if not pointer.exists:
        return None
    try:
        return OperationId.parse(decode(pointer.value, SeriesRecord, pointer.key).operation)
    except (CorruptRecord, InvalidName):
        return None


async def _replaced(
    client: EtcdClient, keys: TableKeys, last: OperationId, anew: SeriesNote
) -> tuple[SeriesNote, Txn]:
    """The summary of the last line, and the removal of it and of earlier ones that had to wait.

    The line of an operation with quarantined rows stays, as if there were no series: it says where they are.
    Others stay while their operation has keys: the collector reads from them what to keep. An operation
    without keys never gets any again, so this needs no compare. Its request may be another operation's by
    now, once it was forgotten: that one stays.
    """
    line = keys.history(last)
    kv = await client.get(line)
    if not kv.exists:
        return anew, Txn()  # it was deleted
    try:
        record = decode(kv.value, HistoryRecord, line)
    except CorruptRecord:
        return anew, Txn()  # the doctor reports it
    note = record.series or anew
    ended = [] if record.facts.get("quarantine") else [str(last)]
    lines = [OperationId.parse(one) for one in [*note.lines, *ended]]
    request = keys.request(record.request_id)
    wanted = [request, *(keys.operation(one).arg for one in lines)]
    read = await client.read_at_once([Get(key) for key in wanted])
    asked, *args = (read.one(index, key) for index, key in enumerate(wanted))
    waiting = [str(one) for one, arg in zip(lines, args, strict=True) if arg.exists]
    gone = Txn(then=tuple(Delete(keys.history(one)) for one in lines if str(one) not in waiting))
    if record.request_id and asked.exists:
        with suppress(CorruptRecord):  # then it stays: when it is to be forgotten is not known
            known = decode(asked.value, RequestRecord, request)
            if known.operation == str(last):
                gone += Txn((unchanged(asked),), forgotten(keys, record.request_id, known))
    return msgspec.structs.replace(note, lines=waiting[-MAX_LINES:]), gone


async def forget_series(client: EtcdClient, keys: TableKeys, note: SeriesNote) -> None:
    """Delete a series whose last line is about to be deleted, unless it continues with another line."""
    pointer = await client.get(keys.series(note.name))
    if not pointer.exists:
        return
    # Its value cannot be compared: a newer version may have written fields that this one does not know.
    with suppress(CorruptRecord, OutcomeUnknown):
        if decode(pointer.value, SeriesRecord, pointer.key).operation == note.last[-1].operation:
            await client.txn(Txn((unchanged(pointer),), (Delete(pointer.key),)))


async def entry_of(
    client: EtcdClient, keys: TableKeys, operation: OperationId
) -> tuple[SeriesEntry, int] | None:
    """An operation's data in the line of its series, if it has no line of its own any more, with its
    revision."""
    for pointer in (await client.scan(keys.series_prefix)).kvs:
        if (last := _last_of(pointer)) is None:
            continue
        kv = await client.get(keys.history(last))
        with suppress(CorruptRecord):  # the doctor reports it; it must not hide other series
            note = decode(kv.value, HistoryRecord, kv.key).series if kv.exists else None
            for entry in note.last if note is not None else ():
                if entry.operation == str(operation):
                    return entry, kv.mod_revision
    return None
