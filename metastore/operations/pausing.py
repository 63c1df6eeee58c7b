"""Pausing and resuming operations and tables (checklist O21).

``<root>.pause`` and ``<table>.pause`` contain who, why and when, and transactions compare them: a paused
table starts nothing, a paused operation gets no runner and is not sealed for commit. The index ``_paused.``
names them all, so that coordinators and executors notice without reading each operation.

Both actions are idempotent: of two pauses the first one's reason stays. A pause happens once: a delayed copy
of it that arrives after a resume finds its own audit entry.
"""

from __future__ import annotations

from distop.errors import OperationNotFound, PreconditionFailed, TableNotFound
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.update import settle, update
from distop.metastore.etcd.watch import WatchBatch
from distop.metastore.records.keyspace import Keyspace, OperationKeys, TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING, PauseRecord
from distop.metastore.records.record import encode


async def pause_operation(
    client: EtcdClient, keys: OperationKeys, record: PauseRecord, audit: etcd.Put
) -> bool:
    """IF it is running AND not paused AND this was not done before THEN ``.pause``, the index and the audit
    entry.

    Returns whether this call paused it.

    Raises
    ------
    OperationNotFound
        It has no state (any more).
    PreconditionFailed
        It is already being completed: only a running operation can be paused.
    """
    index = client.keyspace.paused_operation(keys.operation)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bool]:
        state, existing, done = read.each((keys.state, keys.pause, audit.key))
        if done.exists:
            return None, True  # a reply was lost
        if not state.exists:
            raise OperationNotFound(f"operation {keys.operation} is not running")
        if existing.exists:
            return None, False
        if state.value != RUNNING:
            raise PreconditionFailed(
                f"operation {keys.operation} is {state.value.decode(errors='replace')}: too late to pause it",
                hint="a running operation can be paused",
                details={"operation": str(keys.operation)},
            )
        reached("pause.before")
        puts = (etcd.Put(keys.pause, encode(record)), etcd.Put(index, b"{}"), audit)
        # Not by its value: one with this number may run on the next table of this name.
        return etcd.Txn((etcd.unchanged(state), etcd.absent(keys.pause), etcd.absent(audit.key)), puts), True

    subject, replied = f"operation {keys.operation}", lambda: reached("pause.after")
    reads = (etcd.Get(keys.state), etcd.Get(keys.pause), etcd.Get(audit.key))
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


async def resume_operation(client: EtcdClient, keys: OperationKeys, audit: etcd.Put) -> bool:
    """Remove ``.pause``; return whether it existed.

    Raises :class:`~distop.errors.OperationNotFound` when the operation has no state any more.
    """
    state = await client.get(keys.state)
    if not state.exists:
        raise OperationNotFound(f"operation {keys.operation} is not running")
    return await _resume(client, keys.pause, client.keyspace.paused_operation(keys.operation), audit)


async def pause_table(client: EtcdClient, keys: TableKeys, record: PauseRecord, audit: etcd.Put) -> bool:
    """IF the table exists AND is not paused AND this was not done before THEN ``<table>.pause``, the index
    and the audit entry; and the table's record anew, as it is.

    Returns whether this call paused it. Raises :class:`~distop.errors.TableNotFound`.
    """
    index = keys.keyspace.paused_table(keys.name)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bool]:
        table = _existing(keys, read.single(0, keys.table))
        done = read.single(2, audit.key).exists  # by this call: a reply was lost
        if done or read.single(1, keys.pause).exists:
            return None, done
        reached("pause.before")
        # A start compares the record: one that this pause refuses, and whose first copy is still on its way,
        # must not happen once the table is resumed.
        refused = etcd.Put(keys.table, table.value)
        puts = (etcd.Put(keys.pause, encode(record)), etcd.Put(index, b"{}"), refused, audit)
        return etcd.Txn((etcd.unchanged(table), etcd.absent(keys.pause), etcd.absent(audit.key)), puts), True

    subject, replied = f"table {keys.name!r}", lambda: reached("pause.after")
    reads = (etcd.Get(keys.table), etcd.Get(keys.pause), etcd.Get(audit.key))
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


async def resume_table(client: EtcdClient, keys: TableKeys, audit: etcd.Put) -> bool:
    """Remove ``<table>.pause``; return whether it existed.

    Raises :class:`~distop.errors.TableNotFound`.
    """
    table = _existing(keys, await client.get(keys.table))
    # Its backlog may have been waiting: a leader must look. Not once it is dropped: nobody would remove this.
    looked_at, exists = etcd.Put(keys.backlog_index, b"{}"), etcd.created_at(table.key, table.create_revision)
    index = keys.keyspace.paused_table(keys.name)
    return await _resume(client, keys.pause, index, audit, looked_at, compares=(exists,))


def _existing(keys: TableKeys, table: etcd.KeyValue) -> etcd.KeyValue:
    if not table.exists:
        raise TableNotFound.named(keys.name)
    return table


async def _resume(
    client: EtcdClient, pause: bytes, index: bytes, *also: etcd.Op, compares: tuple[etcd.Compare, ...] = ()
) -> bool:
    existing = await client.get(pause)
    if not existing.exists:
        # An index entry without its pause (removed by hand) would block something that is not paused.
        await settle(client, etcd.Txn((etcd.absent(pause),), (etcd.DeleteRange(index),)))
        return False
    gone: tuple[etcd.Op, ...] = (etcd.DeleteRange(pause), etcd.DeleteRange(index), *also)
    # If it has changed since, it was resumed: by this very call, when its reply was lost, or another one.
    # A later pause must not be removed by this call.
    reached("resume.before")
    txn = etcd.Txn((etcd.unchanged(existing), *compares), gone)
    await settle(client, txn, replied=lambda: reached("resume.after"))
    return True


class PauseIndex:
    """What is paused at present, kept up to date from ``follow(keyspace.paused)``."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._since: dict[bytes, int] = {}

    def apply(self, change: Listing | WatchBatch) -> set[str] | None:
        """Apply a listing or changes of the index; returns the affected tables, ``None``: all. A key that
        names nothing pauses nothing."""
        if isinstance(change, Listing):
            self._since = {kv.key: kv.mod_revision for kv in change.kvs}
            return None
        for event in change.events:
            if event.kind == "put":
                self._since[event.kv.key] = event.kv.mod_revision
            else:
                self._since.pop(event.kv.key, None)
        changed = etcd.named((event.kv for event in change.events), self._keyspace.paused_by)
        return {table for (table, _), _ in changed}

    def since(self, operation: OperationId) -> int:
        """The revision of the last pause of the operation or its table; 0: neither is paused."""
        if not self._since:
            return 0
        keyspace = self._keyspace
        table = keyspace.paused_table(operation.table)
        return max(self._since.get(table, 0), self._since.get(keyspace.paused_operation(operation), 0))

    def holds(self, operation: OperationId) -> bool:
        """Whether the operation must not go on."""
        return self.since(operation) > 0
