"""Changes of a table as callers write them, and their effect on its columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from distop.errors import InvalidArgument
from distop.lake.layout.evolution import may_widen
from distop.lake.layout.schemas import fields_within, parse_schema
from distop.lake.layout.sizes import MAX_ID
from distop.metastore.records.names import unreadable
from distop.metastore.records.record import convert

MAX_CHANGES = 1000
"""Most changes of one call."""


class _SchemaChange(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="change"
):
    @property
    def summary(self) -> str:
        """The change in a few words."""
        fields = msgspec.to_builtins(self)
        return " ".join(_text(value) for value in fields.values())


class AddColumn(_SchemaChange, tag="add"):
    """Adds a column; it is optional, and NULL in existing rows."""

    column: str
    type: str
    doc: str = ""


class RenameColumn(_SchemaChange, tag="rename"):
    column: str
    to: str


class DropColumn(_SchemaChange, tag="drop"):
    column: str


class WidenColumn(_SchemaChange, tag="widen"):
    """Widens a type: ``int`` to ``long``, ``float`` to ``double``, more digits of a decimal."""

    column: str
    type: str


class MakeOptional(_SchemaChange, tag="optional"):
    """Allows NULL from now on."""

    column: str


class DescribeColumn(_SchemaChange, tag="doc"):
    column: str
    doc: str


class MoveColumn(_SchemaChange, tag="move"):
    """Moves a column behind another one or, if none is named, to the front."""

    column: str
    after: str = ""


class SetPartitioning(_SchemaChange, tag="partition_by"):
    """Changes the partitioning of new rows. Existing files stay as they are."""

    terms: list[str]


class SetProperties(_SchemaChange, tag="properties"):
    set: dict[str, str] = {}
    unset: list[str] = []


class SetRules(_SchemaChange, tag="checks"):
    """Replaces the rules that rows must keep; without ``checks``: none."""

    checks: dict[str, Any] | None = None


ColumnChange: TypeAlias = (
    AddColumn | RenameColumn | DropColumn | WidenColumn | MakeOptional | DescribeColumn | MoveColumn
)
Change: TypeAlias = ColumnChange | SetPartitioning | SetProperties | SetRules


def parse_changes(raw: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Raises :class:`~distop.errors.InvalidArgument` that names the change."""
    if not 0 < len(raw) <= MAX_CHANGES:
        raise InvalidArgument(
            f"{len(raw)} changes are requested; a call can make 1 to {MAX_CHANGES}",
            details={"field": "changes"},
        )
    changes: list[Change] = []
    for position, change in enumerate(raw):
        try:
            changes.append(convert(dict(change), cast("type[Change]", Change)))
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"changes[{position}]: {error}",
                hint='write for example {"change": "add", "column": "fare", "type": "decimal(9,2)"}',
                details={"field": f"changes[{position}]"},
            ) from None
    return changes


def changed_columns(schema: Schema, changes: Iterable[Change], last_column_id: int) -> Schema:
    """The columns after the changes, applied in order.

    Raises :class:`~distop.errors.InvalidArgument` if one of them is impossible.
    """
    columns = list(schema.columns)
    ids = itertools.count(1 + max(last_column_id, schema.highest_field_id))
    for position, change in enumerate(changes):
        if isinstance(change, ColumnChange):
            try:
                columns = _applied(columns, change, schema, ids)
            except _ChangeRefused as error:
                raise refused(position, str(error)) from None
    return Schema(*columns, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def is_there(schema: Schema, change: Change) -> bool:
    """Whether a change adds a column that the table has, with the same type."""
    if not isinstance(change, AddColumn):
        return False
    try:
        wanted = _typed(change.column, change.type)
    except _ChangeRefused:
        return False
    columns = (column for column in schema.columns if column.name == change.column)
    return not wanted.required and any(column.field_type == wanted.field_type for column in columns)


class _ChangeRefused(ValueError):
    """A change is impossible; the text says why."""


def refused(position: int, reason: str) -> InvalidArgument:
    """The error for one of some changes."""
    return InvalidArgument(f"changes[{position}]: {reason}", details={"field": f"changes[{position}]"})


def _applied(
    columns: list[NestedField], change: ColumnChange, schema: Schema, ids: Iterator[int]
) -> list[NestedField]:
    if isinstance(change, AddColumn):
        return [*columns, _new(columns, change, next(ids))]
    at = _find(columns, change.column)
    column = columns[at]
    match change:
        case RenameColumn():
            _check_free([other for other in columns if other is not column], change.to)
            columns[at] = column.model_copy(update={"name": change.to})
        case DropColumn():
            if column.field_id in schema.identifier_field_ids:
                raise _ChangeRefused(f"column {column.name!r} identifies rows")
            if len(columns) == 1:
                raise _ChangeRefused(f"column {column.name!r} is the only one")
            del columns[at]
        case WidenColumn():
            wanted = _typed(change.column, change.type).field_type
            if wanted != column.field_type and not may_widen(column.field_type, wanted):
                raise _ChangeRefused(
                    f"column {column.name!r} is {column.field_type} and cannot become {wanted}: int becomes "
                    "long, float double, and a decimal gets more digits before the point"
                )
            columns[at] = column.model_copy(update={"field_type": wanted})
        case MakeOptional():
            if column.field_id in schema.identifier_field_ids:
                raise _ChangeRefused(f"column {column.name!r} identifies rows")
            columns[at] = column.model_copy(update={"required": False})
        case DescribeColumn():
            columns[at] = column.model_copy(update={"doc": change.doc or None})
        case MoveColumn():
            del columns[at]
            columns.insert(1 + _find(columns, change.after) if change.after else 0, column)
    return columns


def _new(columns: list[NestedField], change: AddColumn, number: int) -> NestedField:
    _check_free(columns, change.column)
    if number > MAX_ID:
        raise _ChangeRefused(
            f"column {change.column!r} would get the id {number}, the table has no more of them"
        )
    made = _typed(change.column, change.type)
    if made.required:
        raise _ChangeRefused(f"column {change.column!r} cannot be required: existing rows have no value")
    return made.model_copy(update={"field_id": number, "doc": change.doc or None})


def _typed(name: str, text: str) -> NestedField:
    try:
        return parse_schema({name: text}).columns[0]
    except InvalidArgument as error:
        raise _ChangeRefused(error.message) from None


def _check_free(columns: Iterable[NestedField], name: str) -> None:
    if not name.strip():
        raise _ChangeRefused("a column has no name")
    if reason := unreadable(name):
        raise _ChangeRefused(f"column {name!r} {reason}")
    for column in columns:
        if column.name.casefold() == name.casefold():
            raise _ChangeRefused(f"there is a column {column.name!r} already")
        if name.casefold().startswith(f"{column.name.casefold()}.") and fields_within(column.field_type):
            raise _ChangeRefused(
                f"column {name!r} would be taken for a field of column {column.name!r}, and fields of nested "
                "columns come with rows: ingest them with --on-new-columns add"
            )


def _find(columns: Sequence[NestedField], name: str) -> int:
    for at, column in enumerate(columns):
        if column.name == name:
            return at
    raise _ChangeRefused(
        f"there is no column {name!r}; the columns are {', '.join(column.name for column in columns)}"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
