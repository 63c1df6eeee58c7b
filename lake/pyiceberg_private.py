"""The private names of pyiceberg and fsspec that distop uses: no other module touches one.

Neither library guarantees them. An upgrade that breaks something breaks it here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fsspec
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader, UUIDReader
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask, StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import _base64encode, _human_string
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import IcebergType, UUIDType

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata


# Every reader of manifests in this process, pyiceberg's own planning as well, reads partition values by the
# next two functions: this module is imported before any file can be opened (distop.lake.layout.model).


def _read_double(self: DoubleReader, decoder: BinaryDecoder) -> float:
    """pyiceberg's compiled decoder (0.12) rounds to 32 bits: partitions by numbers would not be found, and a
    manifest that is written again would give rows other values, since readers take them from there."""
    number: float = struct.unpack("<d", decoder.read(8))[0]
    return number


def _read_uuid(self: UUIDReader, decoder: BinaryDecoder) -> bytes:
    """Bytes, as in pyiceberg's own literals and bounds: a ``UUID`` equals none of them, and filters would
    exclude its file."""
    return decoder.read(16)


@_human_string.register(bytes)
def _shown(value: bytes, kind: IcebergType) -> str:
    return str(UUID(bytes=value)) if isinstance(kind, UUIDType) else _base64encode(value)


DoubleReader.read = _read_double  # type: ignore[method-assign]
UUIDReader.read = _read_uuid  # type: ignore[method-assign, assignment]


UNCHECKED = (AttributeError, LookupError, TypeError)
"""What pyiceberg's validators may raise, in addition to pydantic's errors, for JSON of a wrong shape, since
they do not check types."""


def open_file_system(protocol: str, url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The file system of a URL and the path within it. The URL itself may hold further options.

    fsspec's public function (``url_to_fs``) would read ``::`` in a name as a chain of file systems.
    """
    kind = fsspec.get_filesystem_class(protocol)
    return fsspec.filesystem(
        protocol, **{**kind._get_kwargs_from_urls(url), **options}
    ), kind._strip_protocol(url)


def schema_without_ids(schema: pa.Schema) -> Schema:
    """The Iceberg schema of an Arrow schema; its fields have no ids yet."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    return _pyarrow_to_schema_without_ids(schema, downcast_ns_timestamp_to_us=True)


def parquet_options(properties: Properties) -> dict[str, Any]:
    """Arguments for pyarrow's Parquet writer from the properties of a table."""
    from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs

    return _get_parquet_writer_kwargs(properties)


def scan_of(metadata: TableMetadata, io: FileIO, columns: Schema) -> ArrowScan:
    """A scan of all rows.

    Parquet files of every scan in this process are then read with times in INT96, which older programs write,
    as microseconds: pyiceberg takes nanoseconds, which reach from 1677 to 2262, and makes other times of
    those beyond.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io import pyarrow

    pyarrow._get_file_format = _file_format
    return pyarrow.ArrowScan(metadata, io, columns, AlwaysTrue())


@lru_cache
def _file_format(file_format: FileFormat, **options: Any) -> ds.FileFormat:
    import pyarrow.dataset as ds

    if file_format == FileFormat.PARQUET:
        return ds.ParquetFileFormat(coerce_int96_timestamp_unit="us", **options)
    if file_format == FileFormat.ORC:
        return ds.OrcFileFormat()
    raise ValueError(f"Unsupported file format: {file_format}")


def batches_of(
    scan: ArrowScan,
    io: FileIO,
    task: FileScanTask,
    groups_of: Callable[[pq.FileMetaData, Schema], Sequence[int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, streamed.

    The public ``to_record_batches`` reads a whole file before it yields the first batch.

    Parameters
    ----------
    groups_of:
        The row groups to read of a Parquet file, by its footer and its columns. ``None``: all.
    """
    from pyiceberg.io.pyarrow import _read_all_delete_files

    if groups_of is None or task.delete_files or task.file.file_format != FileFormat.PARQUET:
        # Delete files count rows from the beginning of the file.
        yield from scan._record_batches_from_scan_tasks_and_deletes(
            [task], _read_all_delete_files(io, [task])
        )
        return
    yield from _of_groups(scan, io, task, groups_of)


