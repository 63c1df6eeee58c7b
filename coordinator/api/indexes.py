"""``IndexService``: the indexes of a table, and look-ups in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import grpc.aio

from distop.commit.files.storage import storage_of
from distop.coordinator.views.operations import timestamp
from distop.errors import PreconditionFailed, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get
from distop.metastore.records.keyspace import TableKeys, check_name
from distop.metastore.records.model import Head, TableRecord, decode
from distop.metastore.tables.indexes import read_indexes
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc

T = TypeVar("T")

MAX_FILES = 1000
"""Files of an answer that are named."""


class IndexService(distop_pb2_grpc.IndexServiceServicer):
    """The handlers; stateless.

    Parameters
    ----------
    threads:
        Where tables and their indexes are read.
    """

    def __init__(self, client: EtcdClient, threads: Executor) -> None:
        self._client = client
        self._threads = threads

    async def ListIndexes(  # noqa: N802 - the name of the RPC
        self, request: pb.ListIndexesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListIndexesResponse:
        from distop.commit.index.query import sequence_number_of

        keys = self._client.keyspace.table(check_name(request.table, "table"))
        table, head = await self._read(keys)
        indexes = await read_indexes(self._client, keys)
        present = None
        if indexes:
            present = await self._blocking(lambda: sequence_number_of(head, storage_of(table)))
        response = pb.ListIndexesResponse()
        for index in indexes:
            # A table that was rolled back is at a snapshot before the one that is covered.
            behind = -1 if present is None else max(0, present - index.sequence_number)
            response.indexes.append(
                pb.Index(
                    column=index.column,
                    snapshot_id=index.snapshot_id,
                    commits_behind=behind,
                    files=index.files,
                    left_out=index.left_out,
                    parts=index.parts,
                    entries=index.entries,
                    bytes=index.bytes,
                    operation=index.operation,
                    built_at=timestamp(index.at),
                    field_id=index.field_id,
                    manifest=index.manifest,
                    sequence_number=index.sequence_number,
                )
            )
        return response

    async def LookUp(  # noqa: N802
        self, request: pb.LookUpRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.LookUpResponse:
        from distop.commit.index.query import look_up

        keys = self._client.keyspace.table(check_name(request.table, "table"))
        table, head = await self._read(keys)
        if table.format != "iceberg":
            raise PreconditionFailed(
                f"table {keys.name!r} has format {table.format}, indexes are for Iceberg tables"
            )
        indexes = await read_indexes(self._client, keys)
        storage, values = storage_of(table), list(request.values)
        snapshot_id = request.snapshot_id or None
        answer = await self._blocking(
            lambda: look_up(head, storage, indexes, request.column, values, snapshot_id)
        )
        response = pb.LookUpResponse(
            snapshot_id=answer.snapshot_id or 0,
            file_count=len(answer.files),
            planned_count=answer.planned,
            covered_count=answer.covered,
            index=answer.index,
        )
        for file in answer.files[:MAX_FILES]:
            response.files.append(
                pb.FoundFile(
                    path=file.path,
                    size=file.size,
                    rows=file.rows,
                    row_groups=file.row_groups or (),
                    covered=file.row_groups is not None,
                )
            )
        return response

    async def _read(self, keys: TableKeys) -> tuple[TableRecord, Head | None]:
        result = await self._client.read_at_once([Get(keys.table), Get(keys.head)])
        table, head = result.one(0, keys.table), result.one(1, keys.head)
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        record = decode(table.value, TableRecord, table.key)
        return record, decode(head.value, Head, head.key) if head.exists else None

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
