"""Which tables there are: their index, their published indexes, and how one is dropped or renamed.

There is one key per table below ``_tables.``, written and removed with the table's record. Listings read it
instead of the tables, which may have many keys. A published index is one key of its table, which names the
current manifest.

One transaction makes a dropped table invisible, then its keys are removed in bounded steps.

``_dropped.<table>`` is the tombstone: it says that keys remain, and whether files are to be removed, too. It
is the last key to be removed, together with the claim to the folder: a repeated call, the creation of a table
of that name, or later a coordinator finishes the drop, and until then no other table can have the folder. A
rename leaves a tombstone under the old name, until history and audit trail have been moved to the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from distop.errors import CorruptRecord, Exhausted, IncompatibleOperation, TableNotFound
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle, update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import escape, prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, IndexRecord, TableRecord, running_operations
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.watermarks import watermark_chunks

log = logging.getLogger(__name__)

PAGE = 1000
"""Most names in one read."""

BITE = 2000
"""Keys removed by one transaction."""

MOVE_BITE = 50
"""Keys moved by one transaction: each takes a put and a delete, and etcd allows 128 operations."""

LOOK_EVERY_S = 0.05

WAIT_S = 8.0
"""How long the cleanup of the table's last operations may take before the caller has to repeat."""

Leave = Callable[[DropRecord], Awaitable[None]]
"""Removes the files of a table if requested, and the proof that its folder is its own.
Idempotent."""


def table_puts(keys: TableKeys, record: TableRecord) -> tuple[etcd.Put, etcd.Put]:
    """The writes that create a table: its record, and its entry in the index."""
    return etcd.Put(keys.table, encode(record)), etcd.Put(keys.entry, b"{}")


def table_deletes(keys: TableKeys) -> tuple[etcd.DeleteRange, etcd.DeleteRange]:
    """The writes that remove a table."""
    return etcd.DeleteRange(keys.table), etcd.DeleteRange(keys.entry)


async def table_names(
    client: EtcdClient, *, after: str = "", revision: int = 0, limit: int = PAGE
) -> AsyncGenerator[tuple[list[str], int], None]:
    """Names of all tables in key order, after ``after``, and the revision (0: the present one), in lists of
    up to ``limit``. Lists may be empty."""
    keyspace = client.keyspace
    table_of = partial(keyspace.name_in, keyspace.tables)
    start = keyspace.table(after).entry + b"\0" if after else keyspace.tables
    pages = client.pages(start, prefix_end(keyspace.tables), revision=revision, keys_only=True, limit=limit)
    async with aclosing(pages):
        async for page in pages:
            yield [name for name, _ in etcd.named(page.kvs, table_of)], page.revision


async def read_indexes(client: EtcdClient, keys: TableKeys) -> list[IndexRecord]:
    """All indexes of a table that this version understands, by column."""
    indexes = []
    for kv in (await client.scan(keys.index_prefix)).kvs:
        try:
            indexes.append(decode(kv.value, IndexRecord, kv.key))
        except CorruptRecord as error:  # readers do without it
            log.warning("index_unreadable", extra={"table": keys.name, "error": str(error)})
    return indexes


async def drop_table(
    client: EtcdClient,
    keys: TableKeys,
    drop: Callable[[TableRecord], DropRecord],
    audit: etcd.Put,
    leave: Leave,
) -> DropRecord:
    """Drop a table, or finish an earlier drop; return how it was requested.

    Parameters
    ----------
    drop:
        Makes the tombstone of the existing table, or raises TableNotFound if another one is meant.
    audit:
        Written with the tombstone, and so once.

    Raises
    ------
    TableNotFound
        The table does not exist, and nothing is left of it; or ``drop`` says so.
    IncompatibleOperation
        Operations run; the error names one.
    Exhausted
        Its last operations are still being cleaned up. It is already gone: repeat the call.
    """
    tombstone = keys.keyspace.dropped(keys.name)
    wanted = (keys.table, keys.run_ops, tombstone)
    sent: DropRecord | None = None
    finished = False

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, DropRecord]:
        nonlocal sent
        table, run_ops, existing = read.each(wanted)
        if not table.exists and not existing.exists:
            raise TableNotFound.named(keys.name)
        if not table.exists:
            return None, decode(existing.value, DropRecord, tombstone)
        known = decode(table.value, TableRecord, table.key)
        record = drop(known)
        _check_idle(keys, run_ops)
        sent = record
        chunks = watermark_chunks(keys.keyspace, known)
        gone = (
            *table_deletes(keys),
            etcd.DeleteRange(keys.keyspace.paused_table(keys.name)),
            etcd.DeleteRange(keys.backlog_index),
            etcd.DeleteRange(keys.agenda),
            etcd.DeleteRange(chunks, prefix_end(chunks)),
        )
        ops: tuple[etcd.Op, ...] = (etcd.Put(tombstone, encode(record)), *gone, audit)
        reached("drop.before")
        return etcd.Txn((etcd.unchanged(table), etcd.unchanged(run_ops), etcd.absent(tombstone)), ops), record

    def is_own_write(read: etcd.TxnResult) -> DropRecord | None:
        nonlocal finished
        # Our entry without our tombstone: somebody else has finished this drop. The table may exist again.
        finished = bool(read.got(3)) and not read.got(2)
        return sent if finished else None

    reads = [*(etcd.Get(key) for key in wanted), etcd.Get(audit.key)]
    subject, replied = f"table {keys.name!r}", lambda: reached("drop.after")
    record, _ = await update(client, reads, decide, is_own_write, subject=subject, replied=replied)
    if finished:
        return record
    await finish_drop(client, keys, record, leave)
    if record.renamed_to:
        raise TableNotFound.named(keys.name)
    return record


