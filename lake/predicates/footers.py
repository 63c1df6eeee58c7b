"""What the statistics in a Parquet footer prove: which row groups may hold a row that matches."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from distop.lake.predicates.binding import Column, Predicate
from distop.lake.predicates.proofs import Content, possible

_UNITS = {"microseconds": 1, "milliseconds": 1000}


def matching_groups(
    predicate: Predicate, footer: pq.FileMetaData, path_of: Callable[[int], str | None]
) -> list[int]:
    """The row groups of a file that may hold a row that matches.

    Parameters
    ----------
    path_of:
        Id of a column -> its dotted path in the file; ``None`` if the file does not have it.
    """
    places: dict[str, int] = {}
    for at in range(footer.num_columns):
        path = footer.schema.column(at).path
        places[path] = -1 if path in places else at

    def of_group(group: pq.RowGroupMetaData) -> Callable[[Column], Content]:
        def content(column: Column) -> Content:
            at = places.get(path_of(column.id) or "", -1)
            return Content(nans=column.is_float) if at < 0 else _of_chunk(group.column(at), column)

        return content

    return [
        number
        for number in range(footer.num_row_groups)
        if possible(predicate, of_group(footer.row_group(number)))
    ]


def _of_chunk(chunk: pq.ColumnChunkMetaData, column: Column) -> Content:
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return Content(nans=column.is_float)
    nulls = statistics.null_count if statistics.has_null_count else None
    none = nulls is not None and nulls == chunk.num_values
    least = greatest = None
    if statistics.has_min_max:
        least, greatest = _bounds(statistics, column)
    # Footers do not count NaN, and leave it out of the bounds.
    return Content(least, greatest, nulls=nulls != 0, nans=column.is_float and not none, values=not none)


def _bounds(statistics: Any, column: Column) -> tuple[Any, Any]:
    """The bounds as values of the column; nothing if the file has another type than the table expects."""
    logical = json.loads(statistics.logical_type.to_json())
    name, physical, kind = logical.get("Type", "None"), statistics.physical_type, column.kind
    factor: int | None = None
    match kind:
        case IntegerType() | LongType() if name == "None" or logical.get("isSigned"):
            factor = 1
        case DateType() if name == "Date":
            factor = 1
        case TimestampType() | TimestamptzType() if name == "Timestamp":
            factor = _UNITS.get(logical.get("timeUnit", ""))
        case DecimalType() if name == "Decimal":
            found = statistics.min, statistics.max
            return found if all(isinstance(one, Decimal) for one in found) else (None, None)
        case StringType() if name == "String":
            return statistics.min, statistics.max
        case BooleanType() if physical == "BOOLEAN":
            return statistics.min, statistics.max
        case _ if column.is_float and physical in ("FLOAT", "DOUBLE"):
            least, greatest = statistics.min, statistics.max
            return (least, greatest) if least == least and greatest == greatest else (None, None)
    if factor is None or physical not in ("INT32", "INT64"):
        return None, None
    return statistics.min_raw * factor, statistics.max_raw * factor
