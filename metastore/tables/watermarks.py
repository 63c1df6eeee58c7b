"""Putting watermarks where a person says that they belong, in one transaction (checklist C8, U2).

Operations move watermarks when they finish. An emergency may need it without one: after a rollback that has
kept them, or when a source has been renumbered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from distop.errors import IncompatibleOperation, TableNotFound
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.effects import Effect
from distop.metastore.records.keyspace import OperationId, TableKeys
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode, encode_plain
from distop.metastore.records.table import (
    Head,
    TableRecord,
    Watermarks,
    decode_run_ops,
    decode_watermarks,
)

Change = Callable[[Watermarks, TableRecord, Head | None], Awaitable[Watermarks]]
"""The new watermarks of a table. Called again when the table has changed meanwhile."""


async def change_watermarks(
    client: EtcdClient, keys: TableKeys, change: Change, audit: Put
) -> tuple[Watermarks, int]:
    """IF table, running operations, head and watermarks are as read THEN new watermarks and the audit entry.

    Where nothing is to change, nothing is written. Returns the watermarks that stand then, and the revision
    they were read or written at.

    Raises
    ------
    TableNotFound
        There is no such table.
    IncompatibleOperation
        An operation runs that moves watermarks, or may; the error names it.
    """
    wanted = (keys.table, keys.run_ops, keys.head, keys.watermarks)

    async def decide(read: TxnResult) -> tuple[Txn | None, Watermarks]:
        table, run_ops, head, standing = (read.one(index, key) for index, key in enumerate(wanted))
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        await _check_none_moves(client, keys, run_ops)
        before = decode_watermarks(standing.value)
        published = decode(head.value, Head, head.key) if head.exists else None
        after = await change(before, decode(table.value, TableRecord, table.key), published)
        if after == before:
            return None, after
        written: Op = Put(keys.watermarks, encode_plain(after)) if after else Delete(keys.watermarks)
        reached("watermarks.before")
        return Txn((*map(unchanged, (table, run_ops, head, standing)),), (written, audit)), after

    def is_ours(read: TxnResult) -> Watermarks | None:
        # The audit entry of an earlier copy; somebody else may have changed them since.
        return decode_watermarks(read.one(3, keys.watermarks).value) if read.got(4) else None

    reads = [*(Get(key) for key in wanted), Get(audit.key)]
    what, replied = f"table {keys.name!r}", lambda: reached("watermarks.after")
    return await update(client, reads, decide, is_ours, what=what, replied=replied)


async def _check_none_moves(client: EtcdClient, keys: TableKeys, run_ops: KeyValue) -> None:
    for kind, slots in decode_run_ops(run_ops.value).items():
        for slot in slots:
            running = OperationId.from_slot(keys.name, kind, slot)
            kv = await client.get(keys.operation(running).arg)
            if not kv.exists:  # it has ended since, and the transaction will say so
                continue
            arg = decode(kv.value, OperationArg, kv.key)
            if arg.watermarks or arg.effect is Effect.REPLACES:
                raise IncompatibleOperation(
                    f"the watermarks of {keys.name!r} cannot be changed while {running} is running",
                    hint="wait for it, or cancel it",
                    details={"table": keys.name, "operation": str(running)},
                )
