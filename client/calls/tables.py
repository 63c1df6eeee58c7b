"""Calls about tables: what they are, what is published, and their indexes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from distop.client.calls.base import PAGE_SIZE, Calls, models
from distop.client.models.indexes import Index
from distop.client.models.table import Explanation, Table, Watermarks, watermarks_from_proto
from distop.client.transport.connection import make_request
from distop.errors import DistopError, TableExists, TableNotFound
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json


class TableCalls(Calls):
    """The part of :class:`~distop.client.aio.AsyncClient` about tables."""

    async def create_table(
        self, name: str, location: str, *, format: str = "iceberg", options: Mapping[str, Any] | None = None
    ) -> Table:
        """Make a table.

        Parameters
        ----------
        location:
            URL of the folder for its files, on any fsspec file system.
        options:
            Of the format; for Iceberg ``schema``, ``partitionBy`` and ``properties``. ``storage``: options of
            fsspec for the file system it lives on.
        """
        request = make_request(
            pb.CreateTableRequest,
            name=name,
            location=location,
            format=format,
            options_json=to_json(options or {}, "options"),
            created_by=self.identity,
        )
        failures: list[DistopError] = []
        try:
            reply = await self._connection.call(
                lambda service: service.CreateTable, request, failures=failures
            )
        except TableExists:
            # The reply of an earlier attempt may have been lost: is it the table we asked for?
            if failures and _same(table := await self.get_table(name), request):
                return table
            raise
        return Table.from_proto(reply)

    async def get_table(self, name: str) -> Table:
        """A table as it stands."""
        return Table.from_proto(await self._call("GetTable", name=name))

    async def explain(self, name: str) -> Explanation:
        """Why a table moves, or does not: one sentence."""
        return Explanation.from_proto(await self._call("ExplainTable", of="GetTable", name=name))

    def list_tables(self, *, page_size: int = PAGE_SIZE) -> AsyncGenerator[Table, None]:
        """All tables, by name."""
        return models(self._listed("ListTables", "tables", page_size=page_size), Table)

    async def pause_table(self, name: str, reason: str = "") -> Table:
        """Hold a table: it starts nothing, and its running operations are held as by :meth:`pause`."""
        return Table.from_proto(await self._control("PauseTable", name=name, reason=reason))

    async def resume_table(self, name: str, reason: str = "") -> Table:
        """Let a table go on. Operations that were paused themselves stay so."""
        return Table.from_proto(await self._control("ResumeTable", name=name, reason=reason))

    async def drop_table(self, name: str, reason: str = "", *, purge: bool = False) -> None:
        """Forget a table with its watermarks, history and backlog. Safe to repeat after an outage.

        Parameters
        ----------
        purge:
            Remove its files, too: everything below its location.

        Raises
        ------
        IncompatibleOperation
            Operations run on it.
        """
        request = make_request(
            pb.DropTableRequest, name=name, purge=purge, reason=reason, requested_by=self.identity
        )
        failures: list[DistopError] = []
        try:
            await self._connection.call(lambda service: service.DropTable, request, failures=failures)
        except TableNotFound:
            if not failures:  # else an earlier attempt has dropped it, and its reply was lost
                raise

    async def watermarks(self, table: str, source: str = "") -> Watermarks:
        """How far each source of a table has been ingested: source -> partition -> value."""
        return watermarks_from_proto(await self._call("GetWatermarks", table=table, source=source))

    async def indexes(self, table: str) -> list[Index]:
        """The indexes of a table, by column."""
        reply = await self._call("ListIndexes", table=table)
        return [Index.from_proto(message) for message in reply.indexes]


def _same(table: Table, request: pb.CreateTableRequest) -> bool:
    """Whether this is the table that was asked for; the service writes local paths as ``file://`` URLs."""

    def place(location: str) -> str:
        return location.removeprefix("file://").rstrip("/")

    return (place(table.location), table.format, table.created_by) == (
        place(request.location),
        request.format,
        request.created_by,
    )
