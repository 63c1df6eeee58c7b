"""The target table of a write, in its state when the write begins."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distop.client import Client, Table, TableOptions
from distop.errors import InvalidArgument, PreconditionFailed, TableExists, TableNotFound
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.takeover import folder_of, new_write
from distop.lake.layout.model import DEFAULT_PROPERTIES, Layout, file_io
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.staging import take_folder
from distop.lake.rules.parsing import refuse_unchecked
from distop.lake.writing.writer import StagedWriter
from distop.sources.formats.reader import check_columns, columns_for
from distop.spark.options import Common, WriteOptions
from distop.spark_jobs.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql.types import StructType

ICEBERG = "iceberg"


@dataclass(frozen=True, kw_only=True)
class WriteTarget:
    """Where the tasks of one write put their files. Picklable; needs no coordinator."""

    write: str
    """The name of the write."""
    table: str
    location: str
    layout_json: dict[str, Any]
    base_snapshot: str | None
    storage: dict[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout.from_json(self.layout_json)

    def path(self, stem: str, suffix: str, folder: str) -> str:
        """A file of this write: ``folder`` is ``data`` or ``metadata``."""
        return f"{self.location}/{folder}/{folder_of(self.write)}/{stem}{suffix}"

    def writer(self, stem: str) -> StagedWriter:
        """A writer for the rows of one task; ``stem`` is the unique prefix of its files' names."""

        def path_for(suffix: str, folder: str) -> str:
            return self.path(stem, suffix, folder)

        return StagedWriter(self.layout, path_for, storage=self.storage, inline=True)

    def io(self) -> FileIO:
        return file_io(self.location, self.storage)


def connect(options: Common) -> Client:
    """A client of the configured coordinators; the caller must close it."""
    return Client(options.coordinator, timeout_s=30.0, connect_timeout_s=10.0)


def find_table(client: Client, options: Common) -> Table:
    """The table.

    Raises
    ------
    TableNotFound
        It does not exist.
    PreconditionFailed
        It is not an Iceberg table.
    """
    table = client.table(options.table).get()
    if table.format != ICEBERG:
        raise PreconditionFailed(
            f"table {table.name!r} has format {table.format}: Spark reads it directly, at {table.location}; "
            "only Iceberg tables go through format('distop')",
            hint="write to it with ingest",
        )
    return table


def storage_options(table: Table, options: Common) -> dict[str, Any]:
    """How to reach the table's files. Keys in its own options are hidden from clients, and omitted."""
    own = {name: value for name, value in dict(table.options.get("storage") or {}).items() if value != "***"}
    return {**own, **options.storage}


def open_target(client: Client, options: WriteOptions, struct: StructType) -> WriteTarget:
    """The target of a write that begins now.

    Creates the table if requested and missing.

    Raises
    ------
    InvalidArgument
        Rows of the DataFrame cannot be rows of the table; names the column and the reason.
    PreconditionFailed
        The table has rules that its rows must keep.
    """
    frame = arrow_schema(struct)
    table = _table(client, options)
    refuse_unchecked(table.name, table.options)
    storage = storage_options(table, options)
    layout = _layout(table, storage) or Layout.create(
        columns_for(frame),
        table.options.get("partitionBy", ()),
        {**DEFAULT_PROPERTIES, **(table.options.get("properties") or {})},
    )
    check_columns(frame, layout.arrow_schema)
    if not table.metadata_location:
        take_folder(table.location, table.uuid, storage)
    return WriteTarget(
        write=new_write(time.time()),
        table=table.name,
        location=table.location.rstrip("/"),
        layout_json=layout.to_json(),
        base_snapshot=None if table.snapshot_id is None else str(table.snapshot_id),
        storage=storage,
    )


def _table(client: Client, options: WriteOptions) -> Table:
    try:
        return find_table(client, options)
    except TableNotFound as error:
        if not options.create:
            hint = f'{error.hint}, or let this write create it: option("create", "true")'
            raise TableNotFound(error.message, hint=hint, details=error.details) from None
    if not options.location:
        raise InvalidArgument(
            f"table {options.table!r} is to be created, but location is not set",
            details={"field": "location"},
        )
    made: TableOptions = {"partitionBy": list(options.partition_by)} if options.partition_by else {}
    if options.storage:
        made["storage"] = options.storage
    try:
        return client.create_table(options.table, options.location, options=made)
    except TableExists:
        return find_table(client, options)  # another writer was first


def _layout(table: Table, storage: dict[str, Any]) -> Layout | None:
    """The columns of the table, if they are fixed already."""
    if table.metadata_location:
        return Layout.of(TableFile.read(table.metadata_location, storage=storage).metadata)
    schema = table.options.get("schema")
    if schema is None:
        return None
    properties = {**DEFAULT_PROPERTIES, **(table.options.get("properties") or {})}
    return Layout.create(parse_schema(schema), table.options.get("partitionBy", ()), properties)
