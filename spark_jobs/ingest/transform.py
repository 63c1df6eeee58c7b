"""The DataFrame of an ingest with ``transform``: a query over what the files hold.

The files are read as any ingest reads them: the same frozen list of files and splits, the same types, the
same errors. Spark's own readers differ in all of these (what stands for NULL, how a time is written, what a
row with too few values means). So ``source`` is a DataFrame whose partitions are the splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from distop.errors import InvalidArgument, JobFailed
from distop.executor.launch.launch import NeedsSpark
from distop.metastore.records.model import OperationArg, decode, encode
from distop.operations.job import JobContext
from distop.spark_jobs.formats.bad_rows import Fail
from distop.spark_jobs.formats.types import convert
from distop.spark_jobs.ingest.frame_job import check_columns
from distop.spark_jobs.ingest.job import SplitReader
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.ingest.rows import Conversion, Converted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

VIEW = "source"
"""What the query calls the files' rows."""
BATCH_ROWS = 1 << 16


def transformed(session: SparkSession | None, operation: OperationArg) -> DataFrame:
    """What the query makes of the files.

    Raises
    ------
    InvalidArgument
        It is no query that Spark understands, or its rows do not fit the table.
    NeedsSpark
        There is no Spark here.
    """
    if session is None:
        raise NeedsSpark(f"{operation.id} transforms its rows with Spark SQL")
    from pyspark.errors import AnalysisException

    plan = IngestPlan.of(operation)
    # A session of its own: views, settings and functions of other operations have no place in it.
    own = session.newSession()
    source_of(own, operation).createOrReplaceTempView(VIEW)
    try:
        # As a subquery it can be nothing but a query: no statement that changes something.
        frame = own.sql(f"SELECT * FROM (\n{plan.transform}\n)")
        given = arrow_schema(frame.schema)
    except AnalysisException as error:
        raise InvalidArgument(
            f"Spark does not take the query: {_first_lines(str(error))}", details={"field": "transform"}
        ) from None
    check_columns(given, plan.table_layout.arrow_schema)
    return frame


def source_of(session: SparkSession, operation: OperationArg) -> DataFrame:
    """What the files of an ingest hold, a partition for each split."""
    plan = IngestPlan.of(operation)
    schema = spark_schema(plan.source_columns)
    splits = len(plan.cuts) - 1
    numbered = session.range(0, splits, 1, splits)
    return numbered.mapInArrow(_ReadSplits(encode(operation)), schema)


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's types of a source's columns.

    Raises :class:`~distop.errors.InvalidArgument` for those that Spark does not have.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    made = StructType()
    for field in schema:
        try:
            made = made.add(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True))
        except PySparkException:
            raise InvalidArgument(
                f"column {field.name!r}: Spark has no type for {field.type}",
                hint="give it another one with schema, such as string",
                details={"field": "schema"},
            ) from None
    return made


def arrow_schema(schema: StructType) -> pa.Schema:
    """Arrow's view of a DataFrame's columns.

    Raises :class:`~distop.errors.InvalidArgument` for types that have none.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")))
        except (PySparkException, ImportError):
            raise InvalidArgument(
                f"column {field.name!r}: values of type {field.dataType.simpleString()} cannot be written",
                hint="cast it to another type",
            ) from None
    return pa.schema(fields)


def _first_lines(text: str) -> str:
    """Without the plan that Spark shows behind."""
    return " ".join(text.partition("\n\n")[0].partition(";\n")[0].split())[:600]


@dataclass(frozen=True)
class _ReadSplits:
    """A function over the numbers of splits; gives their rows. Runs in Spark's workers."""

    operation: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        operation = decode(self.operation, OperationArg)
        rows = SourceRows(IngestPlan.of(operation))
        for batch in batches:
            for split in batch.column(0).to_pylist():
                for table in split_rows(operation, split, rows):
                    yield from table.to_batches(max_chunksize=BATCH_ROWS)


def split_rows(
    operation: OperationArg, split: int, conversion: Conversion | None = None
) -> Iterator[pa.Table]:
    """The rows of one split; as rows of the table, or what ``conversion`` makes of them."""
    plan = IngestPlan.of(operation)
    reader = SplitReader(plan, Fail(), _Reading(operation, str(split)), conversion)
    with closing(reader.rows()) as blocks:
        for block in blocks:
            yield block.table


class SourceRows:
    """Rows as they are read, in the types that Spark takes."""

    def __init__(self, plan: IngestPlan) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(spark_schema(plan.source_columns), timezone="UTC")

    def none(self) -> pa.Table:
        """No rows."""
        return self._schema.empty_table()

    def of(self, source: pa.Table) -> Converted:
        """Rows for Spark; see :meth:`distop.spark_jobs.ingest.job.TableRows.of`."""
        columns = [convert(source.column(field.name), field.type, field.name) for field in self._schema]
        return Converted(source.num_rows, pa.table(columns, schema=self._schema))


class _Reading(JobContext):
    """Of a task that only reads: Spark ends it when nobody wants its rows."""

    def __init__(self, operation: OperationArg, partition: str) -> None:
        self.operation, self.partition, self.attempt, self.run_token = operation, partition, "", 0

    def load_checkpoint(self) -> bytes | None:
        return None

    def save_checkpoint(self, value: bytes) -> None:
        raise JobFailed("reading keeps no checkpoints")

    @property
    def cancelled(self) -> bool:
        return False
