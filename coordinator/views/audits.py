"""The audit trail as a stream of messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from distop.coordinator.views.operations import timestamp
from distop.errors import Unavailable
from distop.metastore.tables.audit import Entry
from distop.metastore.tables.audit_feed import Cursor
from distop.proto import distop_pb2 as pb

HEARTBEAT_S = 5.0
"""Interval of heartbeats on the stream, with its position."""


async def audit_updates(
    changes: AsyncGenerator[tuple[list[Entry], Cursor], None], stopping: asyncio.Event
) -> AsyncGenerator[pb.AuditUpdate, None]:
    """New entries of the trail, without end.

    Raises :class:`~distop.errors.Unavailable` when this coordinator is about to end.
    """
    clock = asyncio.get_running_loop().time
    over = asyncio.create_task(stopping.wait())
    news: asyncio.Task[tuple[list[Entry], Cursor]] | None = None
    at: Cursor | None = None
    behind = False
    """Whether entries were sent that the position sent with them does not cover yet."""
    due = clock() + HEARTBEAT_S
    try:
        while True:
            news = news or asyncio.create_task(_next(changes))
            left_s = max(0.0, due - clock())
            await asyncio.wait({news, over}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                raise Unavailable("this coordinator is shutting down", hint="ask another one")
            entries: list[Entry] = []
            soon = at is None or behind
            if news.done():
                (entries, at), news = news.result(), None
                behind = any(entry.revision > at.revision for entry in entries)
            # Most events in an installation are not entries: they only move the position, which can wait.
            if entries or clock() >= due or (soon and at is not None):
                due = clock() + HEARTBEAT_S
                if at is not None:
                    yield pb.AuditUpdate(entries=_placed(entries, at), cursor=str(at))
    finally:
        over.cancel()
        if news is not None:
            news.cancel()
            await asyncio.gather(news, return_exceptions=True)
        await changes.aclose()


def _placed(entries: list[Entry], at: Cursor) -> Iterator[pb.AuditEntry]:
    """Entries, each with the position to resume from: entries that it does not cover yet are of one trail,
    and older ones of others are still to come."""
    for entry in entries:
        message = entry_message(entry)
        if entry.revision > at.revision:
            message.cursor = str(at)
        yield message


async def _next(
    changes: AsyncGenerator[tuple[list[Entry], Cursor], None],
) -> tuple[list[Entry], Cursor]:
    return await anext(changes)


def entry_message(entry: Entry) -> pb.AuditEntry:
    """An entry in the form of the API."""
    record = entry.record
    return pb.AuditEntry(
        id=entry.id,
        at=timestamp(record.at),
        action=record.action,
        target=record.target,
        by=record.by,
        reason=record.reason,
        request_id=record.request_id,
        argument_json=record.argument,
        claimed_by=record.claimed,
        address=record.address,
        outcome=record.outcome,
        rows=record.rows,
        bytes=record.bytes,
        error_code=record.error_code,
        table=entry.table,
        cursor=str(Cursor(entry.revision, entry.id)),
    )
