"""The DataFrame of an ingest with ``transform``: a query over the content of the files.

The files are read as by any ingest: the same frozen list of files and splits, the same types, the same
errors. Spark's own readers differ in all of these (which texts mean NULL, how a time is written, what a row
with too few values means). So ``source`` is a DataFrame whose partitions are the splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from distop.errors import InvalidArgument
from distop.executor.launch.launch import NeedsSpark
from distop.lake.storage.allowed import adopt, lists
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode, encode
from distop.sources.formats.bad_rows import Fail
from distop.sources.formats.conversion import check_columns
from distop.spark_jobs.ingest.job import FilesSplit
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.ingest.rows import Conversion, GoodRows
from distop.spark_jobs.rules.query import check_query
from distop.spark_jobs.spark_types import arrow_schema, spark_schema

VIEW = "source"
"""The query's name for the files' rows."""
BATCH_ROWS = 1 << 16


def transformed(session: SparkSession | None, operation: OperationArg) -> DataFrame:
    """The result of the query on the files.

    Raises
    ------
    InvalidArgument
        It is not a valid Spark query, it is more than a query over the files, or its rows do not fit the
        table.
    NeedsSpark
        There is no Spark here.
    """
    if session is None:
        raise NeedsSpark(f"{operation.id} transforms its rows with Spark SQL")
    plan = IngestPlan.of(operation)
    # A separate session: views, settings and functions of other operations must not affect it.
    own = session.newSession()
    source_of(own, operation).createOrReplaceTempView(VIEW)
    try:
        # As a subquery it can only be a query: no statement that changes something.
        sql = f"SELECT * FROM (\n{plan.transform}\n)"
        check_query(own, sql, VIEW)
        frame = own.sql(sql)
        given = arrow_schema(frame.schema)
    except AnalysisException as error:
        raise InvalidArgument(
            f"Spark rejects the query: {_first_lines(str(error))}", details={"field": "transform"}
        ) from None
    check_columns(given, plan.table_layout.arrow_schema)
    return frame


def source_of(session: SparkSession, operation: OperationArg) -> DataFrame:
    """The rows of an ingest's files, a partition for each split."""
    plan = IngestPlan.of(operation)
    schema = _types_of_source(plan)
    splits = len(plan.cuts) - 1
    numbered = session.range(0, splits, 1, splits)
    return numbered.mapInArrow(_ReadSplits(encode(operation)), schema)


def _first_lines(text: str) -> str:
    """Without the plan that Spark appends."""
    return " ".join(text.partition("\n\n")[0].partition(";\n")[0].split())[:600]


@dataclass(frozen=True)
class _ReadSplits:
    """A function over the numbers of splits; yields their rows. Runs in Spark's workers."""

    operation: bytes
    allowed: Mapping[str, str] = field(default_factory=lists)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        adopt(self.allowed)
        operation = decode(self.operation, OperationArg)
        plan = IngestPlan.of(operation)
        schema = to_arrow_schema(_types_of_source(plan), timezone="UTC")
        rows = Conversion(schema, schema.names)
        for batch in batches:
            for split in batch.column(0).to_pylist():
                for table in split_rows(operation, split, rows):
                    yield from table.to_batches(max_chunksize=BATCH_ROWS)


def split_rows(
    operation: OperationArg, split: int, conversion: Conversion | None = None
) -> Iterator[pa.Table]:
    """The rows of one split; as rows of the table, or as ``conversion`` returns them."""
    plan = IngestPlan.of(operation)

    def look() -> None:
        """Spark ends a task itself when its rows are not needed."""

    rows = GoodRows(conversion or Conversion.to_table(plan), Fail(), look)
    with closing(FilesSplit(plan, str(split), rows, look).rows()) as blocks:
        for block in blocks:
            yield block.table


def _types_of_source(plan: IngestPlan) -> StructType:
    return spark_schema(plan.source_columns, "schema", "give it another type with --schema, such as string")