async def finish_drop(client: EtcdClient, keys: TableKeys, record: DropRecord, leave: Leave) -> None:
    """Remove the remaining keys of a dropped table, or of a renamed one under its old name. Can be
    interrupted, and repeated by any process."""
    tombstone = await client.get(keys.keyspace.dropped(keys.name))
    if not _is_of(tombstone, record):
        return  # another call has finished it
    await _until_tidy(client, keys)
    if record.renamed_to:
        await _move_past(client, keys, record, tombstone)
    else:
        await leave(record)
    reached("drop.middle")
    # The leader's key, too, which ends its epoch. Instance numbers begin anew: what it has sent for an
    # operation could otherwise come late, and change one of the next table of this name.
    end = prefix_end(keys.prefix)
    while page := (await client.get_range(keys.prefix, end, keys_only=True, limit=BITE)).kvs:
        bite = etcd.DeleteRange(page[0].key, page[-1].key + b"\0")
        if not (await settle(client, etcd.Txn((etcd.unchanged(tombstone),), (bite,)))).succeeded:
            return  # the same, meanwhile: these may be keys of another table of this name
    await _finish(
        client, tombstone, keys, LocationClaim(keys.keyspace, record.location, record.name, record.uuid)
    )


def _is_of(tombstone: etcd.KeyValue, record: DropRecord) -> bool:
    return tombstone.exists and decode(tombstone.value, DropRecord, tombstone.key).uuid == record.uuid


def _uuid(table: etcd.KeyValue) -> str:
    return decode(table.value, TableRecord, table.key).uuid


async def _move_past(
    client: EtcdClient, old: TableKeys, record: DropRecord, tombstone: etcd.KeyValue
) -> None:
    """Move history and audit trail of a renamed table, unless that is gone, too. Once its tombstone is gone,
    what is under the old name belongs to another table."""
    new = old.keyspace.table(record.renamed_to)
    for prefix in (old.audit_prefix, old.history_prefix):
        while page := _bite((await client.get_range(prefix, prefix_end(prefix), limit=MOVE_BITE)).kvs):
            read = await client.read_at_once([etcd.Get(new.table), etcd.Get(tombstone.key)])
            table, existing = read.single(0, new.table), read.single(1, tombstone.key)
            if existing.mod_revision != tombstone.mod_revision:
                return
            if not table.exists or _uuid(table) != record.uuid:
                return
            puts = (etcd.Put(new.prefix + kv.key[len(old.prefix) :], kv.value) for kv in page)
            # The first copy of a key stays: no other process has moved it.
            ops: tuple[etcd.Op, ...] = (*puts, etcd.DeleteRange(page[0].key, page[-1].key + b"\0"))
            await settle(
                client,
                etcd.Txn((etcd.unchanged(tombstone), etcd.unchanged(page[0]), etcd.unchanged(table)), ops),
            )


def _bite(kvs: Sequence[etcd.KeyValue]) -> list[etcd.KeyValue]:
    """The first keys, as many as one request can write."""
    bite, room = list(kvs[:1]), etcd.MAX_REQUEST_BYTES // 2
    for kv in kvs[1:]:
        if (room := room - len(kv.value)) < 0:
            break
        bite.append(kv)
    return bite


async def _finish(
    client: EtcdClient, tombstone: etcd.KeyValue, keys: TableKeys, claim: LocationClaim
) -> None:
    """Remove the tombstone, so that another table can have the location."""

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        dropped, existing = read.single(0, tombstone.key), read.single(1, claim.key)
        if dropped.mod_revision != tombstone.mod_revision:
            return None, None
        reached("drop.finish.before")
        return etcd.Txn((etcd.unchanged(dropped),), (etcd.DeleteRange(dropped.key),)) + claim.given_up(
            existing
        ), None

    reads = (etcd.Get(tombstone.key), etcd.Get(claim.key))
    subject, replied = f"table {keys.name!r}", lambda: reached("drop.finish.after")
    await update(client, reads, decide, subject=subject, replied=replied)


async def _until_tidy(client: EtcdClient, keys: TableKeys) -> None:
    """Wait until the last operation is collected: that needs the history, to know which files to keep."""
    index = keys.keyspace.active + escape(keys.name).encode() + b"."
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    # What names no operation is collected by nobody, and keeps nothing.
    while list(etcd.named((await client.scan(index, keys_only=True)).kvs, keys.keyspace.parse_active)):
        if loop.time() > deadline:
            raise Exhausted(
                f"table {keys.name!r} is gone, but its last operation is still being cleaned up",
                hint="drop it again in a moment; a coordinator must be running",
                details={"table": keys.name},
            )
        await asyncio.sleep(LOOK_EVERY_S)


def _check_idle(keys: TableKeys, run_ops: etcd.KeyValue) -> None:
    for running in running_operations(keys.name, run_ops.value):
        raise IncompatibleOperation(
            f"table {keys.name!r} cannot be dropped while {running} is running",
            details={"table": keys.name, "operation": str(running)},
        )
