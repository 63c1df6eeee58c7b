"""The part of an ingest's plan about the table, wherever the rows come from: which columns are read, with
which types, and which of them are written to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow.types import is_date, is_decimal, is_nested, is_time, is_timestamp
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.iceberg.branches import check_branch_name, unpublished
from distop.lake.iceberg.metadata_files import present_file
from distop.lake.layout.evolution import Evolution, evolved, may_widen
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.predicates import syntax
from distop.lake.predicates.binding import bind
from distop.lake.rewriting.replace_partitions import added_by
from distop.lake.rows import new_layout, output_of, table_layout
from distop.lake.rules.parsing import rules_of
from distop.operations import PlanRequest
from distop.operations.arguments import invalid
from distop.sources.formats.inference import Sample
from distop.sources.formats.options import TYPED, Format
from distop.sources.formats.reader import check_columns, describe
from distop.sources.formats.types import (
    UnrepresentableType,
    grown,
    is_number,
    json_type,
    may_become,
    new_fields,
    text_type,
)
from distop.spark_jobs.ingest.argument import (
    DataFrameArgument,
    HasMode,
    IngestArgument,
    conditions_of,
    on_conflict,
)
from distop.spark_jobs.merge import MergePlan, check_merge, plan_merge


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The required columns of a source.

    Parameters
    ----------
    schema:
        Those that are read; field ids have no meaning.
    targets:
        Those that are written to the table, in order.
    written:
        The same with the types in which they are written.
    """

    schema: Schema
    targets: list[str]
    written: Schema
    added: list[str] = field(default_factory=list)
    """New columns for the table."""
    widened: list[str] = field(default_factory=list)
    """Columns to widen in the table."""
    grown: list[str] = field(default_factory=list)
    """Columns whose new nested fields the table gets."""
    ignored: list[str] = field(default_factory=list)
    """New columns that the source shows, and paths of new nested fields, that are not written."""


def choose_columns(
    argument: IngestArgument,
    file_format: Format,
    sample: Sample,
    table: Schema | None,
    filtered: set[str],
    *,
    conditions: Collection[str] = (),
    direct: Collection[str] = (),
) -> SourceColumns:
    """Decide about columns.

    Parameters
    ----------
    table:
        The schema of the table; ``None`` if the source determines it.
    filtered:
        Columns in the filter.
    conditions:
        Columns in conditions of a merge: one that the table does not have is read only for them.
    direct:
        Columns whose values need not be in the format.

    Raises
    ------
    InvalidArgument
        A column that does not exist, that the table does not have, or that is missing although the table
        requires it; types that do not fit together.
    """
    declared = None if argument.schema is None else parse_schema(argument.schema)
    declared_names = [] if declared is None else [field.name for field in declared.columns]
    names = sample.all_names if argument.on_new_columns == "add" else sample.names
    present = {} if table is None else _arrow_types(table)
    if _by_row(argument) and not sample.complete:
        # A key that nobody knows makes its row a bad one, in the sample as behind it.
        wanted = {*declared_names, *present}
        names = [name for name in names if name in wanted] or names
    if sample.complete:
        _check_known("schema", declared_names, [*names, *direct])
    known = list(dict.fromkeys([*names, *declared_names, *direct]))
    _check_known("columns", argument.columns or [], known)
    _check_known("filter", sorted(filtered), known)
    filtered = filtered.union(conditions)
    counted = [name for name in (*known, *present) if name not in direct]
    _check_known("epoch_units", list(argument.epoch_units), counted)
    targets = list(dict.fromkeys([*_targets(argument, declared, names, table), *direct]))
    if table is not None and argument.columns is None:
        targets = [name for name in targets if name in present or name not in conditions]
    added = [] if table is None or argument.on_new_columns != "add" else new_columns(targets, present)
    read = [*targets, *sorted(filtered.difference(targets))]
    # Some formats have types of their own; other values are texts, and are read as what the table has.
    fixed = [name for name in present if file_format not in TYPED or name in direct]
    given = {name: present[name] for name in fixed} | _arrow_types(declared)
    types = _types(read, given, sample)
    unsaid = [name for name in sample.instants if name in types and name not in (*present, *given)]
    types |= {name: sample.instants[name] for name in unsaid}
    moments = _moments(argument, types, present, declared)
    ignored = []
    if argument.on_new_columns == "ignore" and argument.columns is None:
        ignored = [name for name in sample.all_names if name not in read]
    widened: dict[str, pa.DataType] = {}
    grows: dict[str, pa.DataType] = {}
    if table is not None:
        numbers = [name for name in targets if name not in (*declared_names, *added, *direct, *moments)]
        widened = _wider(argument, numbers, present, sample)
        nested = _nested_types(argument, file_format, targets, types, present, sample)
        new = {name: new_fields(dtype, present[name], name) for name, dtype in nested.items()}
        if argument.on_new_columns == "add":
            grows = {name: grown(present[name], nested[name]) for name, paths in new.items() if paths}
        elif argument.on_new_columns == "ignore" or argument.columns is not None:
            ignored += [path for paths in new.values() for path in paths]
        types |= widened | {name: nested[name] for name in grows}
        changed = widened | grows
        check_columns(
            pa.schema(
                [(name, (nested | moments).get(name, types[name])) for name in targets if name not in added]
            ),
            pa.schema(
                [column.with_type(changed.get(column.name, column.type)) for column in _arrow_schema(table)]
            ),
            field="paths" if argument.columns is None else "columns",
            hint="choose --on-new-columns add or ignore, or name those to read with --column",
            ignored=ignored,
        )
    for name, dtype in types.items():
        if name not in direct:
            _check_readable(name, dtype, file_format)
    written = {name: (types | moments)[name] for name in targets}
    return SourceColumns(
        schema=_numbered(types, declared),
        targets=targets,
        written=_numbered(written, declared),
        added=added,
        widened=list(widened),
        grown=list(grows),
        ignored=ignored,
    )


