"""Serialises finishes and starts of one table, and caches its leader's state.

All of them change ``runOps``. In turns, those of one leader do not make each other lose; and since nearly all
changes of it are the leader's own or arrive by its watch, it need not be read each time. The same applies to
what a start reads. The cache may be stale: the transactions compare it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.starting import TableState, slots_with, slots_without
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.operation_id import OperationId


class Turn:
    """The turn, and the cache."""

    def __init__(self, keys: TableKeys) -> None:
        self.lock = asyncio.Lock()
        self.sending = asyncio.Lock()
        """Held while a transaction that changes ``runOps`` is built from the cache, and sent."""
        self._keys = keys
        self._run_ops: KeyValue | None = None
        self._revision = 0
        self._state: TableState | None = None
        self._instances: dict[bytes, KeyValue] = {}
        """The next instance of each started type, by key."""

    @property
    def run_ops(self) -> KeyValue | None:
        """``None``: it has to be read."""
        return self._run_ops

    def seen(self, kv: KeyValue) -> None:
        """An event shows a write to a key of the table; a late event changes nothing."""
        if kv.key == self._keys.run_ops:
            if kv.mod_revision > self._revision:
                self._run_ops, self._revision = kv, kv.mod_revision
        elif (instance := self._instances.get(kv.key)) is not None:
            if kv.mod_revision > instance.mod_revision:
                self._instances[kv.key] = kv
        elif kv.key in (self._keys.table, self._keys.head, self._keys.watermarks, self._keys.pause):
            self._state = None

    def finished(self, before: KeyValue, operation: OperationId, revision: int) -> None:
        """An operation was removed from it."""
        if revision > self._revision:
            self._revision, self._run_ops = revision, KeyValue.missing(before.key)
            if (left := slots_without(before, operation)) is not None:
                self._run_ops = KeyValue(before.key, left, revision, before.create_revision)

    def forget(self) -> None:
        """``runOps`` did not have the cached value."""
        self._run_ops = None

    def started(self, state: TableState, arg: OperationArg, revision: int) -> None:
        """An operation was started on a table in this ``state``."""
        self._state = state
        if revision > self._revision:
            kv = state.run_ops_kv
            self._revision = revision
            self._run_ops = KeyValue(kv.key, slots_with(kv.value, arg.id), revision, kv.create_revision)
        key = self._keys.next_instance(arg.type)
        self._instances[key] = KeyValue(key, str(arg.instance + 1).encode(), revision, 0)

    def guess(self, type_name: str, request_id: str) -> TableState | None:
        """What the next start of a type would most likely read; ``None``: unknown."""
        instance = self._instances.get(self._keys.next_instance(type_name))
        if self._state is None or self._run_ops is None or instance is None:
            return None
        return replace(
            self._state,
            run_ops_kv=self._run_ops,
            next_instance_kv=instance,
            request=None,
            request_kv=KeyValue.missing(self._keys.request(request_id)),
            guessed=True,
        )

    def guessed_wrong(self) -> None:
        """A cached value was stale, or led to an error."""
        self._run_ops = self._state = None
