"""Conversion between columns of Spark and of Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as is_
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from distop.operations.arguments import invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TIME_OF_DAY = "spark.sql.timeType.enabled"
"""A Spark setting without which its readers, writers and queries refuse columns of times of day."""


def allow_times(session: SparkSession, schema: StructType) -> None:
    """Enable times of day in a session, if the columns contain any. It stays enabled: Spark reads lazily."""
    if "time(" in schema.simpleString():
        session.conf.set(TIME_OF_DAY, "true")


def arrow_schema(struct: StructType) -> pa.Schema:
    """The columns of a DataFrame in Arrow's types.

    Raises :class:`~distop.errors.InvalidArgument` with the column whose type Arrow does not have.
    """
    fields = []
    for column in struct:
        try:
            fields.append(pa.field(column.name, to_arrow_type(column.dataType, timezone="UTC")))
        except (PySparkException, ImportError):
            raise invalid(
                "schema",
                f"column {column.name!r}: values of type {column.dataType.simpleString()} cannot be written",
                "cast it to another type",
                column=column.name,
            ) from None
    return pa.schema(fields)


def spark_schema(schema: pa.Schema, field: str, hint: str) -> StructType:
    """The columns of a table or a source in Spark's types.

    All are nullable: a file that was written before a column became required may hold NULL.

    Raises :class:`~distop.errors.InvalidArgument` with the column whose type Spark does not have. ``field``
    selects the columns, ``hint`` says how.
    """
    fields = []
    for column in schema:
        plain_bytes = is_.is_fixed_size_binary(column.type) or isinstance(column.type, pa.UuidType)
        try:
            dtype = from_arrow_type(pa.binary() if plain_bytes else column.type, prefer_timestamp_ntz=True)
        except PySparkException:
            reason = f"column {column.name!r} has the type {column.type}, which Spark does not know"
            raise invalid(field, reason, hint) from None
        fields.append(StructField(column.name, dtype, True))
    return StructType(fields)
