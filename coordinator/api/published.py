"""What is published in a table: its content, its snapshots and indexes, and the watermarks of its sources.

Handlers that read storage answer before the caller's deadline, also if the storage hangs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial, reduce
from itertools import islice
from typing import TypeVar

from distop import errors
from distop.commit.contract import BRANCH
from distop.coordinator.api.calls import Context, audited
from distop.coordinator.views.listing import DEFAULT_PAGE, MAX_PAGE, PAGE_BYTES, PageToken, no_token
from distop.coordinator.work.work import LIMIT_S, Work
from distop.lake.iceberg.watermarks import is_after
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import deadline
from distop.metastore.etcd.txn import Get, Txn, named
from distop.metastore.records.names import check_table_name, prefix_end
from distop.metastore.records.operation import SUCCESS, HistoryRecord
from distop.metastore.records.record import decode, readable
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.records.watermarks import Marks, check_entry, position
from distop.metastore.tables.audit import prune_softly
from distop.metastore.tables.registry import read_indexes
from distop.metastore.tables.watermarks import change_watermarks, read_marks, watermark_chunks, without_source
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.messages import message_of, timestamp

log = logging.getLogger(__name__)


T = TypeVar("T")

STORAGE_S = 5.0
"""Longest wait for a table's storage."""

_PART = 0.7
"""Share of the caller's deadline: the rest is for the error."""


class StoredCalls:
    """Handlers that read what is published in a table.

    Parameters
    ----------
    work:
        Where metadata of tables is read: a hanging storage of one table does not block others.
    """

    def __init__(self, client: EtcdClient, work: Work) -> None:
        self._client = client
        self._work = work

    async def _published(self, name: str) -> tuple[TableRecord, Head | None]:
        """Record and head of a table. Raises :class:`~distop.errors.TableNotFound`."""
        keys = self._client.keyspace.table(check_table_name(name))
        result = await self._client.read_at_once([Get(keys.table), Get(keys.head)])
        table, head = result.single(0, keys.table), result.single(1, keys.head)
        if not table.exists:
            raise errors.TableNotFound.named(keys.name)
        published = decode(head.value, Head, head.key) if head.exists else None
        return decode(table.value, TableRecord, table.key), published

    async def _from_storage(self, table: TableRecord, read: Callable[[], T]) -> T:
        """Read from a table's storage.

        Raises, before the caller's deadline, :class:`~distop.errors.PreconditionFailed` if it does not
        answer; the thread continues. :class:`~distop.errors.Busy` if its turn has not come, since others
        hang.
        """
        limit_s = min(STORAGE_S, _PART * _left_s())
        label = f"a look into the storage of table {table.name!r}"
        try:
            return await self._work.blocking(table.name, label, read, limit_s=limit_s)
        except errors.CallTimeout:
            raise errors.PreconditionFailed(
                f"the storage of table {table.name!r} has not answered for {max(limit_s, 0):.1f} s",
                hint=f"check that the coordinators can reach {table.location}",
                details={"table": table.name},
            ) from None
        except OSError as error:
            raise errors.PreconditionFailed(
                f"the storage of table {table.name!r} cannot be read: {error}", details={"table": table.name}
            ) from error

    async def _in_thread(self, table: str, label: str, call: Callable[..., T], *args: object) -> T:
        """Run blocking code for a table, until the caller's deadline."""
        return await self._work.blocking(table, label, call, *args, limit_s=min(LIMIT_S, _left_s()))


def _left_s() -> float:
    """Seconds until the caller's deadline."""
    return deadline() - asyncio.get_running_loop().time()


RECENT = 50
"""Finished operations that are searched for the one that loaded the table last."""

_ADDED = {"rows", "files", "bytes"}
"""Facts of operations that add rows; those that add them to a branch have :data:`BRANCH`, too."""

WATERMARKS = 5_000
"""Most snapshots or watermarks in one response."""

MAX_WHY = 500
"""Most characters of the reason why something is unknown."""


