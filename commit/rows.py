"""Rows for a table from an operation of one's own: what its plan, its jobs and its commit need.

``plan`` records in the operation's argument what :func:`rows_plan` says, each job writes to a
:func:`rows_writer` and returns what its ``finish`` says, ``commit_steps`` returns :func:`rows_steps`. The
type sets ``stages_files``.
"""

from __future__ import annotations

from typing import Any

from distop.commit.layout.model import DEFAULT_PROPERTIES, Layout
from distop.commit.layout.schemas import parse_schema
from distop.commit.layout.staging import OUTPUT, format_of
from distop.commit.outputs import output_of
from distop.commit.writing.writer import StagedWriter
from distop.errors import InvalidArgument
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.table import TableRecord
from distop.operations.api import PlanRequest
from distop.operations.job import JobContext


def rows_plan(request: PlanRequest, schema: Any, *, mode: str = "append") -> dict[str, Any]:
    """What a plan's argument says of the rows that its jobs write.

    Parameters
    ----------
    schema:
        ``pyarrow.Schema`` of the rows. A table that has columns keeps them, and rows must have these.
    mode:
        ``append``, ``overwrite``, ``overwrite_partitions``. Overwriting is refused at the end if others have
        written to an Iceberg table meanwhile.

    Raises
    ------
    InvalidArgument
        A table of this format cannot have these columns or partitions, or does not know the mode.
    """
    output = output_of(request.table.format)
    if mode not in output.modes:
        raise InvalidArgument(
            f"tables of the format {output.format} know {', '.join(sorted(output.modes))}",
            details={"field": "mode"},
        )
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
    """Takes the rows of one attempt, as a context manager. Nobody sees them before the operation ends."""
    layout = Layout.from_json(job.operation.argument["layout"])
    return output_of(format_of(job.operation)).writer(layout, job)


def rows_steps(operation: OperationArg) -> list[StepRecord]:
    """The steps that publish what the jobs have written."""
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
