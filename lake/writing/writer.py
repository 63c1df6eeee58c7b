"""Writes a job's rows: Parquet files in their final place, and one manifest that lists them.

Nothing is visible before a snapshot adopts the manifest, so publishing copies nothing. Memory and open files
are bounded for any rows: rows are buffered per partition until there are enough for a row group, and the
fullest buffers and files are closed first when there are too many.

A dictionary of values that rarely repeat costs more than it saves: it holds all of them, and each row has an
index as well, which does not compress. Parquet's writers notice only when the dictionary exceeds its limit.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_int

from distop.errors import BadRow, InvalidArgument
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.partitioning import Partitioner, PartitionKey
from distop.lake.pyiceberg_arrow import parquet_options
from distop.lake.storage.storage import StorageOptions
from distop.lake.storage.stored_file import Md5Writer
from distop.lake.writing.casts import check_never_empty, checked_cast
from distop.lake.writing.file_lists import FileList, IcebergFileList, WrittenFile, result_of
from distop.lake.writing.sorting import keys_of, positions
from distop.metastore.crashpoints import reached

MIN_ROWS = 1_000
"""With fewer rows every column gets a dictionary."""
SAMPLE_ROWS = 1 << 16
"""How many of a file's first rows are tried."""
TOLERANCE = 1.05
"""A dictionary may be larger by this factor: readers that look for a value can skip row groups by it."""


def encodings_for(rows: pa.Table, options: Mapping[str, Any]) -> dict[str, Any]:
    """Further arguments for pyarrow's Parquet writer for a file that begins with these rows.

    Integers and times without a dictionary are delta-encoded.
    """
    if rows.num_rows < MIN_ROWS:
        return {}
    sample = rows.slice(0, SAMPLE_ROWS)
    differences = dict(_differences(sample.schema))
    with_dictionary = _leaf_sizes(sample, options)
    without = _leaf_sizes(sample, {**options, "use_dictionary": False, "column_encoding": differences})
    better = [leaf for leaf, size in with_dictionary.items() if size <= without[leaf] * TOLERANCE]
    chosen = {leaf: encoding for leaf, encoding in differences.items() if leaf not in better}
    return {"use_dictionary": better, "column_encoding": chosen or None}


def _differences(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    for column in schema:
        if pa.types.is_integer(column.type) or pa.types.is_temporal(column.type):
            yield column.name, "DELTA_BINARY_PACKED"


def _leaf_sizes(rows: pa.Table, options: Mapping[str, Any]) -> dict[str, int]:
    """Size of each column in bytes; of a nested one, of each leaf."""
    file = io.BytesIO()
    with pq.ParquetWriter(file, rows.schema, store_decimal_as_integer=True, **options) as writer:
        writer.write_table(rows, row_group_size=rows.num_rows)
    group = writer.writer.metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema: column.total_compressed_size for column in columns}


log = logging.getLogger(__name__)

ROW_GROUP_BYTES = 64 << 20
"""Rows of a partition are written once they take this much memory."""
BUFFER_BYTES = 128 << 20
"""Most memory for all buffered rows of a writer."""
MAX_OPEN_FILES = 64


@dataclass
class _OpenFile:
    """A Parquet file being written."""

    path: str
    stream: Any
    parquet: pq.ParquetWriter
    nans: dict[str, int]
    """How many values are NaN, of each column of floats. Parquet does not count them."""

    def write(self, table: pa.Table) -> None:
        """Write a row group."""
        self.parquet.write_table(table, row_group_size=max(1, table.num_rows))
        for name in self.nans:
            self.nans[name] += pc.sum(pc.is_nan(table[name])).as_py() or 0

    def size(self) -> int:
        return int(self.stream.tell())


@dataclass
class _Partition:
    """Buffered rows of one partition."""

    key: PartitionKey
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0


