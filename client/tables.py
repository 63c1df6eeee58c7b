"""Tables, what is published in them, their indexes and watermarks, and the calls on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Required, TypedDict

from distop.client.calls import PAGE_SIZE, Calls, NamedCalls, models, new_call_id
from distop.client.connection import make_request
from distop.client.model import Model
from distop.client.operations import OperationError, Pause
from distop.errors import DistopError, NotFound, TableNotFound
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Column(Model):
    """A column of a table."""

    name: str
    type: str
    required: bool = False
    doc: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableContent(Model):
    """The content of a table, from its published state; ``None`` where that does not say."""

    table: str
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    """Partitioning terms, such as ``month(time)``."""
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    loaded_by: str = ""
    """The last known operation that added rows."""
    loaded_at: datetime | None = None
    loaded_rows: int | None = None
    missing: str = ""
    """What could not be read from the table's storage, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot(Model):
    """A snapshot that a table still has."""

    snapshot_id: int
    parent_id: int | None = None
    committed_at: datetime | None = None
    change: str = ""
    """``append``, ``overwrite``, ``replace`` or ``delete``."""
    operation: str = ""
    """The operation that made it; empty: another program."""
    started_by: str = ""
    added_rows: int | None = None
    removed_rows: int | None = None
    rows: int | None = None
    """The table's content with it."""
    bytes: int | None = None
    present: bool = False
    """Whether readers see it at present."""
    in_history: bool = False
    """Whether it is the present one or an ancestor of it."""
    refs: tuple[str, ...] = ()
    """The branches and tags on it."""
    files: int | None = None
    """The data files of the table with it; those in excess of what the target size of writers would give; and
    the files of row deletes."""
    small_files: int | None = None
    delete_files: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Index(Model):
    """The published index of a column."""

    column: str
    snapshot_id: int
    """The snapshot whose files it covers."""
    commits_behind: int | None = None
    """Commits since that snapshot; ``None``: unknown."""
    files: int
    """Data files that it covers."""
    left_out: int
    """Files of that snapshot that could not be indexed: readers always open them."""
    parts: int
    entries: int
    bytes: int
    operation: str
    """The operation that published it."""
    built_at: datetime | None = None
    field_id: int
    """Id of the column in the table's schema."""
    manifest: str
    """Location of the list of its parts."""
    sequence_number: int
    """Sequence number of the snapshot."""


Watermarks = dict[str, dict[str, str]]
"""source -> partition -> how far it has been ingested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(Model):
    """A table at one etcd revision."""

    name: str
    location: str
    """URL of the folder of its files."""
    format: str = "iceberg"
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the format; for Iceberg ``schema``, ``partitionBy`` and ``properties``."""
    created_at: datetime | None = None
    created_by: str = ""
    metadata_location: str = ""
    """The published state; empty before the first publication."""
    snapshot_id: int | None = None
    running: tuple[str, ...] = ()
    """Names of its running operations."""
    leader: str = ""
    """The coordinator that leads it; empty while it is idle."""
    pause: Pause | None = None
    """Set while it is paused: nothing starts, and running operations are paused."""
    indexes: tuple[Index, ...] = ()
    """Indexes of its columns. Only set by :meth:`TableCalls.indexes`."""
    content: TableContent | None = None
    """Its content. Only set by :meth:`TableCalls.describe`."""
    revision: int = 0
    """The etcd revision this was read at."""
    uuid: str = ""
    """Distinguishes it from other tables with the same name in the past."""
    error: OperationError | None = None
    """In a list: why it cannot be read. Only its name is known then."""


def watermarks_from_proto(message: pb.GetWatermarksResponse) -> Watermarks:
    """One nested mapping from rows of the API."""
    marks: Watermarks = {}
    for row in message.watermarks:
        marks.setdefault(row.source, {})[row.partition] = row.value
    return marks


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation(Model):
    """Why a table moves or does not."""

    table: str
    mood: str
    """``idle``, ``moving``, ``waiting``, ``paused``, ``stuck`` or ``failed``."""
    sentence: str


