"""Listing tables, operations and quarantined rows page by page, all pages of one listing at one revision."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from distop.coordinator.access.callers import caller
from distop.coordinator.views.operations import ENDED_STATES, ended_among, read_live, unreadable
from distop.errors import (
    Compacted,
    CorruptRecord,
    FutureRevision,
    InvalidArgument,
    PreconditionFailed,
    TableNotFound,
)
from distop.lake.storage.quarantine import Kept, PagePosition, page
from distop.lake.storage.storage import StorageOptions
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, named
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, check_table_name, escape, prefix_end
from distop.metastore.records.record import from_json
from distop.metastore.tables.registry import PAGE, table_names
from distop.proto import distop_pb2 as pb

M = TypeVar("M", bound=Message)

DEFAULT_PAGE, MAX_PAGE = 100, 1000

PAGE_BYTES = 3 << 20
"""A page ends before it is larger, as long as it has anything: gRPC refuses answers of 4 MiB, unless a client
allows more."""

ROOM = 1000
"""Operations kept beyond those of a page by time, between two times that the oldest are let go."""

LOOKED = 20_000
"""Names that one call examines for those that its caller may see; the next page continues after them."""

TOGETHER = 200
"""Tables whose operations are read together."""
LOOKED_TABLES = 4_000
"""Tables whose operations one call reads for those that match its filter; the next page continues after them.
It takes about half a second, however few match."""
PEEKED = 10
"""Ended operations of each table in such a read; if a table has more, all are read afterwards."""


class PageToken(msgspec.Struct, array_like=True):
    """Where a listing continues: at which revision, after which name, after how many of its operations.

    A listing by time continues after the operation ``after`` that was started at ``at``, in nanoseconds.
    """

    revision: int
    after: str = ""
    offset: int = 0
    at: int | None = None

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def decode(cls, text: str, *, by_time: bool = False) -> PageToken:
        try:
            token = from_json(base64.urlsafe_b64decode(text.encode()), cls)
            token.after.encode()  # it becomes a part of a key
            if not 0 < token.revision < 1 << 63 or token.offset < 0 or (token.at is not None) != by_time:
                raise no_token()
        except (ValueError, msgspec.MsgspecError):
            raise no_token() from None
        return token


def fitting(messages: Sequence[M], used: int = 0) -> list[M]:
    """The first of the messages that fit into a page, which has ``used`` bytes already."""
    sizes = accumulate((message.ByteSize() for message in messages), initial=used)
    next(sizes)
    count = sum(size <= PAGE_BYTES for size in sizes)
    return list(messages[: count if used else max(count, 1)])


def no_token() -> InvalidArgument:
    """The error for an unreadable or foreign page token."""
    return InvalidArgument("this page token was not made by a listing", details={"field": "page_token"})


async def page_of(client: EtcdClient, request: Any, *, by_time: bool = False) -> tuple[int, PageToken]:
    """The requested page of a listing: how many entries, and where it begins."""
    if request.page_size < 0:
        raise InvalidArgument("page_size is negative", details={"field": "page_size"})
    size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
    if request.page_token:
        return size, PageToken.decode(request.page_token, by_time=by_time)
    return size, PageToken(await client.revision())


async def first_tables(
    client: EtcdClient, count: int, *, revision: int, after: str = "", part: str = ""
) -> tuple[list[str], str]:
    """The names of up to ``count`` tables after ``after`` that the caller may see, in key order, at
    ``revision``; and the last examined name, empty at the end of the list. ``part``: only names with it.

    At most :data:`LOOKED` names are examined, whatever was found.
    """
    chosen: list[str] = []
    looked, sees = 0, caller().sees
    limit = count if caller().held.everywhere and not part else PAGE
    async with aclosing(table_names(client, after=after, revision=revision, limit=limit)) as pages:
        async for names, _ in pages:
            for name in names:
                looked += 1
                chosen += [name] if part in name and sees(name) else []
                if len(chosen) >= count or looked >= LOOKED:
                    return chosen, name
    return chosen, ""


async def list_operations(client: EtcdClient, request: pb.ListOperationsRequest) -> pb.ListOperationsResponse:
    """One page of operations: table by table, the newest first. It may have fewer than it has room for, or
    none: so many tables were read (:data:`LOOKED_TABLES`), and its token continues after them."""
    if request.table:
        request.table = check_table_name(request.table)
    by_time = not request.table and request.HasField("since")
    size, token = await page_of(client, request, by_time=by_time)
    with continued_listing():
        if request.table:
            await check_table(client, request.table, token.revision)
        elif by_time:
            return await _page_by_time(client, request, token, size)
        return await _page(client, request, token, size)


async def check_table(client: EtcdClient, name: str, revision: int = 0) -> None:
    """Raise :class:`~distop.errors.TableNotFound` unless the table exists at ``revision``; 0: now."""
    if not (await client.get(client.keyspace.table(name).table, revision=revision)).exists:
        raise TableNotFound.named(name)


@contextmanager
def continued_listing() -> Iterator[None]:
    """An etcd error about a listing's revision, as an error of its page token."""
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
    response, used = pb.ListOperationsResponse(), 0
    async with aclosing(_by_table(client, request, token)) as tables:
        async for table, operations, looked in tables:
            offset = token.offset if table == token.after else 0
            room = size - len(response.operations)
            wanted = operations[offset : offset + room]
            chosen = fitting(wanted, used)
            used += sum(message.ByteSize() for message in chosen)
            response.operations.extend(chosen)
            full = len(response.operations) == size or len(chosen) < len(wanted)
            if full or looked >= LOOKED_TABLES:
                response.next_page_token = PageToken(token.revision, table, offset + len(chosen)).encode()
                break
    return response