class PublishedCalls(StoredCalls, distop_pb2_grpc.TableServiceServicer):
    """The part of ``TableService`` about what is published; stateless."""

    async def DescribeTable(self, request: pb.GetTableRequest, context: Context) -> pb.TableContent:
        from distop.coordinator.views.contents import content_of

        table, head = await self._published(request.name)
        try:
            content = await self._from_storage(table, lambda: content_of(table, head))
        except Exception as error:  # of any storage: the data from etcd is returned anyway
            why = (
                error.message if isinstance(error, errors.DistopError) else f"{type(error).__name__}: {error}"
            )
            content = pb.TableContent(
                table=table.name, missing=f"columns, rows and size: {errors.shortened(why, MAX_WHY)}"
            )
            log.warning("table_unreadable", extra={"table": table.name, "error": str(error)})
        prefix = self._client.keyspace.table(table.name).history_prefix
        recent = await self._client.get_range(prefix, prefix_end(prefix), limit=RECENT, newest_first=True)
        for operation, kv in named(recent.kvs, self._client.keyspace.parse_history):
            if (ended := readable(kv.value, HistoryRecord)) is None:
                continue  # the doctor reports it
            rows = ended.count("rows")
            adds = ended.facts.keys() >= _ADDED and BRANCH not in ended.facts
            if ended.outcome == SUCCESS and rows and adds:
                at = timestamp(ended.finished_at)
                content.MergeFrom(pb.TableContent(loaded_by=str(operation), loaded_rows=rows, loaded_at=at))
                break
        return content

    async def ListSnapshots(
        self, request: pb.ListSnapshotsRequest, context: Context
    ) -> pb.ListSnapshotsResponse:
        from distop.coordinator.views.contents import snapshots_of

        if request.page_size < 0:
            raise errors.InvalidArgument("page_size is negative", details={"field": "page_size"})
        size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        table, head = await self._published(request.table)
        snapshots = await self._from_storage(table, lambda: snapshots_of(table, head))
        first = 0
        if request.page_token:
            # The last one of the page before: newer ones may have appeared, older ones may be gone.
            last = PageToken.decode(request.page_token).after
            ids = [str(snapshot.snapshot_id) for snapshot in snapshots]
            if last not in ids:
                raise no_token()
            first = ids.index(last) + 1
        response = pb.ListSnapshotsResponse(snapshots=snapshots[first : first + size])
        if first + size < len(snapshots):
            response.next_page_token = PageToken(1, str(response.snapshots[-1].snapshot_id)).encode()
        return response

    async def GetWatermarks(
        self, request: pb.GetWatermarksRequest, context: Context
    ) -> pb.GetWatermarksResponse:
        if request.page_size < 0:
            raise errors.InvalidArgument("page_size is negative", details={"field": "page_size"})
        size = min(request.page_size or WATERMARKS, WATERMARKS)
        return await self._watermarks(request.table, request.source, size, request.page_token)

    async def _watermarks(
        self, table: str, source: str, size: int = WATERMARKS, token: str = ""
    ) -> pb.GetWatermarksResponse:
        keys = self._client.keyspace.table(check_table_name(table))
        marks, revision = await read_marks(self._client, keys)
        response = pb.GetWatermarksResponse(revision=revision)
        after = PageToken.decode(token).after.encode() + b"\0" if token else b""

        def read() -> None:
            first = position(source) if source else b""
            entries = marks.between(max(first, after), prefix_end(first) if source else b"\xff")
            used = 0
            for name, partition, value in entries:
                mark = pb.Watermark(source=name, partition=partition, value=value)
                used += mark.ByteSize()
                if len(response.watermarks) == size or (response.watermarks and used > PAGE_BYTES):
                    last = response.watermarks[-1]
                    at = position(last.source, last.partition).decode()
                    response.next_page_token = PageToken(1, at).encode()
                    return
                response.watermarks.append(mark)

        await self._in_thread(keys.name, "reading watermarks", read)
        return response

    async def ChangeWatermarks(
        self, request: pb.ChangeWatermarksRequest, context: Context
    ) -> pb.GetWatermarksResponse:
        _check(request)
        keys = self._client.keyspace.table(check_table_name(request.table))
        target = "/".join(filter(None, (request.source, request.partition))) or "all sources"
        named = f"{target} = {request.value}" if request.value else target
        audit = audited(keys, f"{request.action}-watermarks", request, named, at=time.time())

        async def change(before: Marks, table: TableRecord, head: Head | None) -> tuple[Marks, Txn]:
            changed = partial(self._changed, request, before, table, head)
            return await self._in_thread(keys.name, "changing watermarks", changed)

        await change_watermarks(self._client, keys, change, audit)
        log.info("watermarks_changed", extra={"table": keys.name, "how": request.action, "what": target})
        await prune_softly(self._client, keys.audit_prefix)
        return await self._watermarks(keys.name, request.source)

    def _changed(
        self, request: pb.ChangeWatermarksRequest, before: Marks, table: TableRecord, head: Head | None
    ) -> tuple[Marks, Txn]:
        """The marks and the transaction of a change; reads the storage, so it blocks."""
        source, partition = request.source, request.partition
        if request.action == "rewind":
            from distop.coordinator.views.contents import rewound_watermarks

            return rewound_watermarks(table, head, before, source), Txn()
        if request.action == "set":
            check_entry(source, partition, request.value)
            return before.then({source: {partition: request.value}}), Txn()
        known = [name for _, name, _ in islice(before.of_source(source), 5)]
        if not known or (partition and before.value(source, partition) is None):
            subject = f"partition {partition!r} of source {source!r}" if known else f"source {source!r}"
            others = dict.fromkeys(name for name, _, _ in islice(before.between(b"", b"\xff"), 100))
            raise errors.NotFound(
                f"table {request.table!r} has no watermark of {subject}",
                hint=f"it has: {', '.join(known or list(others)[:5]) or 'none'}",
                details={"field": "partition" if known else "source"},
            )
        if partition:
            return before.then({source: {partition: None}}), Txn()
        folder = _folder(before, source) if request.action == "compact" else {}
        after, besides = without_source(before, watermark_chunks(self._client.keyspace, table), source)
        return after.then(folder), besides