class StagedWriter:
    """Writes the rows of one job.

    As a context manager it aborts when its block raises. ``finish`` ends it; ``abort`` may follow even then,
    when the job turns out to have lost.

    Parameters
    ----------
    layout:
        The recorded layout of the table; rows must match its schema.
    path_for:
        ``path_for(suffix, folder)`` names a file of this attempt, as ``JobContext.staging_path`` does:
        suffixes are like ``-0.parquet`` and ``.avro``, folders ``data`` and ``metadata``.
    storage:
        The table's storage options.
    files:
        The list that receives the files; default: that of Iceberg tables.
    data_folder:
        The folder for the files.
    inline:
        Whether the result may contain the list itself.
    in_order:
        Whether the rows come in the layout's sort order; otherwise each row group is sorted.
    target_file_bytes:
        A file is closed once it is this large on disk; default: the table's
        ``write.target-file-size-bytes``.
    """

    def __init__(
        self,
        layout: Layout,
        path_for: Callable[[str, str], str],
        *,
        storage: StorageOptions | None = None,
        files: FileList | None = None,
        data_folder: str = "data",
        inline: bool = False,
        in_order: bool = False,
        target_file_bytes: int | None = None,
        row_group_bytes: int = ROW_GROUP_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> None:
        self._path_for = path_for
        self._list = files or IcebergFileList(layout, in_order=in_order)
        self._sort_keys = None if in_order else keys_of(layout.sort_order, layout.schema)
        self._data_folder, self._inline = data_folder, inline
        self._manifest_path = path_for(self._list.suffix, self._list.folder)
        self._io: FileIO = file_io(self._manifest_path, storage)
        self._target_file_bytes = target_file_bytes or table_file_bytes(layout)
        self._row_group_bytes = row_group_bytes
        self._buffer_bytes = buffer_bytes
        self._max_open_files = max_open_files
        self._arrow_schema = layout.arrow_schema
        self._required = [column.name for column in layout.schema.columns if column.required]
        self._partitioner = Partitioner(layout.schema, layout.spec)
        self._parquet_options = parquet_options(layout.properties)
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._waiting_bytes = 0
        self._open: dict[PartitionKey, _OpenFile] = {}
        self._paths: list[str] = []
        self._ended = False
        self.rows = 0
        """Rows taken so far."""
        self.bytes = 0
        """Bytes of the files closed so far."""
        self.files = 0
        """Files closed so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()

    # -- rows ------------------------------------------------------------------------------------------

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Write rows.

        Raises
        ------
        InvalidArgument
            The columns do not match the table's.
        BadRow
            A required column holds a null, or a value that its type cannot hold.
        """
        if self._ended:
            raise RuntimeError("this writer has ended")
        for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
            if batch.num_rows:
                self._take(self._conformed(batch))

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        wanted = self._arrow_schema
        if batch.schema.names != wanted.names:
            if sorted(batch.schema.names) != sorted(wanted.names):
                raise InvalidArgument(
                    f"rows have the columns {', '.join(batch.schema.names)}, "
                    f"the table has {', '.join(wanted.names)}",
                    details={"field": "schema"},
                )
            batch = batch.select(wanted.names)
        for name in self._required:
            if nulls := batch.column(name).null_count:
                raise BadRow(f"column {name!r} is required, but {nulls} rows have no value for it")
        if batch.schema.equals(wanted):
            return batch
        try:
            columns = [
                checked_cast(array, column.type) for array, column in zip(batch.columns, wanted, strict=True)
            ]
        except pa.ArrowInvalid as error:
            raise BadRow(f"rows do not fit the table's types: {error}") from error
        except pa.ArrowNotImplementedError as error:
            raise InvalidArgument(
                f"rows do not fit the table's schema: {error}", details={"field": "schema"}
            ) from error
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _take(self, batch: pa.RecordBatch) -> None:
        try:
            check_never_empty(batch, self._list.never_empty)
        except pa.ArrowInvalid as error:
            raise BadRow(str(error), hint="write NULL, or another text") from None
        self.rows += batch.num_rows
        for key, rows in self._partitioner.split(batch):
            partition = self._partitions.get(key)
            if partition is None:
                partition = self._partitions[key] = _Partition(key)
            size = rows.nbytes
            partition.waiting.append(rows)
            partition.waiting_bytes += size
            self._waiting_bytes += size
            if partition.waiting_bytes >= self._row_group_bytes:
                self._flush(partition)
        while self._waiting_bytes > self._buffer_bytes:
            self._flush(max(self._partitions.values(), key=lambda partition: partition.waiting_bytes))

    # -- files -----------------------------------------------------------------------------------------

    def _flush(self, partition: _Partition) -> None:
        """Write the buffered rows of a partition as one row group."""
        table = pa.Table.from_batches(partition.waiting, self._arrow_schema)
        if self._list.schema is not self._arrow_schema:
            table = table.select(self._list.schema.names)
        if self._sort_keys:
            table = table.take(positions(table, self._sort_keys))
        file = self._open.get(partition.key)
        if file is None:
            if len(self._open) >= self._max_open_files:
                self._close(max(self._open, key=lambda key: self._open[key].size()))
            file = self._open[partition.key] = self._new_file(table)
        file.write(table)
        self._waiting_bytes -= partition.waiting_bytes
        partition.waiting, partition.waiting_bytes = [], 0
        if file.size() >= self._target_file_bytes:
            self._close(partition.key)

    def _new_file(self, first: pa.Table) -> _OpenFile:
        """A file that begins with these rows."""
        options = {**self._parquet_options, **encodings_for(first, self._parquet_options)}
        path = self._path_for(f"-{len(self._paths)}.parquet", self._data_folder)
        self._paths.append(path)
        stream: Any = self._io.new_output(path).create(overwrite=True)
        if self._list.checksums:
            stream = Md5Writer(stream)
        try:
            parquet = pq.ParquetWriter(stream, self._list.schema, store_decimal_as_integer=True, **options)
        except BaseException:
            stream.close()
            raise
        floats = (column.name for column in self._list.schema if pa.types.is_floating(column.type))
        return _OpenFile(path, stream, parquet, dict.fromkeys(floats, 0))

    def _close(self, key: PartitionKey) -> None:
        """Complete a partition's file and list it, described by the footer just written."""
        file = self._open[key]
        file.parquet.close()
        size = file.size()
        file.stream.close()
        del self._open[key]
        checksum = file.stream.content.checksum if self._list.checksums else ""
        footer = file.parquet.writer.metadata
        self._list.add(WrittenFile(file.path, key, size, footer, file.nans, checksum))
        self.files += 1
        self.bytes += size

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Complete all files, list them, and return the job's result.

        The result is JSON of less than 600 bytes: ``rows``, ``files``, ``bytes``, and for any files the
        result of their :class:`~distop.lake.writing.file_lists.FileList`. Without rows: no file and no
        list.
        """
        if self._ended:
            raise RuntimeError("this writer has ended")
        reached("job.file.before")
        for partition in self._partitions.values():
            if partition.waiting:
                self._flush(partition)
            if partition.key in self._open:
                self._close(partition.key)
        reached("job.file.middle")
        result: dict[str, Any] = {"rows": self.rows, "files": self.files, "bytes": self.bytes}
        if not self._list.empty:
            self._paths.append(self._manifest_path)
            result = result_of(self._list, result, self._io, self._manifest_path, inline=self._inline)
        self._ended = True
        reached("job.file.after")
        return result

    def abort(self) -> None:
        """Remove everything that this writer wrote; best effort, never raises, may be called again."""
        self._ended = True
        for file in self._open.values():
            for close in (file.parquet.close, file.stream.close):
                try:
                    close()
                except Exception as error:
                    log.warning("staged_file_not_closed", extra={"path": file.path, "error": str(error)})
            # Its finalizer would try again, on a closed stream.
            file.parquet.is_open = False
        self._open.clear()
        self._partitions.clear()
        self._waiting_bytes = 0
        left = []
        for path in self._paths:
            try:
                self._io.delete(path)
            except FileNotFoundError:
                pass
            except Exception as error:
                left.append(path)
                log.warning("staged_file_not_removed", extra={"path": path, "error": str(error)})
        self._paths = left


def table_file_bytes(layout: Layout) -> int:
    """Target size of a data file, from the table's properties."""
    size = property_as_int(
        layout.properties,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
    )
    return size or TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
