"""What a manifest says of the values in a data file, from the footer of the file.

pyiceberg has a function for it, which is not used: it converts values to Python's (and fails for dates after
the year 9999), increments texts to surrogates, takes what some row groups say for all of them, and knows
nothing of NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

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
        if isinstance(kind, FloatType | DoubleType):
            if path not in nans:
                continue
            nan_values[field_id] = nans[path]
        if mode.type == MetricModeTypes.COUNTS or not _is_comparable(kind, units, path):
            continue
        if (found := _extremes(chunks, counts, kind)) is not None:
            least, most = found[0], found[1]
            if isinstance(kind, StringType | BinaryType) and mode.length is not None:
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


def _is_comparable(kind: PrimitiveType, units: Any, path: str) -> bool:
    """Whether the footer's minimum and maximum are bounds for all readers."""
    if isinstance(kind, TimeType | TimestampType | TimestamptzType):
        return bool(units.field(path).type.unit == "us")
    # Iceberg's Java library has ordered UUIDs as signed numbers.
    return not isinstance(kind, UUIDType)


def _extremes(
    chunks: Sequence[pq.ColumnChunkMetaData], nulls: Sequence[int | None], kind: PrimitiveType
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


def _plain(raw: Any, kind: PrimitiveType) -> Any:
    """A physical value in the form that pyiceberg encodes: numbers for dates and times."""
    match kind:
        case DecimalType():
            unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
            return unscaled_to_decimal(unscaled, kind.scale)
        case StringType():
            return raw.decode()
    return raw


def _above(value: Any, length: int) -> Any:
    """A value of at most this length that is not less than the text or the bytes; ``None``: there is none."""
    if len(value) <= length:
        return value
    for place in reversed(range(length)):
        if isinstance(value, bytes):
            if value[place] < 0xFF:
                return value[:place] + bytes([value[place] + 1])
        elif (code := ord(value[place]) + 1) <= _LAST_CHARACTER:
            return value[:place] + chr(_SURROGATES.stop if code in _SURROGATES else code)
    return None


def _offset(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    pages: list[int] = [first.data_page_offset]
    if first.has_dictionary_page and first.dictionary_page_offset is not None:
        pages.append(first.dictionary_page_offset)
    return min(pages)
