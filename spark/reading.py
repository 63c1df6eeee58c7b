"""Reading a snapshot of a table, for Spark's data source interface.

The files are planned once, on the driver, from the table's metadata: so a query reads one snapshot, whatever
is published meanwhile. Spark's own filters are not pushed down here (in Spark 4.3 that leaks filters of one
query into the next); the option ``filter`` is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from distop.client import Client, Index, Table
from distop.errors import DistopError, InvalidArgument, PreconditionFailed
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.sources.formats.reader import converted
from distop.spark.target import ReadOptions, connect, find_table, storage_options
from distop.spark_jobs.spark_types import spark_schema
from distop.spark_jobs.tables import PlannedFile, TableSnapshot, open_snapshot

log = logging.getLogger(__name__)

FILES_PER_SPLIT = 200
"""Small files that one task reads one after the other."""


@dataclass
class FileSplit(InputPartition):
    """The part that one task reads."""

    files: list[PlannedFile]


def find_snapshot(client: Client, options: ReadOptions) -> TableSnapshot:
    """The snapshot selected by the options.

    Raises
    ------
    TableNotFound
        There is no such table.
    PreconditionFailed
        There is no such snapshot, or none at all: the table has no columns yet.
    """
    table = find_table(client, options)
    storage = storage_options(table, options)
    if not table.metadata_location:
        if options.snapshot_id is not None or options.as_of or options.branch:
            raise PreconditionFailed(f"nothing has been published to table {table.name!r}")
        return _empty(table, storage)
    return open_snapshot(
        table.metadata_location,
        storage,
        snapshot_id=options.snapshot_id,
        as_of_ms=_milliseconds(options.as_of) if options.as_of else None,
        branch=options.branch,
        indexes=_indexes(client, table.name) if options.filter and options.use_indexes else (),
    )


def _indexes(client: Client, table: str) -> list[Index]:
    """The table's indexes. If they are unavailable, the table is read without them."""
    try:
        return list(client.table(table).indexes())
    except DistopError as error:
        log.warning("indexes_not_told", extra={"table": table, "error": str(error)})
        return []


def _empty(table: Table, storage: dict[str, object]) -> TableSnapshot:
    schema = table.options.get("schema")
    if schema is None:
        raise PreconditionFailed(
            f"nothing has been published to table {table.name!r}, so it has no columns",
            hint="write to it first, or create it with a schema",
        )
    layout = Layout.create(parse_schema(schema), table.options.get("partitionBy", ()))
    return TableSnapshot(layout.new_metadata(table.location), None, storage)


def _milliseconds(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a time", hint="write 2024-05-01T08:00:00Z", details={"field": "asOf"}
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def table_schema(options: ReadOptions) -> StructType:
    """The columns of a read."""
    with connect(options) as client:
        snapshot = find_snapshot(client, options)
    return spark_columns(snapshot.projection(options.columns))


def spark_columns(schema: Schema) -> StructType:
    """The columns of a table in Spark's types."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return spark_schema(columns, "columns", "read other columns, with the option columns")


def splits_of(files: Iterable[PlannedFile], split_bytes: int) -> list[FileSplit]:
    """Files for tasks: large ones alone, small ones together."""
    splits: list[FileSplit] = []
    room = 0
    for file in files:
        if not splits or file.size > room or len(splits[-1].files) >= FILES_PER_SPLIT:
            splits.append(FileSplit([]))
            room = split_bytes
        splits[-1].files.append(file)
        room -= file.size
    return splits


def read_files(
    snapshot: TableSnapshot,
    files: Sequence[PlannedFile],
    schema: StructType,
    where: str | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of some files, in Spark's form."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in snapshot.batches(files, columns=wanted.names, where=where):
        if batch.num_rows:
            yield from converted(pa.Table.from_batches([batch]), wanted).to_batches()


class TableReader(DataSourceReader):
    """One ``spark.read``. Its copies read in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        with connect(options) as client:
            self._snapshot = find_snapshot(client, options)

    def partitions(self) -> Sequence[InputPartition]:
        """See Spark's :meth:`DataSourceReader.partitions`."""
        files = self._snapshot.plan_files(self._options.filter)
        # Without any partition Spark would create an empty one.
        return list(splits_of(files, self._options.split_bytes)) or [FileSplit([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See Spark's :meth:`DataSourceReader.read`."""
        if not isinstance(partition, FileSplit):
            raise TypeError(f"{partition!r} is not a split of this reader")
        return read_files(self._snapshot, partition.files, self._schema, self._options.filter)
