"""What the leaders of one coordinator cache of their tables, for callers of the same coordinator.

The leader of a table sees every write to it. So a start here need not read the keys that all starts read,
and a caller that waits for an operation here need not open a watch of its own, which would take as long as a
small operation itself. Nothing depends on these caches. They may be stale or empty: then etcd is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

from cachetools import FIFOCache

from distop.coordinator.state.tracker import Tracked
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Op, Put, TxnResult
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import JobRecord

log = logging.getLogger(__name__)


class TableCache:
    """The keys of one table that every start and finish of its operations reads.

    Nearly all changes of these keys are the leader's own, or arrive by its watch. The cache may be stale all
    the same: transactions compare what they take from it, and a refusal is decided only on what was read.
    Belongs to one event loop.
    """

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
            if isinstance(op, Put | DeleteRange) and op.key in self._cached:
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


JobEnd: TypeAlias = tuple[str, JobRecord]
"""A partition and the result of its job."""


class Listener(Protocol):
    """Receives the events of one operation."""

    def moved(self) -> None:
        """Its leader is here now, or no longer."""

    def key_written(self, key: bytes, ended: JobEnd | None) -> None:
        """One of its keys was written and the write has been applied: a finished job's, or its own."""


class LocalLeaders:
    """The operations that are led here, in their leader's state: nobody here need follow them a second time.

    Belongs to one event loop. Operations go by the roots of their keys.
    """

    def __init__(self) -> None:
        self._led: dict[bytes, Tracked] = {}
        self._listeners: dict[bytes, list[Listener]] = {}

    def get(self, root: bytes) -> Tracked | None:
        """The operation, if it is led here. It belongs to the leader: read only."""
        return self._led.get(root)

    def lead(self, tracked: Tracked) -> None:
        """All existing keys of the operation have been applied, and new writes will be."""
        self._led[tracked.keys.root] = tracked
        self._moved(tracked.keys.root)

    def leave(self, tracked: Tracked) -> None:
        """The operation is no longer followed by a leader here."""
        if self._led.pop(tracked.keys.root, None) is not None:
            self._moved(tracked.keys.root)

    def _moved(self, root: bytes) -> None:
        for listener in self._listeners.get(root, ()):
            with _leader_goes_on():
                listener.moved()

    def key_written(self, root: bytes, key: bytes, ended: JobEnd | None) -> None:
        """A key of an operation that is led here was written."""
        for listener in self._listeners.get(root, ()):
            with _leader_goes_on():
                listener.key_written(key, ended)

    def listen(self, root: bytes, listener: Listener) -> None:
        """From now on the listener gets events."""
        self._listeners.setdefault(root, []).append(listener)

    def forget(self, root: bytes, listener: Listener) -> None:
        """The listener gets no more events."""
        listeners = self._listeners[root]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[root]


@contextmanager
def _leader_goes_on() -> Iterator[None]:
    """Log what a listener raises: its defect must not end the leader."""
    try:
        yield
    except Exception:
        log.exception("listener_failed")


REMEMBERED = 1000
"""Results of operations that are kept for callers who come late."""


class RecentResults:
    """The history records of operations that have just ended under a leader here, for callers who wait.

    Belongs to one event loop. Operations go by the keys of their history.
    """

    def __init__(self) -> None:
        self._tables: dict[bytes, int] = {}
        self._led: dict[bytes, list[asyncio.Future[KeyValue | None]]] = {}
        self._records: FIFOCache[bytes, KeyValue] = FIFOCache(REMEMBERED)

    def follow_table(self, prefix: bytes, revision: int) -> None:
        """From this revision on a leader here sees all ends of a table; ``prefix`` is that of its history."""
        self._tables[prefix] = revision

    def lead(self, history: bytes) -> None:
        """Its leader is here, and will report its end."""
        self._led.setdefault(history, [])
        self._records.pop(history, None)

    def started(self, prefix: bytes, history: bytes, revision: int) -> None:
        """An operation was started here; its leader may not have seen it yet, or already its end."""
        if self._tables.get(prefix, revision) < revision and history not in self._records:
            self._led.setdefault(history, [])

    def ended(self, history: KeyValue) -> None:
        """An event shows the record of an end."""
        if history.key in self._led:
            self._records[history.key] = history
        self._settle(history.key, history)

    def leave(self, prefix: bytes) -> None:
        """The leader of these is no longer here, or has lost its watch."""
        self._tables.pop(prefix, None)
        for key in [key for key in self._led if key.startswith(prefix)]:
            self._settle(key, None)
        for key in [key for key in self._records if key.startswith(prefix)]:
            del self._records[key]

    def _settle(self, key: bytes, kv: KeyValue | None) -> None:
        for waiting in self._led.pop(key, ()):
            if not waiting.done():
                waiting.set_result(kv)

    async def within(self, history: bytes, seconds: float) -> KeyValue | None:
        """The record of an operation's end; ``None`` if it is not seen here in time, or never would be."""
        waiting = self._led.get(history)
        if waiting is None:
            return self._records.get(history)
        end: asyncio.Future[KeyValue | None] = asyncio.get_running_loop().create_future()
        waiting.append(end)
        try:
            async with asyncio.timeout(seconds):
                return await end
        except TimeoutError:
            return None
        finally:
            if not end.done():
                waiting.remove(end)


@dataclass(frozen=True)
class LeaderCaches:
    """All caches of one coordinator; belongs to one event loop."""

    results: RecentResults = field(default_factory=RecentResults)
    leaders: LocalLeaders = field(default_factory=LocalLeaders)
    _tables: WeakValueDictionary[str, TableCache] = field(default_factory=WeakValueDictionary)

    def table(self, keys: TableKeys) -> TableCache:
        """The cache of a table. Its leader here keeps it alive."""
        return self._tables.setdefault(keys.name, TableCache(keys))
