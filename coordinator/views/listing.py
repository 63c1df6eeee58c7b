"""Listing tables and operations page by page, all pages of one listing at one revision.

Tables are found by skipping: read the first key, jump behind its table, read the next. It costs two reads a
table and needs no index that could disagree with the tables.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from distop.coordinator.state.tracker import Tracked
from distop.coordinator.views.operations import from_history, from_tracked, read_pause
from distop.errors import Compacted, FutureRevision, InvalidArgument, InvalidName, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.keyspace import OperationId, check_name, check_table_name, escape, prefix_end
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode
from distop.metastore.records.structs import from_json
from distop.proto import distop_pb2 as pb

DEFAULT_PAGE, MAX_PAGE = 100, 1000


class PageToken(msgspec.Struct, array_like=True):
    """Where a listing goes on: at which revision, after which name, after how many of its operations."""

    revision: int
    after: str = ""
    offset: int = 0

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> PageToken:
        try:
            token = from_json(base64.urlsafe_b64decode(text.encode()), cls)
            if token.revision <= 0 or token.offset < 0:
                raise no_token()
            if token.after:
                check_name(token.after, "after")
        except (ValueError, msgspec.MsgspecError, InvalidName):
            raise no_token() from None
        return token


def no_token() -> InvalidArgument:
    """A page token that cannot be read, or was made by something else."""
    return InvalidArgument("this page token was not made by a listing", details={"field": "page_token"})


async def page_of(client: EtcdClient, request: Any) -> tuple[int, PageToken]:
    """The page that a request of a listing asks for: how many entries, and where it begins."""
    if request.page_size < 0:
        raise InvalidArgument("page_size is negative", details={"field": "page_size"})
    size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
    if request.page_token:
        return size, PageToken.decode(request.page_token)
    return size, PageToken(await client.revision())


async def table_names(client: EtcdClient, revision: int, after: str = "") -> AsyncGenerator[str, None]:
    """Names of all tables in key order, from behind ``after`` on, as of ``revision``."""
    keyspace = client.keyspace
    end = prefix_end(keyspace.prefix)
    start = prefix_end(keyspace.table(after).prefix) if after else keyspace.prefix
    while True:
        page = await client.get_range(start, end, revision=revision, keys_only=True, limit=1)
        if not page.kvs:
            return
        name = keyspace.table_of(page.kvs[0].key)
        keys = keyspace.table(name)
        if not name.startswith("_") and (await client.get(keys.table, revision=revision)).exists:
            yield name
        start = prefix_end(keys.prefix)


async def list_operations(client: EtcdClient, request: pb.ListOperationsRequest) -> pb.ListOperationsResponse:
    """One page of operations: table by table, the newest first."""
    if request.table:
        request.table = check_table_name(request.table)
    size, token = await page_of(client, request)
    with continued_listing():
        if request.table:
            await check_table(client, request.table, token.revision)
        elif request.HasField("since"):
            return await _page_by_time(client, request, token, size)
        return await _page(client, request, token, size)


async def check_table(client: EtcdClient, name: str, revision: int = 0) -> None:
    """Raise :class:`~distop.errors.TableNotFound` unless the table exists as of ``revision``; 0: now."""
    if not (await client.get(client.keyspace.table(name).table, revision=revision)).exists:
        raise TableNotFound(f"table {name!r} does not exist", details={"table": name})


@contextmanager
def continued_listing() -> Iterator[None]:
    """An error of etcd about a listing's revision, as one about its page token."""
    try:
        yield
    except Compacted as error:
        raise Compacted(
            "this listing is too old to be continued", hint="begin it again without a page token"
        ) from error
    except FutureRevision as error:
        raise no_token() from error


async def _page(
    client: EtcdClient, request: pb.ListOperationsRequest, token: PageToken, size: int
) -> pb.ListOperationsResponse:
    response = pb.ListOperationsResponse()
    async for table in _tables(client, request.table, token):
        offset = token.offset if table == token.after else 0
        operations = await _operations_of(client, table, request, token.revision)
        room = size - len(response.operations)
        chosen = operations[offset : offset + room]
        response.operations.extend(chosen)
        if len(response.operations) == size:
            response.next_page_token = PageToken(token.revision, table, offset + len(chosen)).encode()
            return response
    return response


async def _page_by_time(
    client: EtcdClient, request: pb.ListOperationsRequest, token: PageToken, size: int
) -> pb.ListOperationsResponse:
    """Those of all tables, the newest first. It looks at every table, and keeps no more than it returns."""
    best: list[pb.Operation] = []
    wanted = token.offset + size + 1
    async for table in _tables(client, "", PageToken(token.revision)):
        best += await _operations_of(client, table, request, token.revision)
        if len(best) > wanted:
            best = sorted(best, key=_newest, reverse=True)[:wanted]
    best.sort(key=_newest, reverse=True)
    response = pb.ListOperationsResponse(operations=best[token.offset : token.offset + size])
    if len(best) == wanted:
        response.next_page_token = PageToken(token.revision, offset=token.offset + size).encode()
    return response


def _newest(message: pb.Operation) -> tuple[int, str]:
    return message.started_at.ToNanoseconds(), message.name


async def _tables(client: EtcdClient, only: str, token: PageToken) -> AsyncGenerator[str, None]:
    if only:
        yield only
        return
    if token.after:
        yield token.after
    async for table in table_names(client, token.revision, token.after):
        yield table


async def _operations_of(
    client: EtcdClient, table: str, request: pb.ListOperationsRequest, revision: int
) -> list[pb.Operation]:
    """All operations of a table that the filter lets through, the newest first.

    Bounded: few are live, and the history of a table is pruned.
    """
    keyspace = client.keyspace
    keys = keyspace.table(table)
    since = request.since.ToNanoseconds() / 1e9
    found: dict[OperationId, pb.Operation] = {}
    index = await client.scan(
        keyspace.active + escape(table).encode() + b".", revision=revision, keys_only=True
    )
    pause = await read_pause(client, keys, revision=revision) if index.kvs else None
    for kv in index.kvs:
        operation = keyspace.parse_active(kv.key)
        if request.type in ("", operation.type):
            listing = await client.scan(keys.operation(operation).prefix, revision=revision)
            if (tracked := Tracked.of(keys.operation(operation), listing.kvs)) is not None:
                tracked.table_pause = pause
                found[operation] = from_tracked(tracked, revision)
    history = await client.scan(keys.history_prefix, revision=revision)
    for kv in history.kvs:
        operation = keyspace.parse_history(kv.key)
        if request.type in ("", operation.type):
            record = decode(kv.value, HistoryRecord, kv.key)
            if record.finished_at >= since:
                found[operation] = from_history(operation, record, revision)
    wanted = set(request.states)
    chosen = [message for message in found.values() if not wanted or message.state in wanted]
    return sorted(chosen, key=lambda m: (m.started_at.ToNanoseconds(), m.type, m.instance), reverse=True)