class TableOptions(TypedDict, total=False):
    """The options of a new table."""

    schema: Sequence[str] | Mapping[str, str]
    """Columns, as ``["id: long not null", "at: timestamp"]`` or names and types. Without: the first ingest
    decides."""
    partitionBy: Sequence[str]
    """Partitioning terms, such as ``month(at)`` or ``bucket[16](id)``."""
    properties: Mapping[str, str | bool | int | float]
    """Properties of the table format."""
    storage: Mapping[str, Any]
    """fsspec options of its file system, such as ``endpoint_url``."""
    checks: Mapping[str, Any]
    """Rules that all ingested rows must keep: see ``docs/validation.md``."""


class TableChange(TypedDict, total=False):
    """A change of a table: ``docs/changing-tables.md`` says which fields belong to which."""

    change: Required[
        Literal[
            "rename",
            "drop",
            "add",
            "widen",
            "optional",
            "doc",
            "move",
            "partition_by",
            "properties",
            "checks",
        ]
    ]
    column: str
    to: str
    """The new name of the column."""
    type: str
    doc: str
    after: str
    """The column that it moves behind; empty: to the front."""
    terms: Sequence[str]
    """Partitioning terms of new rows."""
    set: Mapping[str, str]
    """Properties to set."""
    unset: Sequence[str]
    """Properties to remove."""
    checks: Mapping[str, Any]
    """Rules in place of those that the table has; without: none."""


class TablesCalls(Calls):
    """The calls that create and list tables."""

    async def create_table(
        self, name: str, location: str, *, format: str = "iceberg", options: TableOptions | None = None
    ) -> Table:
        """Create a table.

        Parameters
        ----------
        location:
            URL of the folder for its files, on any fsspec file system.
        format:
            ``iceberg``, ``delta``, or ``files``: a tree of plain files.

        Raises
        ------
        TableExists
            There is a table or a view of this name.
        """
        reply = await self._call(
            "CreateTable",
            name=name,
            location=location,
            format=format,
            options_json=to_json(options or {}, "options"),
            created_by=self._connection.identity,
            call_id=new_call_id(),
        )
        return Table.from_proto(reply)

    def tables(self, *, page_size: int = PAGE_SIZE) -> AsyncGenerator[Table, None]:
        """All tables, by name."""
        return models(self._listed("ListTables", "tables", page_size=page_size), Table)