def _numbered(types: Mapping[str, pa.DataType], declared: Schema | None) -> Schema:
    return Layout.create(pa.schema([_field(name, dtype, declared) for name, dtype in types.items()])).schema


def _check_known(field: str, names: Iterable[str], known: list[str]) -> None:
    there = set(known)
    for name in names:
        if name not in there:
            raise invalid(field, f"the source has no column {name!r}", f"it has {describe(known)}")


def _targets(
    argument: IngestArgument, declared: Schema | None, names: list[str], table: Schema | None
) -> list[str]:
    if argument.columns is not None:
        return argument.columns
    if declared is None:
        if "" in names:
            position = names.index("") + 1
            hint = "name those to read with --column"
            raise invalid("columns", f"column {position} of the source has no name", hint)
        if not names:
            raise invalid("paths", "the files have no columns", "give --schema if that is expected")
        if table is None or argument.on_new_columns != "ignore":
            return names
        return [name for name in names if name in table.column_names]
    targets = [field.name for field in declared.columns]
    if table is not None:
        targets += [name for name in names if name in table.column_names and name not in targets]
    extra = [name for name in names if name not in targets]
    if extra and argument.on_new_columns == "fail":
        raise invalid(
            "schema",
            f"the source has a column {extra[0]!r} that --schema does not name",
            "choose --on-new-columns add or ignore",
        )
    if argument.on_new_columns == "add":
        targets += extra
    # The order of the files is easier to read than that of a mapping, which the transport does not keep.
    return sorted(targets, key=lambda name: names.index(name) if name in names else len(names))


def new_columns(targets: Iterable[str], present: Collection[str]) -> list[str]:
    """Columns that the table does not have. Names that differ only in case are refused: SQL ignores
    case."""
    folded = {name.casefold(): name for name in present}
    new = [name for name in targets if name not in present]
    for name in new:
        if (twin := folded.setdefault(name.casefold(), name)) != name:
            raise invalid("on_new_columns", f"column {name!r} differs from {twin!r} only in case")
    return new


def _nested_types(
    argument: IngestArgument,
    file_format: Format,
    targets: Iterable[str],
    types: Mapping[str, pa.DataType],
    present: Mapping[str, pa.DataType],
    sample: Sample,
) -> dict[str, pa.DataType]:
    """The types of the table's nested columns as the source shows them: of text, those of the table with the
    fields that only the sample has."""
    names = [name for name in targets if is_nested(present.get(name, pa.null()))]
    if file_format in TYPED:
        return {name: types[name] for name in names}
    if argument.on_new_columns == "fail" and (argument.kafka is not None or _by_row(argument)):
        return {}  # records are not read only for this, and rows with such fields are bad ones
    return {name: grown(present[name], dtype) for name, dtype in _plain_types(names, sample).items()}


