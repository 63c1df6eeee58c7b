"""One job of an ingest whose input is a DataFrame: the rows of one partition, converted and written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from distop.commit.layout.model import Layout
from distop.commit.outputs import output_of
from distop.errors import BadRow, InvalidArgument
from distop.metastore.records.model import OperationArg
from distop.operations.job import JobContext
from distop.operations.plans import plan_of
from distop.spark_jobs.formats.bad_rows import Unconvertible
from distop.spark_jobs.formats.types import convert, convertible
from distop.spark_jobs.ingest.job import MAX_RESULT_BYTES
from distop.spark_jobs.rules.gate import JobAudit
from distop.spark_jobs.rules.model import RuleSet


class FramePlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What is fixed of an ingest whose input is a DataFrame: what it writes to, and how. Other fields of its
    argument say what the DataFrame is."""

    layout: dict[str, Any]
    """The table's; see :meth:`distop.commit.layout.model.Layout.to_json`."""
    mode: str
    output: str = "iceberg"
    """The table's format."""
    rules: RuleSet | None = None
    """What the rows must keep."""
    on_conflict: str = ""
    expected_snapshot_id: str | None = None

    @classmethod
    def of(cls, operation: OperationArg) -> FramePlan:
        """That of an operation. Raises :class:`~distop.errors.CorruptRecord`."""
        return plan_of(operation, cls, "plan of an ingest")


BLOCK_ROWS = 1 << 16
"""Rows that are converted and handed to the writer at a time: Spark's own batches are small."""


def write_rows(job: JobContext) -> dict[str, Any]:
    """Write the rows of a partition; the result is that of the writer, and ``rowsRead``.

    Raises
    ------
    BadRow
        A value does not fit its column of the table.
    """
    plan = FramePlan.of(job.operation)
    layout = Layout.from_json(plan.layout)
    with output_of(plan.output).writer(layout, job) as writer, JobAudit(plan.rules, job) as audit:
        for rows in _blocks(job):
            table = _rows_of_table(rows, layout.arrow_schema)
            audit.check(table)
            writer.write(table)
        found = audit.finish()
        result = writer.finish() | found
    result["rowsRead"] = result["rows"]
    if "manifest" in result and len(msgspec.json.encode(result)) > MAX_RESULT_BYTES:
        # The manifest says it, too; here it only saves the commit from opening it.
        result.pop("partitions", None)
    return result


def _blocks(job: JobContext) -> Iterator[pa.Table]:
    """The rows of the partition, so many at a time that each is worth its while."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in job.rows():
        job.raise_if_cancelled()
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BLOCK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _rows_of_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        columns = [_column(rows, field) for field in schema]
    except Unconvertible as error:
        raise BadRow(str(error), hint="let the query make a value of it that fits") from None
    return pa.table(columns, schema=schema)


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    values = convert(rows.column(field.name), field.type, field.name)
    if not field.nullable and values.null_count:
        raise Unconvertible(f"column {field.name!r} is required and has no value")
    return values


def check_columns(given: pa.Schema, table: pa.Schema) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless rows of the one can be rows of the other."""
    names = list(given.names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(f"two columns are called {twice!r}", "give one of them another name")
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise _refused(
            f"the table has no column {unknown[0]!r}, only {', '.join(table.names)}", "leave it out"
        )
    for field in table:
        if field.name not in names:
            if not field.nullable:
                raise _refused(f"column {field.name!r} is required, and is not there", "add it")
        elif not convertible(given.field(field.name).type, field.type):
            raise _refused(
                f"column {field.name!r}: {given.field(field.name).type} cannot become {field.type}", "cast it"
            )


def _refused(message: str, hint: str) -> InvalidArgument:
    return InvalidArgument(f"the rows do not fit the table: {message}", hint=hint)
