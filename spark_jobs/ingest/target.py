"""The part of an ingest's plan about the table, wherever the rows come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from pyarrow import DataType
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from distop.errors import PreconditionFailed
from distop.lake.iceberg.branches import check_branch_name, unpublished
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.evolution import Evolution, evolved, may_widen
from distop.lake.layout.model import Layout
from distop.lake.outputs import output_of
from distop.lake.predicates import syntax
from distop.lake.predicates.binding import bind
from distop.lake.rewriting.replace_partitions import added_by
from distop.lake.rows import new_layout, table_layout
from distop.lake.storage.storage import storage_of
from distop.operations.api import PlanRequest
from distop.operations.arguments import invalid
from distop.sources.formats.inference import Sample
from distop.sources.formats.options import Format
from distop.spark_jobs.ingest.argument import DataFrameArgument, IngestArgument, conditions_of
from distop.spark_jobs.ingest.columns import choose_columns, new_columns
from distop.spark_jobs.ingest.modes import NOTHING, check_mode, on_conflict
from distop.spark_jobs.merge.plan import MergePlan, check_merge, plan_merge
from distop.spark_jobs.rules.staged import rules_of

MAX_IGNORED = 100
"""Most ignored columns that an operation reports."""
BRANCH_MODES = frozenset({"append", "overwrite", "overwrite_partitions", "merge"})
"""Modes for a branch. The others depend on whether the table holds data."""


def check_target(request: PlanRequest, argument: IngestArgument) -> None:
    """Check what can be checked before reading the source.

    Raises
    ------
    InvalidArgument
        The table's format does not support the mode; the filter is invalid; the table cannot be merged by
        these columns.
    """
    check_mode(request, argument)
    on_conflict(argument)
    if argument.mode == "merge" and (table := table_layout(request)) is not None:
        check_merge(argument.keys, argument.order_by, table.schema)
    if argument.filter is not None:
        syntax.parse(argument.filter)


def check_replaced(request: PlanRequest, operation: str) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` unless an operation has appended rows to the table.

    Whether their files are still there shows at the end.
    """
    if request.table.format != "iceberg":
        raise invalid("replaces", f"rows of a {request.table.format} table cannot be taken out")
    if request.head is None:
        raise PreconditionFailed(f"nothing has been published to table {request.table.name!r}")
    file = TableFile.read(request.head.metadata_location, storage=storage_of(request.table))
    added_by(file, operation)


def on_branch(request: PlanRequest, argument: IngestArgument) -> PlanRequest:
    """The base of an ingest: the snapshot and the watermarks of its branch, if it writes to one.

    Raises
    ------
    InvalidArgument
        Such an ingest cannot write to a branch.
    WatermarkConflict
        Another operation has ingested a source of the branch into the table: the branch can no longer be
        published.
    """
    if argument.branch is None:
        return request
    check_branch_name(argument.branch)
    if request.table.format != "iceberg":
        raise invalid("branch", f"tables of the format {request.table.format} have no branches")
    if argument.mode not in BRANCH_MODES:
        raise invalid("branch", f"--mode {argument.mode} depends on the table itself, not on a branch")
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
    direct: Collection[str] = (),
    instants: Mapping[str, DataType] | None = None,
) -> dict[str, Any]:
    """The fields of an :class:`~distop.spark_jobs.ingest.plan.IngestPlan` that do not describe the source.

    Parameters
    ----------
    file_format:
        The format of the source's column values.
    table:
        The table's layout, if it has one.
    direct:
        Columns whose values are not in that format, but known directly.
    instants:
        See :func:`~distop.spark_jobs.ingest.columns.choose_columns`.

    Raises
    ------
    InvalidArgument
        Columns, types, filter and table do not fit together.
    """
    chosen = None if argument.filter is None else syntax.parse(argument.filter)
    conditions = {field: syntax.parse(text, field) for field, text in conditions_of(argument).items()}
    known = {*sample.all_names, *(argument.schema or ()), *direct}

    def named(tree: syntax.Tree) -> set[str]:
        whole = {path: ".".join(path) for path in syntax.columns_of(tree)}
        return {name if name in known else path[0] for path, name in whole.items()}

    columns = choose_columns(
        argument,
        file_format,
        sample,
        None if table is None or argument.transform is not None else table.schema,
        set() if chosen is None else named(chosen),
        conditions=set().union(*map(named, conditions.values())),
        direct=direct,
        instants=instants,
    )
    for field, tree in {**conditions, **({} if chosen is None else {"filter": chosen})}.items():
        bind(tree, columns.schema, field)  # raises if it does not fit
    if argument.transform is not None and table is None:
        raise invalid(
            "transform",
            f"table {request.table.name!r} has no columns yet, and only Spark knows the columns of the query",
            "create the table with a schema, or ingest something into it first",
        )
    add = [columns.written.find_field(name) for name in columns.added]
    widen = {name: columns.written.find_field(name).field_type for name in columns.widened}
    grow = {name: columns.written.find_field(name).field_type for name in columns.grown}
    layout, evolution = _layout(request, table, columns.written, add, widen, grow)
    return {
        "ignored_columns": columns.ignored[:MAX_IGNORED],
        "columns": msgspec.json.decode(columns.schema.model_dump_json()),
        "on_new_columns": "ignore" if argument.columns is not None else argument.on_new_columns,
        "filter": argument.filter,
        "transform": argument.transform,
        "layout": layout.to_json(),
        "evolution": evolution,
        "targets": columns.targets,
        "epoch_units": argument.epoch_units,
        "on_bad_rows": argument.on_bad_rows,
        "max_bad_rows": argument.max_bad_rows,
        "max_bad_share": argument.max_bad_share,
        "mode": argument.mode,
        "output": request.table.format,
        "rules": rules_of(request.table.options, argument.checks, layout),
        "branch": argument.branch or "",
        "on_conflict": on_conflict(argument),
        "expected_snapshot_id": current_snapshot(request),
    }


