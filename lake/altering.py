"""Altering a table: its new record and head, and conflicts with running operations; and checks of a new one.

Plans of running operations must still be right afterwards. Files name columns by id, so most changes of
columns do no harm; the few that would are refused while the operation runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    RemovePropertiesUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.types import PrimitiveType

from distop.errors import IncompatibleOperation, InvalidArgument, PreconditionFailed
from distop.lake.delta.output import add_columns
from distop.lake.iceberg.append import schema_updates
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout import evolution as layout_changes
from distop.lake.layout.evolution import check_new_names, evolution_of
from distop.lake.layout.model import Layout, check_format, file_io
from distop.lake.layout.partitioning import Partitioner
from distop.lake.layout.properties import check_properties, stored
from distop.lake.layout.schemas import check_terms, parse_partitioning, parse_schema
from distop.lake.layout.staging import DELTA, FILES
from distop.lake.rows import new_layout, output_of
from distop.lake.rules.parsing import check_option
from distop.lake.storage.allowed import check_location
from distop.lake.storage.storage import opened_with, storage_of
from distop.metastore.records.names import unreadable
from distop.metastore.records.operation import Effect, OperationArg
from distop.metastore.records.table import Head, TableRecord

OPTIONS = ("checks", "partitionBy", "properties", "schema", "storage")


def check_options(record: TableRecord) -> None:
    """Check all options of a table, and turn a schema into a list: columns have an order, and the keys of an
    object in etcd have none. Blocking.

    Raises
    ------
    InvalidArgument
        ``details["field"]`` is ``options.<option>``, or ``location``.
    """
    options = record.options
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise _wrong(unknown[0], f"unknown option {unknown[0]!r}; known: {', '.join(OPTIONS)}")
    for name in ("storage", "properties", "checks"):
        if not isinstance(options.get(name, {}), dict):
            raise _wrong(name, f"{name} is not a JSON object")
    for name, value in options.get("properties", {}).items():
        if not isinstance(value, str | bool | int | float):
            raise _wrong("properties", f"property {name!r} is neither text, number nor boolean")
    check_location(record.location)
    _as_option("storage", lambda: opened_with(options.get("storage")))
    _as_option("properties", lambda: check_properties(options.get("properties", {}), record.location))
    schema = _checked_columns(record)
    if isinstance(columns := options.get("schema"), dict):
        options["schema"] = [f"{name}: {kind}" for name, kind in columns.items()]
    if "checks" in options:
        _as_option("checks", lambda: check_option(record, schema))


def _checked_columns(record: TableRecord) -> Any:
    """The schema, if one is given."""
    options = record.options
    schema, terms = options.get("schema"), options.get("partitionBy", [])
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise _wrong("partitionBy", "partitionBy is not a list of terms")
    if schema is None:
        _as_option("partitionBy", lambda: check_terms(terms))
        return None
    columns: Sequence[Any] = [schema]
    if isinstance(schema, Mapping):
        columns = [*schema, *schema.values()]
    elif isinstance(schema, list):
        columns = schema
    if not isinstance(schema, Mapping | list) or not all(isinstance(column, str) for column in columns):
        raise _wrong(
            "schema",
            "schema is neither a list of columns nor an object of names and types",
            'write ["id: long not null", "at: timestamp"]',
        )
    return _as_option("schema", lambda: _checked_layout(record))


def _checked_layout(record: TableRecord) -> Any:
    schema = parse_schema(record.options["schema"])
    for column in schema.columns:
        if reason := unreadable(column.name):
            raise _wrong("schema", f"column {column.name!r} {reason}")
    layout = new_layout(record, schema)
    Partitioner(layout.schema, layout.spec)
    output_of(record.format).check(layout)
    return schema


def _as_option(name: str, check: Callable[[], Any]) -> Any:
    """Prefix the field of an error with the option's name."""
    try:
        return check()
    except InvalidArgument as error:
        field = {"partition_by": "partitionBy"}.get(error.details.get("field", ""), "")
        error.details["field"] = f"options.{field or name}"
        raise


