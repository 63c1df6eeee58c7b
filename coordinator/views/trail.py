"""The audit trail of a whole installation, watched once for all its followers here.

A follower that starts further back than the buffer, or reads too slowly, gets a watch of its own until it has
caught up.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from operator import attrgetter

from distop.errors import Compacted
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.watch import watch
from distop.metastore.records.components import prefix_end
from distop.metastore.tables.audit import Entry
from distop.metastore.tables.audit_feed import Cursor, check_reached, entries_of, follow_audit, later

REMEMBERED = 1000
"""Entries buffered for followers."""

TELL_EVERY_S = 1.0
"""How often followers are told the position of the trail when there are no new entries."""


class Trail:
    """The newest entries of all trails while there are followers; belongs to one event loop."""

    def __init__(self, client: EtcdClient, *, remembered: int = REMEMBERED) -> None:
        self._client, self._remembered = client, remembered
        self._followers = 0
        self._watching: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._entries: list[Entry] = []
        self._since: int | None = None
        """All entries of later revisions, up to ``_at``, are in ``_entries``; ``None``: no watch exists."""
        self._at = 0
        self._news = asyncio.Event()
        self._told_at = 0.0

    async def follow(self, after: Cursor | None) -> AsyncGenerator[tuple[list[Entry], Cursor], None]:
        """As :func:`~distop.metastore.tables.audit_feed.follow_audit` of all trails."""
        await check_reached(self._client, after)
        with self._followed():
            while self._since is None:
                await self._tidings()
            at = after or Cursor(await self._client.revision())
            yield [], at
            while True:
                if not self._covers(at):
                    async with aclosing(follow_audit(self._client, None, at)) as behind:
                        async for entries, at in behind:
                            yield entries, at
                            if self._covers(at):
                                break
                    continue
                first = bisect_left(self._entries, at.revision, key=attrgetter("revision"))
                entries, to = at.rest(self._entries[first:]), later(at, Cursor(self._at))
                if entries or to != at:
                    at = to
                    yield entries, at
                else:
                    await self._tidings()

    def _covers(self, at: Cursor) -> bool:
        """Whether everything after this position is buffered."""
        return self._since is not None and at.revision + (not at.id) > self._since

    @contextmanager
    def _followed(self) -> Generator[None, None, None]:
        self._followers += 1
        if self._watching is None or self._watching.done():
            self._since, self._error, self._entries = None, None, []
            self._watching = asyncio.create_task(self._watch(), name="audit-trail")
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers:
                self._watching.cancel()
                self._watching = None

    async def _tidings(self) -> None:
        """Wait for the next event of the watch; raises the error that has ended it."""
        news = self._news
        if self._error is None:
            await news.wait()
        if self._error is not None:
            raise self._error

    async def _watch(self) -> None:
        prefix, clock = self._client.keyspace.prefix, asyncio.get_running_loop().time
        try:
            while True:
                self._since, self._entries = None, []
                changes = watch(self._client, prefix, prefix_end(prefix), deletes=False)
                try:
                    async with aclosing(changes):
                        async for batch in changes:
                            is_open, self._at = self._since is not None, batch.revision
                            self._since = self._since if self._since is not None else batch.revision
                            new = entries_of(self._client, (event.kv for event in batch.events))
                            self._remember(new)
                            if new or not is_open or clock() - self._told_at >= TELL_EVERY_S:
                                self._tell()
                except Compacted:
                    continue  # followers catch up with watches of their own
        except Exception as error:
            self._error = error
            self._tell()

    def _remember(self, new: list[Entry]) -> None:
        self._entries += new
        if (over := len(self._entries) - self._remembered) > 0:
            self._since = self._entries[over - 1].revision
            del self._entries[:over]

    def _tell(self) -> None:
        self._told_at = asyncio.get_running_loop().time()
        news, self._news = self._news, asyncio.Event()
        news.set()