def _wider(
    argument: IngestArgument, names: Iterable[str], present: Mapping[str, pa.DataType], sample: Sample
) -> dict[str, pa.DataType]:
    """Numeric columns whose type is too narrow for the source, and the types they need.

    Raises :class:`~distop.errors.InvalidArgument` unless they may be widened, or bad rows go to quarantine.
    """
    wider: dict[str, pa.DataType] = {}
    if argument.kafka is not None and argument.on_wider_types == "fail":
        return wider  # records are not read only for this
    numbers = [name for name in names if name in present and is_number(present[name])]
    others = {
        name: dtype
        for name, dtype in _plain_types(numbers, sample).items()
        if is_number(dtype) and dtype != present[name]
    }
    for name in sample.unfit({name: present[name] for name in others}):
        needed = others[name]
        message = f"column {name!r}: the source holds {needed}, and the table {present[name]}"
        widens = may_become(present[name], needed)
        if _quarantines(argument) and not (widens and argument.on_wider_types == "widen"):
            continue  # each value is checked when it is read
        if not widens:
            if is_decimal(present[name]) or is_decimal(needed):
                continue
            raise invalid(
                "on_wider_types",
                f"{message}, which cannot be widened to that",
                "add a column for it, or choose --on-bad-rows quarantine",
                column=name,
            )
        if argument.on_wider_types == "fail":
            raise invalid(
                "on_wider_types", message, "choose --on-wider-types widen, or alter the table", column=name
            )
        wider[name] = needed
    return wider


def _quarantines(argument: IngestArgument) -> bool:
    """Whether rows that do not fit are set aside: then no value of the sample refuses the others."""
    return argument.on_bad_rows == "quarantine"


def _by_row(argument: IngestArgument) -> bool:
    """The same for rows with new keys, where the format has keys in each row."""
    return _quarantines(argument) and argument.on_new_columns == "fail" and argument.columns is None


def _plain_types(names: list[str], sample: Sample) -> dict[str, pa.DataType]:
    """Types of columns, without those with values of several kinds: each is checked when it is read."""
    try:
        return sample.types(names)
    except InvalidArgument:
        if len(names) < 2:
            return {}
    return {name: dtype for name in names for dtype in _plain_types([name], sample).values()}


def _moments(
    argument: IngestArgument,
    types: dict[str, pa.DataType],
    present: Mapping[str, pa.DataType],
    declared: Schema | None,
) -> dict[str, pa.DataType]:
    """The types of the columns whose numbers count from 1970; in ``types`` they become numbers."""
    given = {**present, **_arrow_types(declared)}
    moments = {}
    for name, unit in argument.epoch_units.items():
        if name not in types:
            continue
        usual = pa.date32() if unit == "days" else pa.timestamp("us", "UTC")
        moments[name] = given.get(name, usual)
        if not (
            is_date(moments[name])
            if unit == "days"
            else is_timestamp(moments[name]) or is_time(moments[name])
        ):
            raise invalid("epoch_units", f"column {name!r} is {moments[name]}, which {unit} do not become")
        types[name] = pa.int64()
    return moments


def _types(read: list[str], given: Mapping[str, pa.DataType], sample: Sample) -> dict[str, pa.DataType]:
    """Types as given, else as inferred from the sample."""
    guessed = sample.types([name for name in read if name not in given])
    return {name: given[name] if name in given else guessed[name] for name in read}


def _arrow_types(schema: Schema | None) -> dict[str, pa.DataType]:
    if schema is None:
        return {}
    return {field.name: field.type for field in _arrow_schema(schema)}


def _arrow_schema(schema: Schema) -> pa.Schema:
    return schema_to_pyarrow(schema, include_field_ids=False)


def _field(name: str, dtype: pa.DataType, declared: Schema | None) -> pa.Field:
    required = {field.name for field in declared.columns if field.required} if declared is not None else set()
    return pa.field(name, dtype, nullable=name not in required)


def _check_readable(name: str, dtype: pa.DataType, file_format: Format) -> None:
    check = {"csv": text_type, "jsonl": json_type}.get(file_format)
    try:
        if check is not None:
            check(dtype)
    except UnrepresentableType as error:
        raise _bad_type(name, str(error)) from None


def _bad_type(name: str, reason: str) -> InvalidArgument:
    hint = "give it a type with --schema, or leave it out of --column"
    return invalid("schema", f"column {name!r}: {reason}", hint)


MAX_IGNORED = 100
"""Most ignored columns that an operation reports."""
BRANCH_MODES = frozenset({"append", "overwrite", "overwrite_partitions", "merge"})
"""Modes for a branch. The others depend on whether the table holds data."""


def is_ignored(request: PlanRequest, argument: HasMode) -> bool:
    """Whether there is nothing to do, since the mode is ``ignore`` and the table holds data.

    Raises :class:`~distop.errors.TableNotEmpty` if it does and the mode is ``error_if_exists``.
    """
    if argument.mode not in ("error_if_exists", "ignore"):
        return False
    error = output_of(request.table.format).holds_data(request.table, request.head)
    if error is not None and argument.mode == "error_if_exists":
        raise error
    return error is not None


