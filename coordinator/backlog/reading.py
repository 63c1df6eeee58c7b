"""Reads the backlog of a table as it grows: only the batches that are applied next, never all of them.

etcd counts every key of a range, whatever the limit, and deleted ones for as long as it keeps their history.
So a look begins after the finished batches and ends at a window. Keys before the first one, those of late
batches, are read when the watch shows one. Unordered batches take turns: what is in the way of the first ones
need not be in the way of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

from distop.coordinator.backlog.policy import Backlog, Waiting
from distop.errors import CorruptRecord
from distop.metastore.backlog.batches import MAX_TOGETHER, WAITING, BatchRecord, ordering_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode

log = logging.getLogger(__name__)

WINDOW = 500
"""Batches after which a window ends. A look covers half of it on average; to find the next one etcd counts
all that wait."""

EVENT_S = 0.5
"""How long the watch event of a new batch may take before everything is read instead."""


class Reader:
    """Reads the backlog for one epoch. Its owner passes on the events of the table's watch."""

    def __init__(self, client: EtcdClient, keys: TableKeys) -> None:
        self._client, self._keys = client, keys
        self._ordered = _Reach(client, keys.backlog_prefix)
        self._unordered = _Reach(client, keys.unordered(WAITING))
        self._cursor = keys.backlog_prefix
        """No batch exists up to here, unless ``_late``."""
        self._late = True
        self._lowest: bytes | None = None
        """New batches since the last read was sent."""
        self._unordered_after = self._last_unordered = b""
        """Keys after which the unordered batches of this read begin, and of the next; empty: the first."""
        self._logged: set[int] = set()
        """Revisions of the batches that were logged as unreadable."""
        self._observed_revision = 0
        self._observed = asyncio.Event()

    def begin(self, revision: int) -> None:
        """A watch shows what comes after this revision, and nothing before it."""
        self._late = True
        self.observe(revision)

    def came(self, key: bytes) -> None:
        """A batch was written at this key."""
        self._late = self._late or key <= self._cursor
        self._lowest = key if self._lowest is None else min(key, self._lowest)

    def observe(self, revision: int) -> None:
        """The watch has shown everything up to this revision."""
        self._observed_revision = max(revision, self._observed_revision)
        self._observed.set()

    async def read(self) -> Backlog:
        """The backlog at one revision: the first ordered batches, and the next unordered ones."""
        whole, self._unordered_after = self._late, self._last_unordered
        backlog = await self._read()
        if not whole and not await self._has_observed(backlog.index_kv.mod_revision):
            self._late = True
        return backlog if whole or not self._late else await self._read()

    @property
    def more(self) -> bool:
        """Whether there are unordered batches that the last read has left out."""
        return bool(self._unordered_after or self._last_unordered)

    async def _has_observed(self, revision: int) -> bool:
        """Whether every batch of that read is known: each is written together with the index."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EVENT_S):
                while self._observed_revision < revision:
                    self._observed.clear()
                    await self._observed.wait()
        return self._observed_revision >= revision

    async def _read(self) -> Backlog:
        keys, whole = self._keys, self._late
        self._late, self._lowest = False, None
        try:
            while True:
                start = keys.backlog_prefix if whole else self._cursor + b"\0"
                next_unordered = max(keys.unordered(WAITING), self._unordered_after + b"\0")
                wanted = [
                    Get(keys.ordering),
                    Get(keys.backlog_index),
                    Get(keys.pause),
                    Get(start, self._ordered.end, limit=MAX_TOGETHER),
                    Get(next_unordered, self._unordered.end, limit=MAX_TOGETHER),
                ]
                read = await self._client.read_at_once(wanted)
                heads, unordered = read.got(3), read.got(4)
                if await self._ordered.misses(heads) or await self._unordered.misses(unordered):
                    continue
                if unordered or not self._unordered_after:
                    break
                self._unordered_after = b""
        except BaseException:
            self._late = True
            raise
        self._last_unordered = unordered[-1].key if len(unordered) == MAX_TOGETHER else b""
        ordering_kv = read.single(0, keys.ordering)
        ordering = ordering_of(ordering_kv)
        self._cursor = keys.backlog(ordering.last)
        lowest = [key for key in (self._lowest, *(kv.key for kv in heads[:1])) if key is not None]
        self._late = self._late or any(key <= self._cursor for key in lowest)
        ordered = [self._waiting(keys.backlog_prefix, kv) for kv in heads]
        others = [self._waiting(keys.unordered(WAITING), kv) for kv in unordered]
        return Backlog(
            ordering=ordering,
            ordering_kv=ordering_kv,
            index_kv=read.single(1, keys.backlog_index),
            heads=[waiting for waiting in takewhile(bool, ordered) if waiting],
            unordered=[waiting for waiting in others if waiting],
            more=bool(self._last_unordered),
            unreadable=None in ordered or None in others,
            paused=bool(read.got(2)),
        )

    def _waiting(self, prefix: bytes, kv: KeyValue) -> Waiting | None:
        """The batch at this key; ``None`` if it cannot be read, such as that of a newer version."""
        try:
            record = decode(kv.value, BatchRecord, kv.key)
            name = kv.key[len(prefix) :].decode()
        except (CorruptRecord, UnicodeDecodeError) as error:
            if kv.mod_revision not in self._logged:
                log.error("batch_unreadable", extra={"table": self._keys.name, "error": str(error)})
            self._logged.add(kv.mod_revision)
            return None
        return Waiting(name=name, record=record, kv=kv)


class _Reach:
    """The end of the range of keys with a prefix that is read."""

    def __init__(self, client: EtcdClient, prefix: bytes) -> None:
        self._client, self._last = client, prefix_end(prefix)
        self.end = self._last

    async def misses(self, window: Sequence[KeyValue]) -> bool:
        """Whether more may exist after the window than was found in it: then it is read again, up to the end.
        With many keys up to the end, the next time uses a window."""
        if len(window) < MAX_TOGETHER:
            narrow, self.end = self.end != self._last, self._last
            return narrow
        if self.end == self._last:
            page = await self._client.get_range(window[0].key, self._last, keys_only=True, limit=WINDOW)
            if page.more:
                self.end = page.kvs[-1].key + b"\0"
        return False
