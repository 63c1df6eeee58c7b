"""Sorts rows in memory as an Iceberg sort order has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, NestedField, PrimitiveType, UUIDType


class Key:
    """One column to sort by, as an Iceberg sort order has it.

    Parameters
    ----------
    descending, nulls_first:
        NaN is the largest number, and ``nulls_first`` places NULL, in both directions.
    """

    def __init__(self, column: str, *, descending: bool = False, nulls_first: bool = True) -> None:
        self.column = column
        self.descending = descending
        self.nulls_first = nulls_first

    def arrays(self, rows: pa.Table) -> list[tuple[Any, str]]:
        """Columns that Arrow can sort in its own way, with the direction of each."""
        values = rows.column(self.column)
        direction = "descending" if self.descending else "ascending"
        parts = []
        if values.null_count:
            parts.append(
                (pc.is_null(values).cast(pa.int8()), "descending" if self.nulls_first else "ascending")
            )
        if pa.types.is_floating(values.type):
            # Arrow puts NaN at the end in both directions.
            parts.append((pc.is_nan(values).fill_null(False).cast(pa.int8()), direction))
        return [*parts, (values, direction)]


def positions(rows: pa.Table, keys: Sequence[Key]) -> Any:
    """The positions of the rows that come first, second, ...; equal ones in any order."""
    arrays = [part for key in keys for part in key.arrays(rows)]
    names = [str(number) for number in range(len(arrays))]
    sorting = pa.table([array for array, _ in arrays], names=names)
    return pc.sort_indices(
        sorting, sort_keys=[(name, order) for name, (_, order) in zip(names, arrays, strict=True)]
    )


def has_order(column: NestedField) -> bool:
    """Whether rows can be sorted by a column."""
    kind = column.field_type
    return isinstance(kind, PrimitiveType) and not isinstance(kind, UUIDType | FixedType)


def keys_of(order: SortOrder, schema: Schema) -> list[Key] | None:
    """Sort keys for rows of a schema in that order; ``None`` if rows cannot be sorted so: by nested columns,
    by types without an order here, by transforms."""
    columns = {column.field_id: column for column in schema.columns}
    keys = []
    for field in order.fields:
        column = columns.get(field.source_id)
        if column is None or not has_order(column) or not isinstance(field.transform, IdentityTransform):
            return None
        keys.append(
            Key(
                column.name,
                descending=field.direction == SortDirection.DESC,
                nulls_first=field.null_order == NullOrder.NULLS_FIRST,
            )
        )
    return keys