def check_mode(request: PlanRequest, argument: HasMode) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless the table's format supports this mode, and
    :class:`~distop.errors.PreconditionFailed` if its files do not allow it."""
    output_of(request.table.format).check_mode(request.table, request.head, argument.mode)
    if argument.on_conflict is not None and request.table.format != "iceberg":
        raise invalid("on_conflict", "only Iceberg tables show who else has written to them")


def check_target(request: PlanRequest, argument: IngestArgument) -> None:
    """Check what can be checked before reading the source.

    Raises
    ------
    InvalidArgument
        The table's format does not support the mode; the filter is invalid; it is to run concurrently, and
        may not.
    """
    check_mode(request, argument)
    conflicts = on_conflict(argument)
    # The order of appends does not matter: each builds on what the others have published meanwhile.
    if request.object and (
        argument.mode != "append"
        or conflicts != "rebase"
        or request.table.format != "iceberg"
        or argument.branch is not None
    ):
        raise invalid(
            "object",
            f"ingest {request.object!r} cannot run concurrently: only appends to an Iceberg table can",
            "leave out --object: it then waits for its turn",
        )
    if argument.filter is not None:
        syntax.parse(argument.filter)


def check_replaced(request: PlanRequest, operation: str) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` unless an operation has appended rows to the table.

    Whether their files are still there shows at the end.
    """
    if request.table.format != "iceberg":
        raise invalid("replaces", f"rows of a {request.table.format} table cannot be taken out")
    if (file := present_file(request)) is None:
        raise PreconditionFailed(f"nothing has been published to table {request.table.name!r}")
    added_by(file, operation)


def on_branch(request: PlanRequest, branch: str, mode: str) -> PlanRequest:
    """The base of an ingest that writes to a branch: the branch's snapshot and watermarks.

    Raises
    ------
    InvalidArgument
        Such an ingest cannot write to a branch.
    WatermarkConflict
        Another operation has ingested a source of the branch into the table: the branch can no longer be
        published.
    """
    check_branch_name(branch)
    if request.table.format != "iceberg":
        raise invalid("branch", f"tables of the format {request.table.format} have no branches")
    if mode not in BRANCH_MODES:
        raise invalid("branch", f"--mode {mode} depends on the table itself, not on a branch")
    head, file = request.head, present_file(request)
    if head is None or file is None:
        return request
    ref = file.metadata.refs.get(branch)
    marks = unpublished(file, branch).watermarks(request.watermarks)
    at = head.snapshot_id if ref is None else ref.snapshot_id
    return replace(request, head=msgspec.structs.replace(head, snapshot_id=at), watermarks=marks)


def target_of(
    request: PlanRequest,
    argument: IngestArgument,
    file_format: Format,
    sample: Sample,
    table: Layout | None,
    *,
    direct: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of an :class:`~distop.spark_jobs.ingest.plan.IngestPlan` that do not describe the source.

    Parameters
    ----------
    file_format:
        The format of the source's column values.
    table:
        The table's layout; ``None``: it has none yet.
    direct:
        Columns whose values are not in that format, but known directly.

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
    )
    for name, tree in {**conditions, **({} if chosen is None else {"filter": chosen})}.items():
        bind(tree, columns.schema, name)  # raises if it does not fit
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
    request: PlanRequest, argument: IngestArgument, target: Mapping[str, Any], splits: int
) -> tuple[MergePlan | None, int]:
    """How rows of the source are merged with those of the table, and by how many jobs; without a merge
    ``None``, and a job for each split.

    Parameters
    ----------
    target:
        What :func:`target_of` returns.
    splits:
        How many there are of the source.

    Raises
    ------
    InvalidArgument
        The table cannot be merged by these columns, or the source lacks some of its columns.
    PreconditionFailed
        A file of the table cannot be read.
    """
    if argument.mode != "merge":
        return None, splits
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
        grow = {column.name: column.field_type for column in known if not column.field_type.is_primitive}
    if argument.on_wider_types == "widen":
        widen = {
            column.name: column.field_type
            for column in known
            if may_widen(present[column.name], column.field_type)
        }
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
    for option, changed in (
        ("on_wider_types", evolution.widened),
        ("on_new_columns", [number for number in evolution.added if number not in top]),
    ):
        if changed:
            name = layout.schema.find_column_name(changed[0])
            raise invalid(option, f"column {name!r}: types of {table_format} tables cannot change")


def unchanged(request: PlanRequest, mode: str, reason: str, **fields: Any) -> dict[str, Any]:
    """The plan of an operation that does not change the table, without jobs; the field ``reason`` is true."""
    layout = table_layout(request)
    recorded = None if layout is None else layout.to_json()
    return {reason: True, "mode": mode, "output": request.table.format, "layout": recorded, **fields}


def current_snapshot(request: PlanRequest) -> str | None:
    if request.head is None or request.head.snapshot_id is None:
        return None
    return str(request.head.snapshot_id)
