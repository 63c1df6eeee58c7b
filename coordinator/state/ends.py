"""Ends of operations that this coordinator leads, passed from memory to callers that wait here.

The leader of a table sees every write to it. A caller that waits for the end of a small operation at the same
coordinator need not open a watch, which would take as long as the operation itself. Nothing depends on it: a
caller without an answer here reads etcd.
"""

from __future__ import annotations

import asyncio

from distop.metastore.etcd.txn import KeyValue

REMEMBERED = 1000
"""Ends that are remembered for late callers."""


class Ends:
    """The ends that the leaders of one coordinator see; belongs to one event loop.

    Operations go by the keys of their history.
    """

    def __init__(self) -> None:
        self._tables: set[bytes] = set()
        self._led: dict[bytes, list[asyncio.Future[KeyValue | None]]] = {}
        self._records: dict[bytes, KeyValue] = {}

    def hear(self, prefix: bytes) -> None:
        """From now on a leader here sees all ends of a table; ``prefix`` is that of its history."""
        self._tables.add(prefix)

    def lead(self, history: bytes) -> None:
        """Its leader is here, and will report its end."""
        self._led.setdefault(history, [])
        self._records.pop(history, None)

    def started(self, prefix: bytes, history: bytes) -> None:
        """An operation was started here; its leader may not have seen it yet, or already its end."""
        if prefix in self._tables and history not in self._records:
            self._led.setdefault(history, [])

    def ended(self, history: KeyValue) -> None:
        """An event shows the record of an end."""
        if history.key in self._led:
            self._records[history.key] = history
            if len(self._records) > REMEMBERED:
                del self._records[next(iter(self._records))]
        self._settle(history.key, history)

    def leave(self, prefix: bytes) -> None:
        """The leader of these is no longer here, or has lost its watch."""
        self._tables.discard(prefix)
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
