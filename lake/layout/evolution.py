"""Tables that change: an operation adds or widens columns, or a caller alters them, on top of the present
schema.

Files name columns by id, so ids are fixed when an operation starts, and two concurrent operations must not
give one id to two columns. An id is therefore a hash of the column's name, among 65,536 ids after the last
one: operations that add the same column agree, others rarely collide, and a colliding one is refused. The
same holds for fields that nested columns get, whose names are paths such as ``a.element.b``.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import msgspec
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import NestedField

from distop.errors import CorruptRecord, InvalidArgument, SchemaConflict
from distop.lake.layout.model import Layout
from distop.lake.layout.properties import MAX_ID
from distop.lake.layout.schemas import fields_within, parse_schema, refuse_twins
from distop.metastore.records.names import unreadable
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import convert

_SPREAD = 1 << 16

EVOLUTION = "evolution"
"""Field of an operation's argument."""


class Evolution(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an operation changes in a table's columns; recorded next to the resulting layout."""

    added: list[int] = []
    """Ids of new columns, and of new fields of nested ones."""
    widened: list[int] = []
    """Ids of widened columns."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)


def evolution_of(arg: OperationArg) -> Evolution:
    """The changes of an operation. Raises :class:`~distop.errors.CorruptRecord`."""
    recorded = arg.argument.get(EVOLUTION)
    if recorded is None:
        return Evolution()
    try:
        return convert(recorded, Evolution)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"{arg.id} does not record what it changes of the columns: {error}") from error


def may_widen(present: iceberg.IcebergType, wanted: iceberg.IcebergType) -> bool:
    """Whether Iceberg can promote one type to the other (specification, "Schema Evolution")."""
    match present, wanted:
        case (iceberg.IntegerType(), iceberg.LongType()) | (iceberg.FloatType(), iceberg.DoubleType()):
            return True
        case iceberg.DecimalType(), iceberg.DecimalType():
            return present.scale == wanted.scale and present.precision < wanted.precision
    return False


def evolved(
    layout: Layout,
    add: Sequence[iceberg.NestedField] = (),
    widen: Mapping[str, iceberg.IcebergType] | None = None,
    grow: Mapping[str, iceberg.IcebergType] | None = None,
) -> tuple[Layout, Evolution]:
    """The layout of a table with added and widened columns, and the changes.

    Parameters
    ----------
    add:
        Their ids are ignored. All become optional: existing rows have no value for them.
    grow:
        Columns -> types whose fields they get, in structs, lists and values of maps.

    Raises as :func:`check_new_names`.
    """
    wider, larger = widen or {}, grow or {}
    taken = set(layout.schema.field_ids)
    last = max(layout.last_column_id, layout.schema.highest_field_id)
    added: list[int] = []

    def number(field: iceberg.NestedField, path: str) -> iceberg.NestedField:
        made = _numbered(field, path, last, taken)
        taken.update(Schema(made).field_ids)
        added.append(made.field_id)
        return made

    columns = [_retyped(column, wider.get(column.name)) for column in layout.schema.columns]
    columns = [
        _retyped(column, _grown(column.field_type, larger[column.name], column.name, number))
        if column.name in larger
        else column
        for column in columns
    ]
    columns += [number(column, column.name) for column in add]
    schema = _schema(layout.schema, columns, layout.schema.schema_id + 1)
    check_new_names(schema, layout.schema, [layout.spec])
    widened = [column.field_id for column in layout.schema.columns if column.name in wider]
    evolution = Evolution(added=added, widened=widened)
    return (replace(layout, schema=schema) if evolution else layout), evolution


def _grown(
    present: iceberg.IcebergType,
    given: iceberg.IcebergType,
    path: str,
    number: Callable[[iceberg.NestedField, str], iceberg.NestedField],
) -> iceberg.IcebergType:
    """``present`` with the fields that only ``given`` has. Keys of maps stay as they are."""

    def inner(field: iceberg.NestedField, kind: iceberg.IcebergType) -> iceberg.IcebergType:
        return _grown(field.field_type, kind, f"{path}.{field.name}", number)

    match present, given:
        case iceberg.StructType(), iceberg.StructType():
            new = {field.name: field for field in given.fields}
            fields = [
                _with(field, field_type=inner(field, new.pop(field.name).field_type))
                if field.name in new
                else field
                for field in present.fields
            ]
            return iceberg.StructType(
                *fields, *(number(field, f"{path}.{field.name}") for field in new.values())
            )
        case iceberg.ListType(), iceberg.ListType():
            element = inner(present.element_field, given.element_type)
            return iceberg.ListType(present.element_id, element, present.element_required)
        case iceberg.MapType(), iceberg.MapType():
            value = inner(present.value_field, given.value_type)
            return _map_of(present, value)
    return present


def _map_of(kind: iceberg.MapType, value: iceberg.IcebergType) -> iceberg.MapType:
    return iceberg.MapType(kind.key_id, kind.key_type, kind.value_id, value, kind.value_required)


def check_new_names(schema: Schema, present: Schema, specs: Iterable[PartitionSpec]) -> None:
    """Refuse new columns, and new names, that other engines could not distinguish from others of the table.

    Raises as :func:`~distop.lake.layout.schemas.refuse_twins` and :func:`refuse_partition_names`.
    """
    refuse_twins(schema, present)
    refuse_partition_names(schema, present, specs)


def refuse_partition_names(schema: Schema, present: Schema, specs: Iterable[PartitionSpec]) -> None:
    """Refuse new columns, and new names, that are names of partition fields of other columns, also in earlier
    partitionings: Iceberg's Java library would not read the table. Those of dropped columns are free.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    known = {(column.field_id, column.name) for column in present.columns}
    new = {
        column.name: column.field_id
        for column in schema.columns
        if (column.field_id, column.name) not in known
    }
    there = set(schema.field_ids)
    for field in (field for spec in specs for field in spec.fields if field.source_id in there):
        if new.get(field.name, field.source_id) != field.source_id:
            raise InvalidArgument(
                f"column {field.name!r} would have the name of a partition field: the table is, or was, "
                f"partitioned by {field.transform} of another column under that name",
                hint="give the column another name",
                details={"column": field.name},
            )


def _numbered(column: iceberg.NestedField, path: str, last: int, taken: set[int]) -> iceberg.NestedField:
    used = set(taken)
    seed = zlib.crc32(path.encode())

    def next_id() -> int:
        number = last + 1 + seed % _SPREAD
        while number in used:
            number += 1
        if number > MAX_ID:
            raise InvalidArgument(
                f"column {path!r} would get the id {number}, the table has no more of them",
                details={"column": path},
            )
        used.add(number)
        return number

    optional = _with(column, required=False)
    return assign_fresh_schema_ids(Schema(optional), next_id).columns[0]


def put_on(present: Schema, planned: Schema, evolution: Evolution, known: Iterable[Schema] = ()) -> Schema:
    """The present columns of a table with those that an operation adds and widens.

    Parameters
    ----------
    planned:
        The operation's own layout, which its files were written with.
    known:
        Columns that the table had before.

    Raises
    ------
    SchemaConflict
        The table has a different column with that name or id by now, or a type that the files do not
        fit.
    """
    merge = _Merge(present, planned, evolution, list(known))
    return _schema(present, merge.fields(present.columns, planned.columns), present.schema_id)


class _Merge:
    """Puts the columns of ``planned`` on those of ``present``, level by level; see :func:`put_on`."""

    def __init__(self, present: Schema, planned: Schema, evolution: Evolution, known: list[Schema]) -> None:
        self._planned, self._evolution = planned, evolution
        self._ids = {number for schema in (present, *known) for number in schema.field_ids}
        self._known = {
            (number, schema.find_column_name(number))
            for schema in (present, *known)
            for number in schema.field_ids
        }

    def fields(
        self, present: Iterable[iceberg.NestedField], planned: Iterable[iceberg.NestedField]
    ) -> list[iceberg.NestedField]:
        """The fields of a struct, or the columns."""
        there = {field.field_id: field for field in present}
        names = {field.name.casefold() for field in there.values()}
        for field in planned:
            number, now = field.field_id, there.get(field.field_id)
            if (number, self._path(field)) not in self._known:
                if number not in self._evolution.added:
                    raise self._conflict(field, "the table has never had it")
                if field.name.casefold() in names or not self._ids.isdisjoint(Schema(field).field_ids):
                    raise self._conflict(field, "the table now has a different one with that name or id")
                there[number] = field
            elif now is not None:  # a column dropped since stays dropped: readers ignore it in files
                there[number] = _retyped(now, self._type(now.field_type, field))
        return list(there.values())

    def _type(self, now: iceberg.IcebergType, field: iceberg.NestedField) -> iceberg.IcebergType:
        """The type of a field that both have."""
        match now, field.field_type:
            case iceberg.StructType(), iceberg.StructType() as planned:
                return iceberg.StructType(*self.fields(now.fields, planned.fields))
            case iceberg.ListType(), iceberg.ListType() as planned if now.element_id == planned.element_id:
                element = self._type(now.element_type, planned.element_field)
                return iceberg.ListType(now.element_id, element, now.element_required)
            case iceberg.MapType(), iceberg.MapType() as planned if now.value_id == planned.value_id:
                return _map_of(now, self._type(now.value_type, planned.value_field))
            case _, planned if now == planned or may_widen(planned, now):
                return now
            case _, planned if field.field_id in self._evolution.widened and may_widen(now, planned):
                return planned
        raise self._conflict(field, f"it is {now} by now, and {field.field_type} in the files")

    def _path(self, field: iceberg.NestedField) -> str | None:
        return self._planned.find_column_name(field.field_id)

    def _conflict(self, field: iceberg.NestedField, why: str) -> SchemaConflict:
        path = self._path(field) or field.name
        return SchemaConflict(
            f"the table has changed since the operation began; column {path!r}: {why}",
            details={"column": path},
        )


def _retyped(column: iceberg.NestedField, kind: iceberg.IcebergType | None) -> iceberg.NestedField:
    return column if kind is None else _with(column, field_type=kind)


def _with(column: iceberg.NestedField, **changes: object) -> iceberg.NestedField:
    return column.model_copy(update=changes)


def _schema(like: Schema, columns: Iterable[iceberg.NestedField], schema_id: int) -> Schema:
    try:
        return Schema(*columns, schema_id=schema_id, identifier_field_ids=like.identifier_field_ids)
    except ValueError as error:  # a column called "a.b" next to a field "b" of "a"
        raise InvalidArgument(
            f"the table cannot have these columns: {error}",
            hint="give one of them another name",
            details={"field": "schema"},
        ) from None


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
