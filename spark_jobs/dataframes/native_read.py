"""A snapshot's files for Spark's own Parquet reader.

That reader matches columns by name and ignores Iceberg's field ids and deletes. So it gets files only if that
makes no difference: none has deleted rows, and each has its columns, those of its partition included, under
the table's present names and types for their ids. The schema of each file, in the manifest that lists it,
shows whether that is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg import expressions as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType
from pyspark.sql import functions as f

from distop.commit.layout.partitioning import identity_columns
from distop.errors import InvalidArgument, PreconditionFailed
from distop.spark_jobs.dataframes.options import ReadOptions
from distop.spark_jobs.dataframes.read import find_snapshot, spark_columns
from distop.spark_jobs.dataframes.target import connect
from distop.spark_jobs.formats.spark_types import allow_times
from distop.spark_jobs.tables.snapshot import PlannedFile, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def native_frame(session: SparkSession, options: ReadOptions, columns: Sequence[str] | None) -> DataFrame:
    """The requested rows; raises as :func:`distop.spark_jobs.dataframes.api.read`."""
    with connect(options) as client:
        snapshot = find_snapshot(client, options)
    wanted = spark_columns(snapshot.projection(columns))
    expression = snapshot.expression(options.filter)
    files = snapshot.plan_files(expression)
    _check_schemas(snapshot)
    _check_columns(snapshot, files)
    if any(file.delete_files for file in files):
        raise PreconditionFailed(
            f"rows of {snapshot.metadata.location} are deleted by files that Spark's reader does not support",
            hint='read it with spark.read.format("distop")',
        )
    if not files:
        return session.createDataFrame([], wanted)
    columns_of_files = spark_columns(snapshot.schema)
    allow_times(session, columns_of_files)
    frame = session.read.schema(columns_of_files).parquet(*(file.path for file in files))
    if not isinstance(expression, iceberg.AlwaysTrue):
        frame = frame.where(as_column(expression, snapshot.schema))
    return frame.select(*(f"`{name}`" for name in wanted.fieldNames()))


def _check_schemas(snapshot: TableSnapshot) -> None:
    """Refuse a table whose columns have had other names or types."""
    present = {field.field_id: (field.name, field.field_type) for field in snapshot.schema.columns}
    names = {name: field_id for field_id, (name, _) in present.items()}
    for schema in snapshot.metadata.schemas:
        for field in schema.columns:
            now = present.get(field.field_id)
            if now not in (None, (field.name, field.field_type)) or names.get(field.name) not in (
                None,
                field.field_id,
            ):
                raise PreconditionFailed(
                    f"column {field.name!r} of {snapshot.metadata.location} had another name or type before",
                    hint='read it with spark.read.format("distop")',
                    details={"column": field.name},
                )


def _check_columns(snapshot: TableSnapshot, files: Sequence[PlannedFile]) -> None:
    """Refuse files that may lack a column of their partition: Spark's reader would take it for NULL."""
    specs = snapshot.metadata.specs()
    for file in files:
        lacking = identity_columns(specs[file.spec_id]).difference(file.data_file.value_counts or ())
        if named := sorted(name for one in lacking if (name := snapshot.schema.find_column_name(one))):
            raise PreconditionFailed(
                f"{file.path} may have no column {named[0]!r}, whose value is that of its partition",
                hint='read it with spark.read.format("distop")',
                details={"column": named[0]},
            )


_COMPARED = {
    iceberg.EqualTo: "__eq__",
    iceberg.NotEqualTo: "__ne__",
    iceberg.LessThan: "__lt__",
    iceberg.LessThanOrEqual: "__le__",
    iceberg.GreaterThan: "__gt__",
    iceberg.GreaterThanOrEqual: "__ge__",
    iceberg.StartsWith: "startswith",
}


def as_column(expression: iceberg.BooleanExpression, schema: Schema) -> Column:
    """A filter on the columns of a schema in Spark's form. In both, an unknown result excludes a row."""
    match expression:
        case iceberg.AlwaysTrue() | iceberg.AlwaysFalse():
            return f.lit(isinstance(expression, iceberg.AlwaysTrue))
        case iceberg.And():
            return as_column(expression.left, schema) & as_column(expression.right, schema)
        case iceberg.Or():
            return as_column(expression.left, schema) | as_column(expression.right, schema)
        case iceberg.Not():
            return ~as_column(expression.child, schema)
        case iceberg.UnboundPredicate():
            return _predicate(expression, schema)
    raise InvalidArgument(f"Spark has no {expression!r}", details={"field": "filter"})


def _predicate(expression: iceberg.UnboundPredicate, schema: Schema) -> Column:
    name = str(getattr(expression.term, "name", expression.term))
    column = f.col(f"`{name}`")
    found = _compared(expression, column)
    if not isinstance(schema.find_type(name), FloatType | DoubleType):
        return found
    match expression:
        case iceberg.GreaterThan() | iceberg.GreaterThanOrEqual():
            # For Spark, NaN is greater than all numbers.
            return found & ~f.isnan(column)
        case iceberg.NotEqualTo() | iceberg.NotIn():
            # Nothing new, but it keeps Spark from skipping row groups: their statistics leave NaN out.
            return found | f.isnan(column)
    return found


def _compared(expression: iceberg.UnboundPredicate, column: Column) -> Column:
    match expression:
        case iceberg.IsNull():
            return column.isNull()
        case iceberg.NotNull():
            return column.isNotNull()
        case iceberg.IsNaN():
            return f.isnan(column)
        case iceberg.NotNaN():
            return ~f.isnan(column)
        case iceberg.In() | iceberg.NotIn():
            found = column.isin([literal.value for literal in expression.literals])
            return found if isinstance(expression, iceberg.In) else ~found
        case iceberg.NotStartsWith():
            return ~column.startswith(expression.literal.value)
    for kind, method in _COMPARED.items():
        if isinstance(expression, kind):
            compared: Column = getattr(column, method)(expression.literal.value)
            return compared
    raise InvalidArgument(f"Spark has no {expression!r}", details={"field": "filter"})
