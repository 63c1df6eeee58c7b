"""The private names of pyiceberg that read and write data files through Arrow: no other module touches one.

Apart from :mod:`distop.lake.pyiceberg_private`, since loading Arrow takes long, and many processes need only
the metadata of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, pyarrow
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Properties


def schema_without_ids(schema: pa.Schema) -> Schema:
    """The Iceberg schema of an Arrow schema; its fields have no ids yet."""
    return pyarrow._pyarrow_to_schema_without_ids(schema, downcast_ns_timestamp_to_us=True)


def parquet_options(properties: Properties) -> dict[str, Any]:
    """Arguments for pyarrow's Parquet writer from the properties of a table."""
    return pyarrow._get_parquet_writer_kwargs(properties)


def scan_of(metadata: TableMetadata, io: FileIO, columns: Schema) -> pyarrow.ArrowScan:
    """A scan of all rows.

    Parquet files of every scan in this process are then read with times in INT96, which older programs write,
    as microseconds: pyiceberg takes nanoseconds, which reach from 1677 to 2262, and makes other times of
    those beyond.
    """
    pyiceberg_arrow._get_file_format = _file_format
    return pyarrow.ArrowScan(metadata, io, columns, AlwaysTrue())


@lru_cache
def _file_format(file_format: FileFormat, **options: Any) -> ds.FileFormat:
    if file_format == FileFormat.PARQUET:
        return ds.ParquetFileFormat(coerce_int96_timestamp_unit="us", **options)
    if file_format == FileFormat.ORC:
        return ds.OrcFileFormat()
    raise ValueError(f"Unsupported file format: {file_format}")


def batches_of(
    scan: pyarrow.ArrowScan,
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
    if groups_of is None or task.delete_files or task.file.file_format != FileFormat.PARQUET:
        # Delete files count rows from the beginning of the file.
        yield from scan._record_batches_from_scan_tasks_and_deletes(
            [task], pyarrow._read_all_delete_files(io, [task])
        )
        return
    yield from _of_groups(scan, io, task, groups_of)


def _of_groups(
    scan: pyarrow.ArrowScan,
    io: FileIO,
    task: FileScanTask,
    groups_of: Callable[[pq.FileMetaData, Schema], Sequence[int]],
) -> Iterator[pa.RecordBatch]:
    """As pyiceberg's ``_task_to_record_batches``, which can only leave row groups out by Arrow's own proofs:
    these ignore NaN."""
    metadata, projected = scan._table_metadata, scan._projected_schema
    in_micros = scan._downcast_ns_timestamp_to_us
    if in_micros is None:
        in_micros = metadata.format_version <= 2
    kind = _file_format(FileFormat.PARQUET, pre_buffer=True, buffer_size=8 << 20)
    with io.new_input(task.file.file_path).open() as file:
        fragment = kind.make_fragment(file)
        physical = fragment.physical_schema
        columns = pyarrow.pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=in_micros,
            format_version=metadata.format_version,
        )
        missing = pyarrow._get_column_projection_values(
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
                yield pyarrow._to_requested_schema(
                    projected,
                    wanted,
                    batch,
                    downcast_ns_timestamp_to_us=in_micros,
                    projected_missing_fields=missing,
                    allow_timestamp_tz_mismatch=True,
                )