def _of_groups(
    scan: ArrowScan,
    io: FileIO,
    task: FileScanTask,
    groups_of: Callable[[pq.FileMetaData, Schema], Sequence[int]],
) -> Iterator[pa.RecordBatch]:
    """As pyiceberg's ``_task_to_record_batches``, which can only leave row groups out by Arrow's own proofs:
    these ignore NaN."""
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import (
        _get_column_projection_values,
        _to_requested_schema,
        pyarrow_to_schema,
    )
    from pyiceberg.schema import prune_columns

    metadata, projected = scan._table_metadata, scan._projected_schema
    in_micros = scan._downcast_ns_timestamp_to_us
    if in_micros is None:
        in_micros = metadata.format_version <= 2
    kind = _file_format(FileFormat.PARQUET, pre_buffer=True, buffer_size=8 << 20)
    with io.new_input(task.file.file_path).open() as file:
        fragment = kind.make_fragment(file)
        physical = fragment.physical_schema
        columns = pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=in_micros,
            format_version=metadata.format_version,
        )
        missing = _get_column_projection_values(
            task.file,
            projected,
            metadata.schema(),
            metadata.specs().get(task.file.spec_id),
            columns.field_ids,
        )
        groups = groups_of(fragment.metadata, columns)
        if not groups:
            return
        if len(groups) < fragment.metadata.num_row_groups:
            fragment = fragment.subset(row_group_ids=list(groups))
        wanted = prune_columns(columns, scan._projected_field_ids, select_full_types=False)
        scanner = ds.Scanner.from_fragment(
            fragment=fragment, schema=physical, columns=[column.name for column in wanted.columns]
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield _to_requested_schema(
                    projected,
                    wanted,
                    batch,
                    downcast_ns_timestamp_to_us=in_micros,
                    projected_missing_fields=missing,
                    allow_timestamp_tz_mismatch=True,
                )


class StagingCatalog(MetastoreCatalog):
    """A catalog that stages changes of tables as pyiceberg's own catalogs do, under public names."""

    def file_io(self, location: str, properties: Properties = EMPTY_DICT) -> FileIO:
        """Access to the files at and below a location."""
        return super()._load_file_io(properties, location)

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self.file_io(location or "", properties)

    def location_of_new(self, location: str | None, namespace: str, table: str) -> str:
        """Where a table that is to be created will live."""
        return super()._resolve_table_location(location, namespace, table)

    def _resolve_table_location(self, location: str | None, database_name: str, table_name: str) -> str:
        return self.location_of_new(location, database_name, table_name)

    def stage_new(self, identifier: str | Identifier, *parts: Any) -> StagedTable:
        """A new table, from the arguments of ``create_table``."""
        return self._create_staged_table(identifier, *parts)

    def _create_staged_table(self, identifier: str | Identifier, *parts: Any, **named: Any) -> StagedTable:
        staged = super()._create_staged_table(identifier, *parts, **named)
        # pyiceberg joins the namespaces to one part, which would name another table.
        staged._identifier = self.identifier_to_tuple(identifier)
        return staged

    def stage_update(
        self,
        current: Table | None,
        identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """The table after the updates. Raises ``CommitFailedException`` if a requirement does not hold, and
        ``ValueError`` for invalid updates."""
        try:
            return self._update_and_stage_table(current, identifier, requirements, updates)
        except (LookupError, StopIteration) as error:  # pyiceberg does not check that named things exist
            raise ValueError(f"an update names what the table does not have: {error}") from error

    def schema_of(self, schema: Schema | pa.Schema) -> Schema:
        """An Iceberg schema; columns of an Arrow schema get ids."""
        from pyiceberg.schema import Schema, assign_fresh_schema_ids

        return (
            schema
            if isinstance(schema, Schema)
            else assign_fresh_schema_ids(self._convert_schema_if_needed(schema))
        )

    def changed_properties(
        self, properties: Properties, removals: set[str] | None, updates: Properties
    ) -> tuple[PropertiesUpdateSummary, Properties]:
        """Properties of a namespace after a change. Raises ``ValueError`` if one is both removed and set."""
        return self._get_updated_props_and_update_summary(properties, removals, updates)
