"""Caches the keys of one table that every start and finish of its operations reads, at the table's leader.

Nearly all changes of these keys are the leader's own, or arrive by its watch, so they need not be read each
time. The cache may be stale: transactions compare what they take from it, and a refusal is decided only on
what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, TxnResult
from distop.metastore.records.keyspace import TableKeys


class TableCache:
    """Key-values of one table; belongs to one event loop."""

    def __init__(self, keys: TableKeys) -> None:
        self.finish_lock = asyncio.Lock()
        """Held by a finish of an operation of the table, so that those of its leader do not make each other
        lose: all of them change ``runOps``."""
        self._watched = {keys.table, keys.run_ops, keys.pause, keys.head, keys.watermarks}
        self._cached: dict[bytes, tuple[KeyValue, int]] = {}
        """By key: its value, and a revision at which it had this value."""
        self._revision = 0
        """The revision that the leader's watch has reached; 0: there is no watch, and nothing is cached."""

    def follow(self, revision: int) -> None:
        """All puts up to a revision have been applied, and later ones will be."""
        self._revision = revision

    def leave(self) -> None:
        """The leader's watch has ended."""
        self._revision = 0
        self.clear()

    def clear(self) -> None:
        """A transaction has shown that some value is stale."""
        self._cached.clear()

    def add(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Cache keys that were read at one revision. A table must have few of them."""
        for kv in kvs:
            self._set(kv, revision)

    def apply_put(self, kv: KeyValue) -> None:
        """Apply a put that the watch shows. Events older than the cached value change nothing."""
        if kv.key in self._watched or kv.key in self._cached:
            self._set(kv, kv.mod_revision)

    def apply_ops(self, ops: Sequence[Op], revision: int) -> None:
        """Apply a transaction of this process. Deletions are not watched: only this shows them."""
        for op in ops:
            if isinstance(op, Put | Delete) and op.key in self._cached:
                kv = KeyValue.missing(op.key)
                if isinstance(op, Put):
                    created = self._cached[op.key][0].create_revision
                    kv = KeyValue(op.key, op.value, revision, created or revision)
                self._set(kv, revision)

    def _set(self, kv: KeyValue, revision: int) -> None:
        cached = self._cached.get(kv.key)
        if self._revision and (cached is None or cached[1] < revision):
            self._cached[kv.key] = kv, revision

    def get(self, key: bytes) -> KeyValue | None:
        """The cached value, also of a key that is absent; ``None``: not cached."""
        cached = self._cached.get(key)
        return None if cached is None else cached[0]

    def read(self, gets: Sequence[Get], *, new: bytes) -> TxnResult | None:
        """The likely result of reading these keys, if ``new`` is absent; ``None``: not all are cached."""
        kvs = [KeyValue.missing(new) if get.key == new else self.get(get.key) for get in gets]
        results = tuple([kv] if kv.exists else [] for kv in kvs if kv is not None)
        return TxnResult(True, self._revision, results) if len(results) == len(kvs) else None
