"""``IndexService``: the indexes of a table, and how far each is behind it."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Any

import grpc.aio

from distop.coordinator.api.stored import StoredCalls
from distop.errors import Busy, PreconditionFailed
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.metastore.tables.registry import read_indexes
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.messages import message_of

log = logging.getLogger(__name__)


class IndexService(StoredCalls, distop_pb2_grpc.IndexServiceServicer):
    """The handlers; stateless."""

    async def ListIndexes(  # noqa: N802 - the name of the RPC
        self, request: pb.ListIndexesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListIndexesResponse:
        table, head = await self._published(request.table)
        indexes = await read_indexes(self._client, self._client.keyspace.table(table.name))
        present = None
        if indexes and head is not None:
            read = partial(_sequence_number, head.metadata_location, storage_of(table))
            with suppress(PreconditionFailed, Busy):
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
