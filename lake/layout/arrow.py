"""Iceberg schemas from Arrow schemas."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.schema import Schema

from distop.lake.layout.schemas import bad_schema
from distop.lake.pyiceberg_arrow import schema_without_ids


def from_arrow(schema: pa.Schema) -> Schema:
    """The Iceberg schema for rows of an Arrow schema, without field ids.

    Raises :class:`~distop.errors.InvalidArgument` if Iceberg has no such type.
    """
    widened = pa.schema([column.with_type(_widened(column.type)) for column in schema])
    try:
        return schema_without_ids(widened)
    except UnsupportedPyArrowTypeException as error:
        column = error.field
        raise bad_schema(f"column {column.name!r}: Iceberg has no type {column.type}", column.name) from error
    except (TypeError, ValueError) as error:
        raise bad_schema(f"this cannot be an Iceberg schema: {error}", "") from error


def _widened(kind: pa.DataType) -> pa.DataType:
    """The Iceberg-compatible Arrow type that holds all values of ``kind``."""
    if pa.types.is_uint32(kind):
        return pa.int64()
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _widened(kind.value_type)
    return kind