class TableCalls(NamedCalls):
    """The calls on a table itself: its definition, content, snapshots and watermarks."""

    async def get(self) -> Table:
        """Its definition and state. Raises :class:`~distop.errors.TableNotFound`, as all calls on it do."""
        return Table.from_proto(await self._call("GetTable", name=self.name))

    async def why(self) -> Explanation:
        """Why a table moves or does not: one sentence."""
        return Explanation.from_proto(await self._call("ExplainTable", of="GetTable", name=self.name))

    async def pause(self, reason: str = "") -> Table:
        """Pause a table: it starts nothing, and its running operations are paused, too."""
        return Table.from_proto(await self._control("PauseTable", name=self.name, reason=reason))

    async def resume(self, reason: str = "") -> Table:
        """Resume a table. Operations that were paused themselves stay paused."""
        return Table.from_proto(await self._control("ResumeTable", name=self.name, reason=reason))

    async def alter(
        self,
        changes: Sequence[TableChange],
        reason: str = "",
        *,
        run: str | None = None,
    ) -> Table:
        """Change columns, partitioning, properties or rules of a table, all in one transaction.

        Parameters
        ----------
        changes:
            Applied in order, such as ``{"change": "add", "column": "fare", "type": "decimal(9,2)"}``.
        run:
            The name of a run of the caller's program, so that the call may be repeated.

        Raises
        ------
        IncompatibleOperation
            A running operation would fail because of it.
        """
        reply = await self._control(
            "AlterTable",
            name=self.name,
            changes_json=[to_json(change, "changes") for change in changes],
            reason=reason,
            run=run or new_call_id(),
        )
        return Table.from_proto(reply)

    async def drop(self, reason: str = "", *, purge: bool = False) -> None:
        """Drop a table with its watermarks, history and backlog.

        The call drops the table that had the name at its beginning. It is idempotent after an outage, and
        never drops another table that got the name meanwhile.

        Parameters
        ----------
        purge:
            Remove its files, too: everything below its location.

        Raises
        ------
        IncompatibleOperation
            Operations run on the table.
        """
        try:
            uuid = (await self.get()).uuid
        except TableNotFound:
            uuid = "none"  # of no table: the call can only finish a drop that was interrupted
        request = make_request(
            pb.DropTableRequest,
            name=self.name,
            purge=purge,
            reason=reason,
            requested_by=self._connection.identity,
            uuid=uuid,
        )
        failures: list[DistopError] = []
        try:
            await self._connection.call(lambda service: service.DropTable, request, failures=failures)
        except TableNotFound:
            if not failures:  # otherwise an earlier attempt dropped it, and its reply was lost
                raise

    async def watermarks(self, source: str = "") -> Watermarks:
        """How far each source of a table has been ingested: source -> partition -> value."""
        marks: Watermarks = {}
        token = ""
        while True:
            page = await self._call("GetWatermarks", table=self.name, source=source, page_token=token)
            for name, partitions in watermarks_from_proto(page).items():
                marks.setdefault(name, {}).update(partitions)
            if not (token := page.next_page_token):
                return marks

    async def set_watermark(self, source: str, partition: str, value: str, reason: str = "") -> Watermarks:
        """Set a watermark by hand; returns those of the source.

        Raises :class:`~distop.errors.IncompatibleOperation` while an operation runs that moves watermarks.
        """
        return await self._change_watermarks("set", source, partition, value, reason)

    async def forget_watermarks(self, source: str, partition: str = "", reason: str = "") -> Watermarks:
        """Delete watermarks, so that their files can be ingested again. Without a partition: all of the
        source.

        Raises as :meth:`set_watermark` does, and :class:`~distop.errors.NotFound` if there is none.
        """
        return await self._change_watermarks("forget", source, partition, "", reason)

    async def compact_watermarks(self, source: str, reason: str = "") -> Watermarks:
        """Replace the watermarks of a folder's files by one for the folder (``source``, as ``new_only`` names
        it): the newest of them. An older file that arrives later is not new then.

        Raises as :meth:`forget_watermarks` does, and :class:`~distop.errors.InvalidArgument` if the source is
        not a folder.
        """
        return await self._change_watermarks("compact", source, "", "", reason)

    async def rewind_watermarks(self, source: str = "", reason: str = "") -> Watermarks:
        """Undo the watermark changes of snapshots that are no longer part of the table.

        A rollback with ``watermarks="keep"`` leaves such changes. A watermark that a snapshot of the table
        explains, or that was moved since, stays. Without a source: of all.

        Raises as :meth:`set_watermark` does.
        """
        return await self._change_watermarks("rewind", source, "", "", reason)

    async def _change_watermarks(
        self, action: str, source: str, partition: str, value: str, reason: str
    ) -> Watermarks:
        request = make_request(
            pb.ChangeWatermarksRequest,
            table=self.name,
            action=action,
            source=source,
            partition=partition,
            value=value,
            reason=reason,
            requested_by=self._connection.identity,
        )
        failures: list[DistopError] = []
        try:
            reply = await self._connection.call(
                lambda service: service.ChangeWatermarks, request, failures=failures
            )
        except NotFound as error:
            if not failures or isinstance(error, TableNotFound):
                raise
            return await self.watermarks(source)  # an earlier attempt did it
        return await self.watermarks(source) if reply.next_page_token else watermarks_from_proto(reply)

    async def describe(self) -> TableContent:
        """The content of a table: columns, rows, bytes, and what loaded it last."""
        return TableContent.from_proto(await self._call("DescribeTable", of="GetTable", name=self.name))

    def snapshots(self, *, page_size: int = PAGE_SIZE) -> AsyncGenerator[Snapshot, None]:
        """The snapshots that a table still has, the newest first."""
        return models(
            self._listed("ListSnapshots", "snapshots", table=self.name, page_size=page_size), Snapshot
        )

    async def branches(self) -> dict[str, Snapshot]:
        """The branches and tags of the table, by name, but for the table's main line: each with the snapshot
        that it is at."""
        return {ref: snapshot async for snapshot in self.snapshots() for ref in snapshot.refs}

    async def indexes(self) -> list[Index]:
        """The indexes of a table, by column."""
        reply = await self._call("ListIndexes", table=self.name)
        return [Index.from_proto(message) for message in reply.indexes]
