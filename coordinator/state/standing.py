"""The keys of one table that every start and end of its operations depends on, as their leader last saw them.

Nearly all changes of these are the leader's own, or arrive by its watch, so they need not be read each time.
A cache that may be stale: what is sent on it compares it, and a refusal is decided only on what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, TxnResult
from distop.metastore.records.keyspace import TableKeys


class Standing:
    """What stands under the keys of one table; belongs to one event loop."""

    def __init__(self, keys: TableKeys) -> None:
        self.turn = asyncio.Lock()
        """Held by a finish of an operation of the table, so that those of its leader do not make each other
        lose: all of them change ``runOps``."""
        self._watched = {keys.table, keys.run_ops, keys.pause, keys.head, keys.watermarks}
        self._known: dict[bytes, tuple[KeyValue, int]] = {}
        """Each key with a revision at which it stood so."""
        self._revision = 0
        """Up to where the leader's watch has come; 0: it is not here, and nothing is learned."""

    def follow(self, revision: int) -> None:
        """All puts up to a revision have been applied, and later ones will be."""
        self._revision = revision

    def leave(self) -> None:
        """The leader's watch has ended."""
        self._revision = 0
        self.forget()

    def forget(self) -> None:
        """Something has turned out to be stale."""
        self._known.clear()

    def learn(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Know the given keys, read at one revision, from here on. A table must have few of them."""
        for kv in kvs:
            self._set(kv, revision)

    def heard(self, kv: KeyValue) -> None:
        """An event shows a put. Late ones change nothing."""
        if kv.key in self._watched or kv.key in self._known:
            self._set(kv, kv.mod_revision)

    def wrote(self, ops: Sequence[Op], revision: int) -> None:
        """A transaction of this process did this. Deletions are not watched, and so known from here alone."""
        for op in ops:
            if isinstance(op, Put | Delete) and op.key in self._known:
                kv = KeyValue.missing(op.key)
                if isinstance(op, Put):
                    created = self._known[op.key][0].create_revision
                    kv = KeyValue(op.key, op.value, revision, created or revision)
                self._set(kv, revision)

    def _set(self, kv: KeyValue, revision: int) -> None:
        known = self._known.get(kv.key)
        if self._revision and (known is None or known[1] < revision):
            self._known[kv.key] = kv, revision

    def get(self, key: bytes) -> KeyValue | None:
        """As it stands; ``None``: it has to be read."""
        known = self._known.get(key)
        return None if known is None else known[0]

    def read(self, gets: Sequence[Get], *, new: bytes) -> TxnResult | None:
        """What reading these keys most likely gives, one of which is not there yet; ``None``: read them."""
        kvs = [KeyValue.missing(new) if get.key == new else self.get(get.key) for get in gets]
        found = tuple([kv] if kv.exists else [] for kv in kvs if kv is not None)
        return TxnResult(True, self._revision, found) if len(found) == len(kvs) else None
