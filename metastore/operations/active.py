"""The indexes of operations: those that still have keys, running, or ended and not collected yet; and those
of them that run and that no executor has.

The entry of one that waits goes with the transaction that takes it, or seals it. It comes back when its
executor lets go of it. An executor that dies leaves no entry behind: others make it, see :func:`wait_again`.
So every running operation has a runner, has an entry, or is given one by the next look of an executor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Put, Txn, absent, equals
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.records.components import escape
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.operation import RUNNING, ActiveRecord, OperationArg, QueuedRecord
from distop.metastore.records.record import decode, encode

if TYPE_CHECKING:
    # Workers that only send marks through a sidecar import this module, and must not pay for gRPC.
    from distop.metastore.etcd.client import EtcdClient

_AT_ONCE = 60


def index_puts(keys: OperationKeys, *, waits: bool = True) -> tuple[Put, ...]:
    """The entries of a new operation; ``waits``: for an executor."""
    entry = encode(ActiveRecord(type=keys.operation.type))
    active = Put(keys.keyspace.active_operation(keys.operation), entry)
    return (active, Put(keys.waiting, entry)) if waits else (active,)


def waiting_puts(keys: OperationKeys, why: str) -> tuple[Put, Put]:
    """It waits for an executor again; ``why``: of :class:`QueuedRecord`."""
    return index_puts(keys)[1], Put(keys.queued, encode(QueuedRecord(why=why, at=time.time())))


async def active_operations(client: EtcdClient, keys: TableKeys) -> list[OperationArg]:
    """Their arguments.

    Raises :class:`~distop.errors.CorruptRecord` if one was started by a version that this one does not
    understand: the caller would take its files for nobody's.
    """
    prefix = keys.keyspace.active + escape(keys.name).encode() + b"."
    found = []
    for kv in (await client.scan(prefix, keys_only=True)).kvs:
        operation = keys.operation(keys.keyspace.parse_active(kv.key))
        arg = await client.get(operation.arg)
        if arg.exists:  # collected meanwhile, otherwise
            found.append(decode(arg.value, OperationArg, arg.key))
    return found


def _wait_txn(keys: OperationKeys) -> Txn:
    """IF ``.state = running`` AND nobody runs it AND it has no entry THEN an entry."""
    compares = equals(keys.state, RUNNING), absent(keys.runner), absent(keys.waiting)
    return Txn(compares, waiting_puts(keys, "lost"))


async def wait_again(client: EtcdClient, operations: Sequence[OperationKeys]) -> None:
    """Let those wait that run and that nobody has, such as the ones of an executor that died.

    May be called at any time and sent twice: one that is taken, sealed or over meanwhile gets no entry.
    """
    for start in range(0, len(operations), _AT_ONCE):
        reached("wait.before")
        txn = Txn(then=tuple(_wait_txn(keys) for keys in operations[start : start + _AT_ONCE]))
        await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("wait.after"))
