"""What is published in a table: its content, its snapshots, and how far its sources have been ingested."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import grpc.aio

from distop.commit.iceberg.watermarks import check_size
from distop.coordinator.views.listing import DEFAULT_PAGE, MAX_PAGE, PageToken, no_token
from distop.coordinator.views.operations import from_history
from distop.errors import InvalidArgument, NotFound, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Txn
from distop.metastore.records.keyspace import check_table_name, prefix_end
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord, Watermarks, decode_watermarks
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.metastore.tables.watermarks import change_watermarks
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import from_json

log = logging.getLogger(__name__)

RECENT = 50
"""Finished operations that are looked through for the one that loaded the table last."""

_ADDED = {"rows", "files", "bytes"}
"""Facts of operations that add rows."""

T = TypeVar("T")


class PublishedCalls(distop_pb2_grpc.TableServiceServicer):
    """The part of ``TableService`` about what is published; stateless.

    Parameters
    ----------
    threads:
        Where metadata of tables is read.
    """

    def __init__(self, client: EtcdClient, threads: Executor) -> None:
        self._client = client
        self._threads = threads

    async def DescribeTable(  # noqa: N802 - the name of the RPC
        self, request: pb.GetTableRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.TableContent:
        from distop.coordinator.views.contents import content_of

        table, head = await self._published(request.name)
        content = await self._in_thread(lambda: content_of(table, head))
        prefix = self._client.keyspace.table(table.name).history_prefix
        recent = await self._client.get_range(prefix, prefix_end(prefix), limit=RECENT, newest_first=True)
        for kv in recent.kvs:
            operation = self._client.keyspace.parse_history(kv.key)
            ended = from_history(operation, decode(kv.value, HistoryRecord, kv.key), kv.mod_revision)
            facts = from_json(ended.facts_json, "facts")
            if ended.state == pb.SUCCEEDED and facts.get("rows") and facts.keys() >= _ADDED:
                content.loaded_by, content.loaded_rows = ended.name, facts["rows"]
                content.loaded_at.CopyFrom(ended.finished_at)
                break
        return content

    async def ListSnapshots(  # noqa: N802
        self, request: pb.ListSnapshotsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListSnapshotsResponse:
        from distop.coordinator.views.contents import snapshots_of

        if request.page_size < 0:
            raise InvalidArgument("page_size is negative", details={"field": "page_size"})
        size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        table, head = await self._published(request.table)
        found = await self._in_thread(lambda: snapshots_of(table, head))
        first = 0
        if request.page_token:
            # The last one of the page before: newer ones may have come meanwhile, older ones may have gone.
            last = PageToken.decode(request.page_token).after
            ids = [str(one.snapshot_id) for one in found]
            if last not in ids:
                raise no_token()
            first = ids.index(last) + 1
        response = pb.ListSnapshotsResponse(snapshots=found[first : first + size])
        if first + size < len(found):
            response.next_page_token = PageToken(1, str(response.snapshots[-1].snapshot_id)).encode()
        return response

    async def GetWatermarks(  # noqa: N802
        self, request: pb.GetWatermarksRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetWatermarksResponse:
        keys = self._client.keyspace.table(check_table_name(request.table))
        result = await self._client.txn(Txn(then=(Get(keys.table), Get(keys.watermarks))))
        if not result.got(0):
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        watermarks = decode_watermarks(result.one(1, keys.watermarks).value)
        return _watermarks(watermarks, result.revision, request.source)

    async def ChangeWatermarks(  # noqa: N802
        self, request: pb.ChangeWatermarksRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetWatermarksResponse:
        _check(request)
        keys = self._client.keyspace.table(check_table_name(request.table))
        place = "/".join(filter(None, (request.source, request.partition))) or "all sources"
        audit = audit_put(
            keys,
            f"{request.action}-watermarks",
            by=request.requested_by,
            target=f"{place} = {request.value}" if request.value else place,
            reason=request.reason,
            at=time.time(),
        )

        async def change(before: Watermarks, table: TableRecord, head: Head | None) -> Watermarks:
            if request.action == "rewind":
                return await self._rewound(request.source, before, table, head)
            return _changed(request, before)

        after, revision = await change_watermarks(self._client, keys, change, audit)
        log.info("watermarks_changed", extra={"table": keys.name, "how": request.action, "what": place})
        await prune_softly(self._client, keys.audit_prefix)
        return _watermarks(after, revision, request.source)

    async def _rewound(
        self, source: str, before: Watermarks, table: TableRecord, head: Head | None
    ) -> Watermarks:
        from distop.coordinator.views.contents import rewound_watermarks

        after = await self._in_thread(lambda: rewound_watermarks(table, head, before))
        if not source:
            return after
        others = {name: partitions for name, partitions in before.items() if name != source}
        return others | ({source: after[source]} if source in after else {})

    async def _published(self, name: str) -> tuple[TableRecord, Head | None]:
        keys = self._client.keyspace.table(check_table_name(name))
        result = await self._client.read_at_once([Get(keys.table), Get(keys.head)])
        table, head = result.one(0, keys.table), result.one(1, keys.head)
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        published = decode(head.value, Head, head.key) if head.exists else None
        return decode(table.value, TableRecord, table.key), published

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)


def _check(request: pb.ChangeWatermarksRequest) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if the request is none that could be meant."""
    needed = {"set": ("source", "partition", "value"), "forget": ("source",), "rewind": ()}
    unwanted = {"set": (), "forget": ("value",), "rewind": ("partition", "value")}
    if request.action not in needed:
        raise InvalidArgument(
            f"{request.action!r} changes no watermarks",
            hint="choose set, forget or rewind",
            details={"field": "action"},
        )
    for name in needed[request.action]:
        if not getattr(request, name):
            raise InvalidArgument(f"{request.action} needs a {name}", details={"field": name})
    for name in unwanted[request.action]:
        if getattr(request, name):
            raise InvalidArgument(f"{request.action} takes no {name}", details={"field": name})


def _changed(request: pb.ChangeWatermarksRequest, before: Watermarks) -> Watermarks:
    after = {source: dict(partitions) for source, partitions in before.items()}
    source, partition = request.source, request.partition
    if request.action == "set":
        after.setdefault(source, {})[partition] = request.value
        check_size(request.table, after)
        return after
    standing = after.get(source, {})
    if not standing or (partition and partition not in standing):
        known = ", ".join(list(standing or after)[:5]) or "none"
        what = f"partition {partition!r} of source {source!r}" if standing else f"source {source!r}"
        raise NotFound(
            f"table {request.table!r} has no watermark of {what}",
            hint=f"it has: {known}",
            details={"field": "partition" if standing else "source"},
        )
    if partition:
        del standing[partition]
    if not partition or not standing:
        del after[source]
    return after


def _watermarks(watermarks: Watermarks, revision: int, source: str) -> pb.GetWatermarksResponse:
    response = pb.GetWatermarksResponse(revision=revision)
    for name, partitions in sorted(watermarks.items()):
        if source in ("", name):
            response.watermarks.extend(
                pb.Watermark(source=name, partition=partition, value=value)
                for partition, value in sorted(partitions.items())
            )
    return response