async def _page_by_time(
    client: EtcdClient, request: pb.ListOperationsRequest, token: PageToken, size: int
) -> pb.ListOperationsResponse:
    """Those of all tables, the newest first. Reads every table, and keeps little more than it returns."""
    best: list[pb.Operation] = []
    async with aclosing(_by_table(client, request, PageToken(token.revision))) as tables:
        async for _, operations, _ in tables:
            if token.at is not None:
                operations = [
                    operation for operation in operations if _newest(operation) < (token.at, token.after)
                ]
            best += operations
            if len(best) > 2 * size + ROOM:  # not with every table: each time all of them are sorted
                best = sorted(best, key=_newest, reverse=True)[: size + 1]
    best.sort(key=_newest, reverse=True)
    response = pb.ListOperationsResponse(operations=fitting(best[:size]))
    if len(best) > len(response.operations):
        at, name = _newest(response.operations[-1])
        response.next_page_token = PageToken(token.revision, name, at=at).encode()
    return response


def _newest(message: pb.Operation) -> tuple[int, str]:
    return message.started_at.ToNanoseconds(), message.name


async def _by_table(
    client: EtcdClient, request: pb.ListOperationsRequest, token: PageToken
) -> AsyncGenerator[tuple[str, list[pb.Operation], int], None]:
    """Tables with operations, each with all operations that match the filter, the newest first, and how many
    tables have been read with it.

    Bounded: few are live, and the history of a table is pruned. Most tables have nothing to show: some are
    read together. The last of these always comes, so that the caller can stop there.
    """
    looked = 0
    live = bool(request.states) and not ENDED_STATES.intersection(request.states)
    sees = caller().sees
    async with aclosing(_tables(client, request.table, token, live=live)) as lists:
        async for listed in lists:
            names = [name for name in listed if sees(name)]
            for first in range(0, len(names), TOGETHER):
                tables = [client.keyspace.table(name) for name in names[first : first + TOGETHER]]
                peeks = [] if live else [_peek(keys) for keys in tables]
                read = await client.read_many([_active_of(tables), *peeks], revision=token.revision)
                active: defaultdict[str, list[OperationId]] = defaultdict(list)
                for operation, _ in named(read.got(0), client.keyspace.parse_active):
                    active[operation.table].append(operation)
                for number, keys in enumerate(tables):
                    running, ended = active[keys.name], [] if live else read.got(number + 1)
                    looked += 1
                    if running or ended or number == len(tables) - 1:
                        matches = await _operations_of(client, keys, request, token.revision, running, ended)
                        yield keys.name, matches, looked


def _active_of(tables: Sequence[TableKeys]) -> Get:
    """The active operations of tables, in one range, which may have some of others: few operations are
    active, and most tables have none."""
    prefixes = [keys.keyspace.active + escape(keys.name).encode() + b"." for keys in tables]
    return Get(min(prefixes), prefix_end(max(prefixes)), keys_only=True)


