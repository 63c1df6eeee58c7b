"""How a job reports its files to the commit.

Each table format has its own kind of list. A short list is stored in the job's record: the commit then reads
only etcd, and a job with one file writes one object. A longer one is a separate file, the job's *manifest*,
and the record names it.

pyiceberg has a function for it, which is not used: it converts values to Python's (and fails for dates after
the year 9999), increments texts to surrogates, takes what some row groups say for all of them, and knows
nothing of NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b85encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.utils.decimal import unscaled_to_decimal

from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import PartitionKey, PartitionValues, columns_in_files, never_empty
from distop.lake.layout.staging import PRIVATE
from distop.lake.writing.manifests import ManifestBuilder, summaries_to_json
from distop.lake.writing.sorting import keys_of

_SURROGATES = range(0xD800, 0xE000)
_LAST_CHARACTER = 0x10FFFF


def statistics_of(
    footer: pq.FileMetaData,
    plan: Mapping[int, StatisticsCollector],
    ids: Mapping[str, int],
    nans: Mapping[str, int],
) -> dict[str, Any]:
    """The statistics, as fields of pyiceberg's ``DataFile``. A bound or a count that the footer does not
    prove for all rows is left out.

    Minimum and maximum leave NaN out, so there are no bounds without its count: engines take a missing count
    for no NaN, and remove a file unread if the other values are all to be deleted.

    Parameters
    ----------
    plan:
        What is collected of each column, by its id.
    ids:
        Path of a column in the file -> its id.
    nans:
        How many values of a column are NaN, for each top-level column of floats where that is known.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    units = footer.schema.to_arrow_schema()
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    nan_values: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for position in range(footer.num_columns):
        chunks = [group.column(position) for group in groups]
        path = footer.schema.column(position).path
        column = plan[field_id := ids[path]]
        kind, mode = column.iceberg_type, column.mode
        sizes[field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if mode.type == MetricModeTypes.NONE:
            continue
        values[field_id] = sum(chunk.num_values for chunk in chunks)
        counts = [_nulls(chunk) for chunk in chunks]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            nulls[field_id] = sum(known)
        if isinstance(kind, iceberg.FloatType | iceberg.DoubleType):
            if path not in nans:
                continue
            nan_values[field_id] = nans[path]
        if mode.type == MetricModeTypes.COUNTS or not _is_comparable(kind, units, path):
            continue
        if (extremes := _extremes(chunks, counts, kind)) is not None:
            least, most = extremes[0], extremes[1]
            if isinstance(kind, iceberg.StringType | iceberg.BinaryType) and mode.length is not None:
                least, most = least[: mode.length], _above(most, mode.length)
            lower[field_id] = to_bytes(kind, least)
            if most is not None:
                upper[field_id] = to_bytes(kind, most)
    return {
        "record_count": footer.num_rows,
        "column_sizes": sizes,
        "value_counts": values,
        "null_value_counts": nulls,
        "nan_value_counts": nan_values,
        "lower_bounds": lower,
        "upper_bounds": upper,
        "split_offsets": sorted(map(_offset, groups)),
    }


def _nulls(chunk: pq.ColumnChunkMetaData) -> int | None:
    known = chunk.statistics
    return known.null_count if known is not None and known.has_null_count else None


def _is_comparable(kind: iceberg.PrimitiveType, units: Any, path: str) -> bool:
    """Whether the footer's minimum and maximum are bounds for all readers."""
    if isinstance(kind, iceberg.TimeType | iceberg.TimestampType | iceberg.TimestamptzType):
        return bool(units.field(path).type.unit == "us")
    # Iceberg's Java library has ordered UUIDs as signed numbers.
    return not isinstance(kind, iceberg.UUIDType)


def _extremes(
    chunks: Sequence[pq.ColumnChunkMetaData], nulls: Sequence[int | None], kind: iceberg.PrimitiveType
) -> tuple[Any, Any] | None:
    """The least and the greatest value; ``None``: there is no value, or a row group does not say.

    Parquet keeps none of texts of more than 4 KiB, and Spark then no count of NULLs either.
    """
    ends: list[Any] = []
    for chunk, count in zip(chunks, nulls, strict=True):
        known = chunk.statistics
        if count == chunk.num_values:
            continue
        if known is None or known.min_raw is None or known.max_raw is None:
            return None
        ends += [_plain(known.min_raw, kind), _plain(known.max_raw, kind)]
    return (min(ends), max(ends)) if ends else None


def _plain(raw: Any, kind: iceberg.PrimitiveType) -> Any:
    """A physical value in the form that pyiceberg encodes: numbers for dates and times."""
    match kind:
        case iceberg.DecimalType():
            unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
            return unscaled_to_decimal(unscaled, kind.scale)
        case iceberg.StringType():
            return raw.decode()
    return raw


def _above(value: Any, length: int) -> Any:
    """A value of at most this length that is not less than the text or the bytes; ``None``: there is none."""
    if len(value) <= length:
        return value
    for position in reversed(range(length)):
        if isinstance(value, bytes):
            if value[position] < 0xFF:
                return value[:position] + bytes([value[position] + 1])
        elif (code := ord(value[position]) + 1) <= _LAST_CHARACTER:
            return value[:position] + chr(_SURROGATES.stop if code in _SURROGATES else code)
    return None


def _offset(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    pages: list[int] = [first.data_page_offset]
    if first.has_dictionary_page and first.dictionary_page_offset is not None:
        pages.append(first.dictionary_page_offset)
    return min(pages)


MAX_RESULT_BYTES = 600
"""Limit of a job's result: its record, of 1 KiB, also holds what jobs add."""
MAX_INLINE_BYTES = 560
"""Limit of a result with its list. Unlike other parts, a list cannot be omitted to make room."""


@dataclass(frozen=True)
class WrittenFile:
    """A complete data file."""

    path: str
    key: PartitionKey
    """The partition that its rows belong to."""
    size: int
    """Bytes of the file."""
    footer: pq.FileMetaData
    nans: Mapping[str, int]
    """How many values of a column are NaN, for each column of floats where that is known."""
    checksum: str = ""
    """``md5:<hex>``; empty unless :attr:`FileList.checksums` are wanted."""


class FileList(ABC):
    """The files of one attempt, in order of completion."""

    folder: ClassVar[str]
    """The folder of the manifest, below the table's location."""
    suffix: ClassVar[str]
    """Suffix of its name."""
    checksums: ClassVar[bool] = False
    """Whether the commit needs the checksum of each file."""
    never_empty: Sequence[str] = ()
    """Columns in which an empty text would become NULL."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the files."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether the list is empty."""

    @abstractmethod
    def add(self, file: WrittenFile) -> None:
        """List a file."""

    @abstractmethod
    def inline(self) -> dict[str, Any] | None:
        """The list as part of a job's result, or ``None`` if it is certainly too long."""

    @abstractmethod
    def write(self, io: FileIO, path: str) -> dict[str, Any]:
        """Write the list as a file; return its part of the result. ``partitions`` may be omitted."""


class PrivateFileList(FileList):
    """Files of a table whose partitions are folders, each described by a struct of its format. Readers of the
    table ignore the list."""

    folder: ClassVar[str] = PRIVATE

    def __init__(self, layout: Layout) -> None:
        kept = columns_in_files(layout.schema, layout.spec)
        whole = layout.arrow_schema
        self._schema = whole if len(kept) == len(whole) else pa.schema([whole.field(name) for name in kept])
        self._values = PartitionValues(layout.schema, layout.spec)
        self.never_empty = never_empty(layout.schema, layout.spec)
        self._files: list[Any] = []

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def empty(self) -> bool:
        return not self._files

    def inline(self) -> dict[str, Any] | None:
        return {"listed": msgspec.to_builtins(self._files)} if len(self._files) == 1 else None


def result_of(
    files: FileList, counts: dict[str, Any], io: FileIO, path: str, *, inline: bool
) -> dict[str, Any]:
    """A job's result: its counts, and its list or the path of it.

    Parameters
    ----------
    path:
        Path of the list if it does not fit, or may not be ``inline``.
    """
    held = files.inline() if inline else None
    if held is not None:
        whole = {**counts, **held}
        if len(msgspec.json.encode(whole)) <= MAX_INLINE_BYTES:
            return whole
    written = files.write(io, path)
    whole = {**counts, **written}
    if len(msgspec.json.encode(whole)) >= MAX_RESULT_BYTES:
        whole.pop("partitions", None)
    return whole


class IcebergFileList(FileList):
    """Data files with their statistics, as entries of an Iceberg manifest.

    A file is recorded as sorted only if it is. Those of one row group are sorted as the layout says.

    Parameters
    ----------
    in_order:
        Whether those of several row groups are, too.
    """

    folder = "metadata"
    suffix = ".avro"

    def __init__(self, layout: Layout, *, in_order: bool = False) -> None:
        self._layout = layout
        self._in_order = in_order
        self._sort_order_id = (
            layout.sort_order.order_id if keys_of(layout.sort_order, layout.schema) else None
        )
        self._statistics_plan = compute_statistics_plan(layout.schema, layout.properties)
        self._column_ids = parquet_path_to_id_mapping(layout.schema)
        self._manifest = ManifestBuilder(layout.schema, layout.spec)

    @property
    def schema(self) -> pa.Schema:
        return self._layout.arrow_schema

    @property
    def empty(self) -> bool:
        return self._manifest.empty

    def add(self, file: WrittenFile) -> None:
        described = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*file.key),
            file_size_in_bytes=file.size,
            sort_order_id=self._sort_order_id if self._in_order or file.footer.num_row_groups == 1 else None,
            equality_ids=None,
            key_metadata=None,
            **statistics_of(file.footer, self._statistics_plan, self._column_ids, file.nans),
        )
        self._manifest.add(described)

    def inline(self) -> dict[str, Any] | None:
        """``entries`` (Avro, compressed, in base 85), ``header`` (a digest of the manifest's header, to
        verify that the commit reads them correctly) and ``partitions``."""
        packed = self._manifest.packed_entries(MAX_INLINE_BYTES)
        if packed is None:
            return None
        return {
            "entries": b85encode(packed).decode(),
            "header": self._manifest.header_digest(),
            "partitions": summaries_to_json(self._manifest.summaries()),
        }

    def write(self, io: FileIO, path: str) -> dict[str, Any]:
        """``manifest`` (its name in the operation's folder), ``manifestLength``, ``partitions``."""
        written = self._manifest.write(io, path)
        return {
            "manifest": path.rpartition("/")[2],
            "manifestLength": written.manifest_length,
            "partitions": summaries_to_json(self._manifest.summaries()),
        }
