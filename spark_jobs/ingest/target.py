"""What a plan of an ingest says of the table, wherever the rows come from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from distop.commit.files.storage import storage_of
from distop.commit.iceberg.branches import check_branch_name, unpublished
from distop.commit.iceberg.metadata_files import TableFile
from distop.commit.layout.model import Layout
from distop.commit.outputs import output_of
from distop.commit.rows import new_layout, table_layout
from distop.operations.api import PlanRequest
from distop.operations.arguments import invalid
from distop.spark_jobs.formats.inference import Sample
from distop.spark_jobs.formats.options import Format
from distop.spark_jobs.ingest.argument import IngestArgument
from distop.spark_jobs.ingest.columns import choose_columns
from distop.spark_jobs.ingest.modes import NOTHING, check_mode, on_conflict
from distop.spark_jobs.rules.staged import rules_of
from distop.spark_jobs.tables.filters import arrow_filter, filter_columns, parse_filter

BRANCH_MODES = frozenset({"append", "overwrite", "overwrite_partitions"})
"""Of an ingest into a branch. The others ask whether the table holds data."""


def check_target(request: PlanRequest, argument: IngestArgument) -> None:
    """Check what can be checked before anybody has looked at the source.

    Raises
    ------
    InvalidArgument
        The table's format does not have the mode; the filter is none.
    """
    check_mode(request, argument)
    on_conflict(argument)
    if argument.filter is not None:
        parse_filter(argument.filter)


def on_branch(request: PlanRequest, argument: IngestArgument) -> PlanRequest:
    """What an ingest begins on: the snapshot and the watermarks of its branch, if it writes to one.

    Raises
    ------
    InvalidArgument
        Such an ingest cannot write to a branch.
    WatermarkConflict
        Another operation has ingested a source of the branch into the table: it cannot be published any more.
    """
    if argument.branch is None:
        return request
    check_branch_name(argument.branch)
    if request.table.format != "iceberg":
        raise invalid("branch", f"tables of the format {request.table.format} have no branches")
    if argument.mode not in BRANCH_MODES:
        raise invalid("branch", f"mode {argument.mode} looks at the table itself, and not at a branch")
    head = request.head
    if head is None:
        return request
    file = TableFile.read(head.metadata_location, storage=storage_of(request.table))
    ref = file.metadata.refs.get(argument.branch)
    marks = unpublished(file, argument.branch).watermarks(request.watermarks)
    at = head.snapshot_id if ref is None else ref.snapshot_id
    return replace(request, head=msgspec.structs.replace(head, snapshot_id=at), watermarks=marks)


def target_of(
    request: PlanRequest,
    argument: IngestArgument,
    file_format: Format,
    sample: Sample,
    *,
    table: Layout | None,
    beside: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of an :class:`~distop.spark_jobs.ingest.plan.IngestPlan` that do not say what is read.

    Parameters
    ----------
    file_format:
        How the values of the source's columns are written.
    table:
        The table's layout, if it has one.
    beside:
        Columns whose values are not written so, but known as they are.

    Raises
    ------
    InvalidArgument
        Columns, types, filter and table do not go together.
    """
    expression = None if argument.filter is None else parse_filter(argument.filter)
    columns = choose_columns(
        argument,
        file_format,
        sample,
        None if table is None or argument.transform is not None else table.schema,
        set() if expression is None else filter_columns(expression),
        beside=beside,
    )
    if expression is not None:
        arrow_filter(expression, columns.schema)
    if argument.transform is not None and table is None:
        raise invalid(
            "transform",
            f"table {request.table.name!r} has no columns yet, and only Spark knows those of the query",
            "make the table with a schema, or ingest something into it first",
        )
    layout = table or new_layout(request.table, columns.target_schema())
    output_of(request.table.format).check(layout)
    return {
        "columns": msgspec.json.decode(columns.schema.model_dump_json()),
        "extra_columns": "ignore" if argument.columns is not None else argument.extra_columns,
        "filter": argument.filter,
        "transform": argument.transform,
        "layout": layout.to_json(),
        "targets": columns.targets,
        "on_bad_rows": argument.on_bad_rows,
        "mode": argument.mode,
        "output": request.table.format,
        "rules": rules_of(request.table.options, argument.checks, layout),
        "branch": argument.branch or "",
        "on_conflict": on_conflict(argument),
        "expected_snapshot_id": current_snapshot(request),
    }


def ignored(request: PlanRequest) -> dict[str, Any]:
    """The plan of an operation that leaves the table as it is; without jobs."""
    layout = table_layout(request)
    recorded = None if layout is None else layout.to_json()
    return {"mode": "ignore", "ignored": True, "output": request.table.format, "layout": recorded}


def nothing(request: PlanRequest, layout: Layout | None, branch: str = "") -> dict[str, Any]:
    """The plan of an operation that has found nothing new; without jobs. The table stays as it is."""
    recorded = None if layout is None else layout.to_json()
    return {
        NOTHING: True,
        "mode": "append",
        "branch": branch,
        "output": request.table.format,
        "layout": recorded,
    }


def current_snapshot(request: PlanRequest) -> str | None:
    if request.head is None or request.head.snapshot_id is None:
        return None
    return str(request.head.snapshot_id)