def _peek(keys: TableKeys) -> Get:
    """The first ended operations of a table."""
    return Get(keys.history_prefix, prefix_end(keys.history_prefix), limit=PEEKED)


async def _tables(
    client: EtcdClient, only: str, token: PageToken, *, live: bool
) -> AsyncGenerator[list[str], None]:
    """Tables that may have matching operations; for live ones those in the index of live operations."""
    if only:
        yield [only]
        return
    if token.after:
        yield [token.after]
    space, revision = client.keyspace, token.revision
    if not live:
        async with aclosing(table_names(client, after=token.after, revision=revision)) as pages:
            async for names, _ in pages:
                yield names
        return
    start = space.active
    if token.after:
        start = prefix_end(space.active + escape(token.after).encode() + b".")
    active = client.pages(start, prefix_end(space.active), limit=MAX_PAGE, revision=revision, keys_only=True)
    last = ""
    async with aclosing(active):
        async for page in active:
            tables = dict.fromkeys(operation.table for operation, _ in named(page.kvs, space.parse_active))
            yield [name for name in tables if name != last]
            last = next(reversed(tables), last)


async def _operations_of(
    client: EtcdClient,
    keys: TableKeys,
    request: pb.ListOperationsRequest,
    revision: int,
    active: Sequence[OperationId],
    history: Sequence[KeyValue],
) -> list[pb.Operation]:
    """Those of one table, given its active operations and the first keys of its history.

    What cannot be read has no state, and so is in every list.
    """
    since = request.since.ToNanoseconds()
    messages: dict[OperationId, pb.Operation] = {}
    wanted = set(request.states)
    for operation in active:
        if request.type not in ("", operation.type):
            continue
        try:
            live = await read_live(client, operation, revision=revision)
        except CorruptRecord as error:
            live = unreadable(operation, error, revision)
        if live is not None:
            messages[operation] = live
    if len(history) == PEEKED:
        history = (await client.scan(keys.history_prefix, revision=revision)).kvs
    for operation, kv in named(history, keys.keyspace.parse_history):
        if request.type not in ("", operation.type):
            continue
        ended = ended_among(wanted, operation, kv, revision)
        if ended is None:
            messages.pop(operation, None)
        elif not ended.state or ended.finished_at.ToNanoseconds() >= since:
            messages[operation] = ended
    chosen = [
        message for message in messages.values() if not wanted or not message.state or message.state in wanted
    ]
    return sorted(chosen, key=lambda m: (m.started_at.ToNanoseconds(), m.type, m.instance), reverse=True)


def quarantined_page(
    request: pb.ListQuarantinedRowsRequest, folder: str, storage: StorageOptions
) -> pb.ListQuarantinedRowsResponse:
    """The page of a request. Blocks.

    Raises
    ------
    PreconditionFailed
        The files cannot be read any more.
    CorruptRecord
    """
    if request.page_size < 0:
        raise InvalidArgument("page_size is negative", details={"field": "page_size"})
    begin = PagePosition()
    if request.page_token:
        # The files do not change: the token has no revision but the one of all tokens.
        token = PageToken.decode(request.page_token)
        begin = PagePosition(token.revision - 1, token.offset)
    size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
    try:
        rows, after, file_format = page(folder, storage, begin, rows=size, most_bytes=PAGE_BYTES // 2)
    except OSError as error:
        raise PreconditionFailed(f"the rows in {folder} cannot be read: {error}") from error
    following = "" if after is None else PageToken(after.file + 1, offset=after.offset).encode()
    shown = [_row(row, file_format) for row in rows]
    return pb.ListQuarantinedRowsResponse(rows=shown, next_page_token=following)


def _row(kept: Kept, file_format: str) -> pb.QuarantinedRow:
    source, *position = kept.position.items()
    numbers = {unit: number for unit, number in position if isinstance(number, int)}
    unit = next(reversed(numbers), "")
    return pb.QuarantinedRow(
        source=str(source[1]),
        unit=unit,
        number=numbers.get(unit, 0),
        partition=numbers.get("partition", 0),
        column=kept.column,
        reason=kept.reason,
        raw=kept.raw,
        base64=kept.exact,
        header=kept.header,
        cut=kept.is_cut,
        format=file_format,
    )
