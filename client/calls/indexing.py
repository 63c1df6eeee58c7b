"""Asking about indexes."""

from __future__ import annotations

from distop.client.models.indexes import Index
from distop.client.transport.connection import Connection
from distop.client.transport.requests import make_request
from distop.proto import distop_pb2 as pb


class IndexCalls:
    """What a client can ask about indexes. They are built by operations of type ``build_index``."""

    _connection: Connection

    async def indexes(self, table: str) -> list[Index]:
        """The indexes of a table, by column."""
        request = make_request(pb.ListIndexesRequest, table=table)
        reply = await self._connection.call(lambda service: service.indexes.ListIndexes, request)
        return [Index.from_proto(message) for message in reply.indexes]