def merge_of(
    request: PlanRequest, argument: IngestArgument, target: Mapping[str, Any]
) -> tuple[MergePlan, int]:
    """How rows of the source are merged with those of the table, and by how many jobs.

    Parameters
    ----------
    target:
        What :func:`target_of` returns.

    Raises
    ------
    InvalidArgument
        The table cannot be merged by these columns, or the source lacks some of its columns.
    PreconditionFailed
        A file of the table cannot be read.
    """
    schema = Layout.from_json(target["layout"]).schema
    check_merge(argument.keys, argument.order_by, schema)
    if lacking := [name for name in schema.column_names if name not in target["targets"]]:
        source = "paths" if argument.kafka is None else "kafka"
        raise invalid(
            source if argument.columns is None else "columns",
            f"a merge replaces whole rows, but the new ones have no column {lacking[0]!r} of the table",
        )
    plan = MergePlan(where="true", all_go=False, keys=argument.keys, order_by=argument.order_by or "")
    return plan_merge(request, msgspec.structs.replace(plan, **conditions_of(argument)))


def layout_for_frame(
    request: PlanRequest, argument: DataFrameArgument, given: Schema
) -> tuple[Layout, Evolution | None]:
    """The layout for rows of a DataFrame, and its differences to the table.

    Raises :class:`~distop.errors.InvalidArgument` if the format does not support it.
    """
    table = table_layout(request)
    present = {} if table is None else {column.name: column.field_type for column in table.schema.columns}
    known = [column for column in given.columns if column.name in present]
    add, widen, grow = [], {}, {}
    if argument.on_new_columns == "add":
        names = new_columns([column.name for column in given.columns], present)
        add = [column for column in given.columns if column.name in names]
        grow = {one.name: one.field_type for one in known if not one.field_type.is_primitive}
    if argument.on_wider_types == "widen":
        widen = {one.name: one.field_type for one in known if may_widen(present[one.name], one.field_type)}
    return _layout(request, table, given, add, widen, grow)


def _layout(
    request: PlanRequest,
    table: Layout | None,
    given: Schema,
    add: Sequence[NestedField],
    widen: Mapping[str, IcebergType],
    grow: Mapping[str, IcebergType],
) -> tuple[Layout, Evolution | None]:
    output = output_of(request.table.format)
    layout, evolution = new_layout(request.table, given) if table is None else table, None
    if add or widen or grow:
        layout, evolution = evolved(layout, add, widen, grow)
    if evolution is not None and not output.widens:
        _refuse_new_types(output.format, layout, evolution)
    output.check(layout)
    return layout, evolution


def _refuse_new_types(table_format: str, layout: Layout, evolution: Evolution) -> None:
    top = {column.field_id for column in layout.schema.columns}
    for field, changed in (
        ("on_wider_types", evolution.widened),
        ("on_new_columns", [number for number in evolution.added if number not in top]),
    ):
        if changed:
            name = layout.schema.find_column_name(changed[0])
            raise invalid(field, f"column {name!r}: types of {table_format} tables cannot change")


def ignored(request: PlanRequest) -> dict[str, Any]:
    """The plan of an operation that does not change the table; without jobs."""
    layout = table_layout(request)
    recorded = None if layout is None else layout.to_json()
    return {"mode": "ignore", "ignored": True, "output": request.table.format, "layout": recorded}


def nothing(request: PlanRequest, layout: Layout | None, branch: str = "") -> dict[str, Any]:
    """The plan of an operation that has found nothing new; without jobs. It does not change the table."""
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