def _wrong(option: str, message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": f"options.{option}"})


BY = "alter"
"""The mover of the head, if it was not an operation."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Altered:
    """A table after some changes; nothing is visible yet."""

    record: TableRecord
    head: Head | None
    """The new head; ``None`` if it is unchanged."""
    schema: Schema | None
    """The columns, if they are known."""
    discard: Callable[[], None] = _nothing
    """Removes what was written, once it is certain that it is not visible. Never raises."""


def altered_and_checked(
    record: TableRecord, head: Head | None, changes: list[layout_changes.Change], running: list[OperationArg]
) -> Altered:
    """The altered table, if its rules and the running operations allow it. Blocking.

    Raises as :func:`check_running` and :func:`altered`; nothing is left written then.
    """
    check_running(record, changes, running)
    made = altered(record, head, changes)
    try:
        if "checks" in made.record.options:
            check_option(made.record, made.schema)
    except BaseException:
        made.discard()
        raise
    return made


def altered(record: TableRecord, head: Head | None, changes: Sequence[layout_changes.Change]) -> Altered:
    """Apply the changes to a table. Blocking; for a Delta table, columns are added to its own log here.

    Raises
    ------
    InvalidArgument
        A change is invalid; ``details["field"]`` names it.
    PreconditionFailed
        Tables of this format do not support the change.
    """
    record = msgspec.structs.replace(record, options=_options(record, changes))
    layout = output_of(record.format).layout(record, head)
    if layout is None:
        return _unpublished(record, changes)
    _check_format_can(record, changes)
    if record.format == DELTA:
        # An earlier attempt may have added them before it lost a race. Errors name the others by position.
        nothing = layout_changes.SetProperties()
        changes = [
            nothing if layout_changes.is_there(layout.schema, change) else change for change in changes
        ]
    schema = layout_changes.changed_columns(layout.schema, changes, layout.last_column_id)
    if "schema" in record.options:
        record.options["schema"] = _written(schema)
    if record.format == DELTA:
        _add_to_delta(record, layout.schema, schema)
        return Altered(record=record, head=None, schema=schema)
    if record.format == FILES or head is None:
        check_new_names(schema, layout.schema, [layout.spec])
        changed = Layout(schema, layout.spec, layout.properties)
        new = Head(metadata_location="", operation=BY, layout=changed.to_json())
        return Altered(record=record, head=new, schema=schema)
    return _iceberg(record, head, schema, changes)


def _options(record: TableRecord, changes: Iterable[layout_changes.Change]) -> dict[str, Any]:
    new, location = dict(record.options), record.location
    for change in changes:
        match change:
            case layout_changes.SetPartitioning():
                new["partitionBy"] = list(change.terms)
            case layout_changes.SetProperties():
                check_properties(change.set, location)
                kept = {
                    name: value
                    for name, value in new.get("properties", {}).items()
                    if name not in change.unset
                }
                new["properties"] = kept | stored(change.set)
            case layout_changes.SetRules():
                new["checks"] = change.checks
    return {
        name: value
        for name, value in new.items()
        if value or name not in ("checks", "properties", "partitionBy")
    }


def _unpublished(record: TableRecord, changes: Sequence[layout_changes.Change]) -> Altered:
    """An empty table: its options are all there is."""
    if "schema" not in record.options:
        for position, change in enumerate(changes):
            if isinstance(change, layout_changes.ColumnChange):
                raise layout_changes.refused(
                    position, "the table has no columns yet: the first ingest decides"
                )
        check_terms(record.options.get("partitionBy", []))
        return Altered(record=record, head=None, schema=None)
    present = parse_schema(record.options["schema"])
    schema = layout_changes.changed_columns(present, changes, 0)
    record.options["schema"] = _written(schema)
    layout = new_layout(record, schema)
    Partitioner(layout.schema, layout.spec)
    output_of(record.format).check(layout)
    return Altered(record=record, head=None, schema=schema)


def _written(schema: Schema) -> list[str]:
    """The columns in the notation of callers; nested ones, which callers cannot write, are omitted."""
    plain = [column for column in schema.columns if isinstance(column.field_type, PrimitiveType)]
    types = [str(column.field_type).replace(" ", "") for column in plain]
    return [
        f"{column.name}: {text}{' not null' if column.required else ''}"
        for column, text in zip(plain, types, strict=True)
    ]


def _check_format_can(record: TableRecord, changes: Sequence[layout_changes.Change]) -> None:
    """Only Iceberg's files name columns by id and record their own partitioning."""
    if record.format not in (FILES, DELTA):
        return
    allowed = (layout_changes.AddColumn, layout_changes.SetProperties, layout_changes.SetRules)
    for position, change in enumerate(changes):
        if not isinstance(change, allowed):
            kind = type(change).__struct_config__.tag
            raise PreconditionFailed(
                f"changes[{position}]: {kind} is for Iceberg tables; a {record.format} table that holds data "
                "gets columns, rules and properties",
                hint="create a new table and ingest its rows into that",
                details={"field": f"changes[{position}]"},
            )


def _add_to_delta(record: TableRecord, present: Schema, wanted: Schema) -> None:
    """A version of the table with more columns. Existing columns are kept, so it may be repeated."""
    known = {column.name for column in present.columns}
    added = [column for column in wanted.columns if column.name not in known]
    if added:
        add_columns(record.location, Layout(Schema(*added), PartitionSpec()), storage_of(record))


def _iceberg(
    record: TableRecord, head: Head, schema: Schema, changes: Sequence[layout_changes.Change]
) -> Altered:
    storage = storage_of(record)
    file = TableFile.read(head.metadata_location, storage=storage)
    base = file.metadata
    check_format(base)
    updates = schema_updates(base, schema)
    spec = base.spec()
    for change in changes:
        match change:
            case layout_changes.SetPartitioning():
                spec = _spec(base, schema, change.terms)
                updates += _spec_updates(base, spec)
            case layout_changes.SetProperties():
                new = stored(change.set)
                updates += [SetPropertiesUpdate(updates=new)] if new else []
                gone = [name for name in change.unset if name in base.properties]
                updates += [RemovePropertiesUpdate(removals=gone)] if gone else []
    _check_kept(base, schema, spec)
    Partitioner(schema, spec)
    if not updates:
        return Altered(record=record, head=None, schema=schema)
    draft = Draft(file_io(base.location, storage), file)
    try:
        location = draft.write(*updates)
    except BaseException:
        draft.discard()
        raise
    moved = Head(metadata_location=location, snapshot_id=head.snapshot_id, operation=BY)
    return Altered(record=record, head=moved, schema=schema, discard=draft.discard)


def _check_kept(base: TableMetadata, schema: Schema, spec: PartitionSpec) -> None:
    """Refuse to drop columns that the table is partitioned or sorted by from now on."""
    dropped = set(base.schema().field_ids) - set(schema.field_ids)
    for field in spec.fields:
        if field.source_id in dropped:
            raise InvalidArgument(
                f"the table is partitioned by {field.name!r}, a transform of a column that is to be dropped",
                hint="change how it is partitioned, too",
                details={"field": "changes"},
            )
    if any(field.source_id in dropped for field in base.sort_order().fields):
        raise InvalidArgument(
            "the table is sorted by a column that is to be dropped", details={"field": "changes"}
        )


def _spec(base: TableMetadata, schema: Schema, terms: Sequence[str]) -> PartitionSpec:
    """The spec of these terms. A field of an earlier spec keeps its id (specification, "Partition
    Evolution")."""
    wanted = parse_partitioning(terms, schema)
    known = {
        (field.source_id, repr(field.transform), field.name): field.field_id
        for spec in base.partition_specs
        for field in spec.fields
    }
    next_id = 1 + (base.last_partition_id or PARTITION_FIELD_ID_START - 1)
    fields = []
    for field in wanted.fields:
        number = known.get((field.source_id, repr(field.transform), field.name))
        if number is None:
            number, next_id = next_id, next_id + 1
        fields.append(PartitionField(field.source_id, number, field.transform, field.name))
    same = next((spec.spec_id for spec in base.partition_specs if list(spec.fields) == fields), None)
    spec_id = same if same is not None else 1 + max(spec.spec_id for spec in base.partition_specs)
    return PartitionSpec(*fields, spec_id=spec_id)


def _spec_updates(base: TableMetadata, spec: PartitionSpec) -> list[TableUpdate]:
    if spec.spec_id == base.default_spec_id:
        return []
    added = [] if spec.spec_id in base.specs() else [AddPartitionSpecUpdate(spec=spec)]
    return [*added, SetDefaultSpecUpdate(spec_id=spec.spec_id)]


# -- running operations ------------------------------------------------------------------------------


def check_running(
    record: TableRecord, changes: Sequence[layout_changes.Change], running: Iterable[OperationArg]
) -> None:
    """Refuse changes that would invalidate the plan of a running operation.

    Raises :class:`~distop.errors.IncompatibleOperation`, which names the operation and the reason.
    """
    for operation in running:
        for change in changes:
            if reason := _in_the_way(change, operation):
                raise IncompatibleOperation(
                    f"table {record.name!r} cannot be altered so while {operation.id} is running: {reason}",
                    details={"operation": str(operation.id), "table": record.name},
                )


def _in_the_way(change: layout_changes.Change, operation: OperationArg) -> str:
    mode = str(operation.argument.get("mode") or "")
    match change:
        case layout_changes.AddColumn(column=name) | layout_changes.RenameColumn(to=name) if (
            name.casefold() in _added_columns(operation)
        ):
            return f"it adds a column {name!r} itself"
        case layout_changes.RenameColumn(column=name) | layout_changes.DropColumn(column=name) if (
            operation.builds_index and operation.object == name
        ):
            return f"it builds an index of column {name!r}"
        case layout_changes.SetPartitioning() if mode == "overwrite_partitions":
            return "it replaces partitions as they were when it began"
        case layout_changes.SetRules() if operation.effect in (
            Effect.APPENDS,
            Effect.WRITES,
            Effect.REPLACES,
        ):
            return "its rows are checked by the rules of when it began"
    return ""


def _added_columns(operation: OperationArg) -> set[str]:
    """Case-folded names of columns that an operation adds."""
    added = evolution_of(operation).added
    if not added:
        return set()
    schema = Layout.from_json(operation.argument["layout"]).schema
    return {column.name.casefold() for column in schema.columns if column.field_id in added}
