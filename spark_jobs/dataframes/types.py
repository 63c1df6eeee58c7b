"""Columns of Spark and columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as is_

from distop.errors import InvalidArgument
from distop.spark_jobs.formats.types import UnsupportedType, table_type

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql.types import StructType


def arrow_schema_of(struct: StructType) -> pa.Schema:
    """A DataFrame's schema as Arrow has it.

    Raises :class:`~distop.errors.InvalidArgument` that names the column of a type that Arrow lacks.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for column in struct.fields:
        try:
            fields.append(
                pa.field(column.name, to_arrow_type(column.dataType, timezone="UTC"), column.nullable)
            )
        except PySparkTypeError as error:
            raise _bad(column.name, f"{column.dataType.simpleString()} has no place in a table") from error
    return pa.schema(fields)


def table_columns(frame: pa.Schema) -> pa.Schema:
    """The columns that a new table for these rows has.

    All are optional: that some rows hold no NULL does not mean that none ever will.
    """
    fields = []
    for column in frame:
        try:
            dtype = table_type(column.type)
        except UnsupportedType as error:
            raise _bad(column.name, str(error)) from error
        fields.append(pa.field(column.name, dtype))
    return pa.schema(fields)


def check_writable(frame: pa.Schema, table: pa.Schema) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless every row of ``frame`` can be one of ``table``.

    Columns go by name. Values may become wider (an int a long, a float a double), never narrower.
    """
    names = set(table.names)
    for name in frame.names:
        if frame.names.count(name) > 1:
            raise _bad(name, "the DataFrame has two columns of this name")
        if name not in names:
            similar = [other for other in table.names if other.lower() == name.lower()]
            hint = (
                f"; the table's is called {similar[0]!r}" if similar else f"; it has {', '.join(table.names)}"
            )
            raise _bad(name, f"the table has no such column{hint}")
    for column in table:
        if column.name not in frame.names:
            raise _bad(column.name, "the table has this column, the DataFrame does not")
        given = frame.field(column.name).type
        if not widens(given, column.type):
            raise _bad(
                column.name, f"{given} in the DataFrame cannot become {column.type} in the table without loss"
            )


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of ``given`` has an equal one in ``wanted``."""
    try:
        given = table_type(given)
    except UnsupportedType:
        return False
    target = wanted if is_.is_fixed_size_binary(wanted) else table_type(wanted)
    if given.equals(target):
        return True
    if is_.is_integer(given):
        return bool(is_.is_integer(target) and target.bit_width >= given.bit_width)
    if is_.is_floating(given):
        return bool(is_.is_floating(target) and target.bit_width >= given.bit_width)
    if is_.is_decimal(given):
        same = is_.is_decimal(target) and target.scale == given.scale
        return bool(same and target.precision >= given.precision)
    if is_.is_large_binary(given):
        # Rows whose value has another length are refused when they come.
        return bool(is_.is_fixed_size_binary(target))
    if is_.is_large_list(given):
        return bool(is_.is_large_list(target) and widens(given.value_type, target.value_type))
    if is_.is_map(given) and is_.is_map(target):
        return widens(given.key_type, target.key_type) and widens(given.item_type, target.item_type)
    if is_.is_struct(given) and is_.is_struct(target):
        names = [field.name for field in given]
        return names == [field.name for field in target] and all(
            widens(given.field(name).type, target.field(name).type) for name in names
        )
    return False


def spark_schema(schema: Schema) -> StructType:
    """The columns of a table as Spark has them.

    Raises :class:`~distop.errors.InvalidArgument` that names the column of a type that Spark lacks.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for column in schema_to_pyarrow(schema, include_field_ids=False):
        try:
            dtype = from_arrow_type(_readable(column.type), prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise InvalidArgument(
                f"column {column.name!r} has the type {column.type}, which Spark does not know",
                hint="read other columns, with the option columns",
                details={"field": "columns"},
            ) from error
        # Nullable: a file that was written before a column became required may hold nulls.
        fields.append(StructField(column.name, dtype, True))
    return StructType(fields)


def _readable(dtype: pa.DataType) -> pa.DataType:
    """Fixed bytes and UUIDs are plain bytes to Spark."""
    if is_.is_fixed_size_binary(dtype) or isinstance(dtype, pa.UuidType):
        return pa.binary()
    return dtype


def as_spark(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Rows of a table in the very types that Spark asks for."""
    columns = []
    for field in wanted:
        column = batch.column(field.name)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _bad(column: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"column {column!r}: {reason}", details={"field": "schema", "column": column})
