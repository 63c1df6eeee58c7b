"""Asking about indexes, and looking values up in them."""

from __future__ import annotations

from collections.abc import Sequence

from distop.client.calls.controlling import make_request
from distop.client.models.indexes import Index, LookUp
from distop.client.transport.connection import Connection
from distop.proto import distop_pb2 as pb


class IndexCalls:
    """What a client can ask about indexes. They are built by operations of type ``build_index``."""

    _connection: Connection

    async def indexes(self, table: str) -> list[Index]:
        """The indexes of a table, by column."""
        request = make_request(pb.ListIndexesRequest, table=table)
        reply = await self._connection.call(lambda service: service.indexes.ListIndexes, request)
        return [Index.from_proto(message) for message in reply.indexes]

    async def look_up(
        self, table: str, column: str, values: Sequence[str], *, snapshot_id: int | None = None
    ) -> LookUp:
        """The data files in which a column may have one of some values.

        Parameters
        ----------
        values:
            As people write them, whatever the column's type; at most 1,000.
        snapshot_id:
            ``None``: the present one.

        Raises
        ------
        InvalidArgument
            There is no such column, or a value is none of its type.
        """
        request = make_request(
            pb.LookUpRequest, table=table, column=column, values=list(values), snapshot_id=snapshot_id or 0
        )
        reply = await self._connection.call(lambda service: service.indexes.LookUp, request)
        return LookUp.from_proto(reply)
