"""The rows that the jobs of an operation write to its table: for its plan, its jobs and its commit.

Types use :meth:`distop.Plan.rows` and ``job.writer()``; services derive the rest from them here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distop.lake.layout.model import DEFAULT_PROPERTIES, Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.staging import OUTPUT, ROWS, format_of
from distop.lake.outputs import output_of
from distop.lake.writing.writer import StagedWriter
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.table import TableRecord
from distop.operations.api import Plan, PlanRequest, extended
from distop.operations.job import JobContext


def with_rows(plan: Plan, request: PlanRequest) -> Plan:
    """A plan with rows of its jobs, ready to be recorded; raises as :func:`rows_plan`."""
    if plan.output is None:
        return plan
    recorded = {ROWS: True, **rows_plan(request, plan.output.schema, mode=plan.output.mode)}
    # Without the schema: the coordinator, which gets the plan, need not load pyarrow for it.
    output = replace(plan.output, schema=None)
    return replace(plan, argument=extended(plan.argument, recorded), output=output)


def rows_plan(request: PlanRequest, schema: Any, *, mode: str = "append") -> dict[str, Any]:
    """The part of a plan's argument that describes the rows of its jobs.

    Parameters
    ----------
    schema:
        ``pyarrow.Schema`` of the rows. If the table has columns, it keeps them, and rows must match them.
    mode:
        ``append``, ``overwrite``, ``overwrite_partitions``. Overwriting is refused at the end if another
        writer has changed an Iceberg table meanwhile.

    Raises
    ------
    InvalidArgument
        A table of this format cannot have these columns or partitions, or does not support the mode.
    PreconditionFailed
        The table does not allow the mode, or to write to it.
    """
    output = output_of(request.table.format)
    output.check_mode(request.table, request.head, mode)
    layout = table_layout(request) or new_layout(request.table, schema)
    output.check(layout)
    snapshot = None if request.head is None else request.head.snapshot_id
    return {
        "mode": mode,
        OUTPUT: output.format,
        "layout": layout.to_json(),
        "expectedSnapshotId": None if snapshot is None else str(snapshot),
    }


def rows_writer(job: JobContext) -> StagedWriter:
    """Takes the rows of one attempt, as a context manager. They are invisible before the operation ends."""
    layout = Layout.from_json(job.operation.argument["layout"])
    return output_of(format_of(job.operation)).writer(layout, job)


def rows_steps(operation: OperationArg) -> list[StepRecord]:
    """The steps that publish the rows of all jobs."""
    return output_of(format_of(operation)).steps(operation)


def table_layout(request: PlanRequest) -> Layout | None:
    """The table's layout, if it has one: published, or given when it was created."""
    published = output_of(request.table.format).layout(request.table, request.head)
    schema = request.table.options.get("schema")
    if published is not None or schema is None:
        return published
    return new_layout(request.table, parse_schema(schema))


def new_layout(table: TableRecord, schema: Any) -> Layout:
    """The layout that a table gets with its first rows, as its options have it."""
    options = table.options
    properties = {**DEFAULT_PROPERTIES, **(options.get("properties") or {})}
    return Layout.create(schema, options.get("partitionBy", ()), properties)
