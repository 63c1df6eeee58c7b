"""The growing audit trail: of one table, or of a whole installation, from any position."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from distop.errors import Compacted, InvalidArgument
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.etcd.watch import watch
from distop.metastore.records.components import prefix_end
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.tables.audit import Entry, entry_of
from distop.metastore.tables.listing import table_names

PAGE = 500
"""Entries in one read."""

_CURSOR = re.compile(r"(\d{1,18})(?:\.(\d{13}-[0-9a-f]{8}))?")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the trail: after all entries of a revision, or after one of them."""

    revision: int
    id: str = ""

    def __str__(self) -> str:
        return f"{self.revision}.{self.id}" if self.id else str(self.revision)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        if (match := _CURSOR.fullmatch(text)) is None:
            raise InvalidArgument(
                f"{text[:50]!r} is not a position in the audit trail",
                hint="give the cursor of an entry, or 0 for all entries",
                details={"field": "after"},
            )
        return cls(int(match[1]), match[2] or "")

    def rest(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those after it, in order."""
        behind = [one for one in entries if (one.revision, one.id) > (self.revision, self.id)]
        if not self.id:
            behind = [one for one in behind if one.revision > self.revision]
        return sorted(behind, key=lambda one: (one.revision, one.id))


async def follow_audit(
    client: EtcdClient, table: TableKeys | None, after: Cursor | None
) -> AsyncGenerator[tuple[list[Entry], Cursor], None]:
    """New entries as they are written, in batches with the position after each; without ``after``, from now
    on.

    What etcd has compacted is read from the trails, one after the other: entries are then in order within
    each trail. Nothing is repeated except copies made by a rename. Never ends normally.

    Raises :class:`~distop.errors.InvalidArgument` for a position in the future.
    """
    keyspace = client.keyspace
    await check_reached(client, after)
    prefix = table.audit_prefix if table is not None else keyspace.prefix
    at = after
    while True:
        # An entry may share its revision with others; ids then tell them apart.
        begin = 0 if at is None else max(1, at.revision + (not at.id))
        try:
            changes = watch(client, prefix, prefix_end(prefix), from_revision=begin, deletes=False)
            async with aclosing(changes):
                async for batch in changes:
                    found = entries_of(client, (event.kv for event in batch.events))
                    entries = at.rest(found) if at is not None else found
                    at = Cursor(batch.revision) if at is None else later(at, Cursor(batch.revision))
                    yield entries, at
        except Compacted:
            at = at or Cursor(0)
            revision = await client.revision()
            async with aclosing(_standing(client, table, revision)) as pages:
                async for page in pages:
                    if entries := at.rest(page):
                        yield entries, at
            at = Cursor(revision)
            yield [], at


async def check_reached(client: EtcdClient, place: Cursor | None) -> None:
    """Raises :class:`~distop.errors.InvalidArgument` for a position in the future."""
    if place is not None and place.revision > await client.revision():
        raise InvalidArgument(
            f"revision {place.revision} is in the future",
            hint="give the cursor of an entry of this installation",
            details={"field": "after"},
        )


def later(one: Cursor, other: Cursor) -> Cursor:
    """The later one of two positions."""
    return max(one, other, key=lambda cursor: (cursor.revision, not cursor.id, cursor.id))


async def _standing(
    client: EtcdClient, table: TableKeys | None, revision: int
) -> AsyncGenerator[list[Entry], None]:
    """The entries of one trail, or of all of them, page by page."""
    space = client.keyspace
    for first in (table.audit_prefix,) if table is not None else (space.audit_prefix, space.denials_prefix):
        async with aclosing(_trail(client, first, revision)) as pages:
            async for page in pages:
                yield page
    if table is None:
        async with aclosing(table_names(client, revision=revision)) as listed:
            async for names, _ in listed:
                for name in names:
                    one = space.table(name).audit_prefix
                    async with aclosing(_trail(client, one, revision)) as pages:
                        async for page in pages:
                            yield page


async def _trail(client: EtcdClient, prefix: bytes, revision: int) -> AsyncGenerator[list[Entry], None]:
    pages = client.pages(prefix, prefix_end(prefix), limit=PAGE, revision=revision)
    async with aclosing(pages):
        async for page in pages:
            yield entries_of(client, page.kvs)


def entries_of(client: EtcdClient, kvs: Iterable[KeyValue]) -> list[Entry]:
    """Those of the keys that are entries of a trail."""
    return [entry for kv in kvs if (entry := entry_of(client.keyspace, kv)) is not None]