def _check(request: pb.ChangeWatermarksRequest) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if the request is invalid."""
    needed = {
        "set": ("source", "partition", "value"),
        "forget": ("source",),
        "compact": ("source",),
        "rewind": (),
    }
    unwanted = {
        "set": (),
        "forget": ("value",),
        "compact": ("partition", "value"),
        "rewind": ("partition", "value"),
    }
    if request.action not in needed:
        raise errors.InvalidArgument(
            f"{request.action!r} is not a change of watermarks",
            hint="choose set, forget, compact or rewind",
            details={"field": "action"},
        )
    for name in needed[request.action]:
        if not getattr(request, name):
            raise errors.InvalidArgument(f"{request.action} needs a {name}", details={"field": name})
    for name in unwanted[request.action]:
        if getattr(request, name):
            raise errors.InvalidArgument(f"{request.action} takes no {name}", details={"field": name})


def _folder(marks: Marks, source: str) -> dict[str, dict[str, str]]:
    """The one watermark of a folder that replaces those of its files: the newest of them."""
    around, _, name = source.rpartition("/")
    values = (value for _, _, value in marks.of_source(source))
    newest = reduce(lambda mark, other: other if is_after(other, mark) else mark, values)
    try:
        datetime.fromisoformat(newest)
    except ValueError:
        newest = ""
    if not newest or "://" not in around:
        raise errors.InvalidArgument(
            f"{source!r} is not a folder whose files have times as watermarks",
            hint="only sources ingested with --new-only can be compacted",
            details={"field": "source"},
        )
    current = marks.value(around, name)
    return {around: {name: current if current is not None and is_after(current, newest) else newest}}


class IndexService(StoredCalls, distop_pb2_grpc.IndexServiceServicer):
    """The handlers; stateless."""

    async def ListIndexes(self, request: pb.ListIndexesRequest, context: Context) -> pb.ListIndexesResponse:
        table, head = await self._published(request.table)
        indexes = await read_indexes(self._client, self._client.keyspace.table(table.name))
        present = None
        if indexes and head is not None:
            read = partial(_sequence_number, head.metadata_location, storage_of(table))
            with suppress(errors.PreconditionFailed, errors.Busy):
                present = await self._from_storage(table, read)
        response = pb.ListIndexesResponse()
        for index in indexes:
            # A table that was rolled back may be at a snapshot before the indexed one.
            behind = None if present is None else max(0, present - index.sequence_number)
            response.indexes.append(message_of(pb.Index, index, commits_behind=behind, built_at=index.at))
        return response


def _sequence_number(metadata_location: str, storage: StorageOptions) -> int | None:
    """The sequence number of a table's present snapshot; ``None`` if the metadata cannot be read.

    Each commit increments it, so the difference to an index's number is the number of commits since.
    """
    from distop.lake.iceberg.metadata_files import TableFile

    try:
        snapshot = TableFile.read(metadata_location, storage=storage).metadata.current_snapshot()
    except Exception as error:  # any error of a file system: the indexes are listed anyway
        log.warning("metadata_unreadable", extra={"path": metadata_location, "error": str(error)})
        return None
    return None if snapshot is None else snapshot.sequence_number
