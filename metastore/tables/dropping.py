"""Dropping a table: gone for everybody in one transaction, its keys in bounded bites after that.

``_dropped.<table>`` is the tombstone: it says that the rest has not gone yet, and whether files are to go,
too. It is the last key to go, together with the claim to the folder: a repeat of the call, or the creation of
a table of that name, finishes what was begun, and until then no other table can have the folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from distop.errors import Exhausted, IncompatibleOperation, TableNotFound
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, Txn, TxnResult, absent, unchanged
from distop.metastore.etcd.update import settle, update
from distop.metastore.records.keyspace import OperationId, TableKeys, escape, prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, TableRecord, decode_run_ops
from distop.metastore.tables.locations import Claim

BITE = 2000
"""Keys removed by one transaction."""

LOOK_EVERY_S = 0.05

WAIT_S = 8.0
"""How long the last operations of the table may take to be tidied up, before the caller has to repeat."""

Leave = Callable[[DropRecord], Awaitable[None]]
"""Removes the files of a table if they are to go, and what says that its folder is its own. Safe to
repeat."""


async def drop_table(
    client: EtcdClient, keys: TableKeys, drop: Callable[[TableRecord], DropRecord], audit: Put, leave: Leave
) -> DropRecord:
    """Drop a table, or finish a drop that was begun; returns how it was asked for.

    Parameters
    ----------
    drop:
        Makes the tombstone of the table that is found.
    audit:
        Written with the tombstone, and so once.

    Raises
    ------
    TableNotFound
        There is neither the table nor anything left of it.
    IncompatibleOperation
        Operations run; the error names one.
    Exhausted
        Its last operations are still being tidied up. It is gone already: repeat the call.
    """
    tombstone = keys.keyspace.dropped(keys.name)
    wanted = (keys.table, keys.run_ops, tombstone)

    async def decide(read: TxnResult) -> tuple[Txn | None, DropRecord]:
        table, run_ops, standing = (read.one(index, key) for index, key in enumerate(wanted))
        if not table.exists and not standing.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        if not table.exists:
            return None, decode(standing.value, DropRecord, tombstone)
        _check_idle(keys, run_ops)
        record = drop(decode(table.value, TableRecord, table.key))
        own = (keys.table, keys.keyspace.paused_table(keys.name), keys.backlog_index)
        ops: tuple[Op, ...] = (Put(tombstone, encode(record)), *(Delete(key) for key in own), audit)
        reached("drop.before")
        return Txn((unchanged(table), unchanged(run_ops), absent(tombstone)), ops), record

    reads = [Get(key) for key in wanted]
    what, replied = f"table {keys.name!r}", lambda: reached("drop.after")
    record, _ = await update(client, reads, decide, what=what, replied=replied)
    await finish_drop(client, keys, record, leave)
    return record


async def finish_drop(client: EtcdClient, keys: TableKeys, record: DropRecord, leave: Leave) -> None:
    """Remove what a dropped table has left; may die anywhere and be called again by anybody."""
    await _until_tidy(client, keys)
    await leave(record)
    reached("drop.middle")
    after_leader = keys.coordinator + b"\0"  # a leader's key stays: it goes with its lease
    for start, end in ((keys.prefix, keys.coordinator), (after_leader, prefix_end(keys.prefix))):
        while page := (await client.get_range(start, end, keys_only=True, limit=BITE)).kvs:
            bite = Delete(page[0].key, page[-1].key + b"\0")
            if not (await settle(client, Txn((absent(keys.table),), (bite,)))).succeeded:
                return  # another call has finished it, and the table was made again
    await _finish(client, keys, Claim(keys.keyspace, record.location, record.name, record.uuid))


async def _finish(client: EtcdClient, keys: TableKeys, claim: Claim) -> None:
    """The tombstone goes, and the place is free for another table."""
    tombstone = keys.keyspace.dropped(keys.name)

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        dropped, standing = read.one(0, tombstone), read.one(1, claim.key)
        if not dropped.exists:
            return None, None
        return Txn((unchanged(dropped),), (Delete(tombstone),)) + claim.given_up(standing), None

    await update(client, (Get(tombstone), Get(claim.key)), decide, what=f"table {keys.name!r}")


async def _until_tidy(client: EtcdClient, keys: TableKeys) -> None:
    """Wait until the last operation is collected: that needs the history, to know which files to keep."""
    index = keys.keyspace.active + escape(keys.name).encode() + b"."
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while (await client.get_range(index, prefix_end(index), keys_only=True, limit=1)).kvs:
        if loop.time() > deadline:
            raise Exhausted(
                f"table {keys.name!r} is gone, but its last operation is still being tidied up",
                hint="drop it again in a moment; a coordinator must be running",
                details={"table": keys.name},
            )
        await asyncio.sleep(LOOK_EVERY_S)


def _check_idle(keys: TableKeys, run_ops: KeyValue) -> None:
    for kind, slots in decode_run_ops(run_ops.value).items():
        for slot in slots:
            running = OperationId.from_slot(keys.name, kind, slot)
            raise IncompatibleOperation(
                f"table {keys.name!r} cannot be dropped while {running} is running",
                details={"table": keys.name, "operation": str(running)},
            )
