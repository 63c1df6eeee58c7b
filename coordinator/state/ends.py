"""Ends of operations that this coordinator leads, told from memory to those who wait for them here.

The leader of a table hears of everything that is written to it. A caller that waits for the end of a small
operation at the same coordinator need not open a watch of his own, which would take as long as the operation
itself. Nothing depends on it: who hears nothing here looks into etcd.
"""

from __future__ import annotations

import asyncio

from distop.metastore.etcd.txn import KeyValue


class Ends:
    """What the leaders of one coordinator hear; belongs to one event loop.

    Operations go by the keys of their history.
    """

    def __init__(self) -> None:
        self._led: dict[bytes, list[asyncio.Future[KeyValue | None]]] = {}

    def lead(self, history: bytes) -> None:
        """Its leader is here, and will tell of its end."""
        self._led.setdefault(history, [])

    def told(self, history: KeyValue) -> None:
        """The record of an end was written, as an event says."""
        self._settle(history.key, history)

    def leave(self, prefix: bytes) -> None:
        """Who led these is not here any more, or has lost the thread."""
        for key in [key for key in self._led if key.startswith(prefix)]:
            self._settle(key, None)

    def _settle(self, key: bytes, kv: KeyValue | None) -> None:
        for waiting in self._led.pop(key, ()):
            if not waiting.done():
                waiting.set_result(kv)

    async def within(self, history: bytes, seconds: float) -> KeyValue | None:
        """The record of an operation's end; ``None`` if none is heard of in time, or would be here."""
        waiting = self._led.get(history)
        if waiting is None:
            return None
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
