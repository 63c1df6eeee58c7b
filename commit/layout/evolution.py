"""Tables that change: columns that an operation adds or widens, put on whatever the table is by then.

Files name columns by id, so ids are fixed when an operation starts, and two that add columns at the same time
must not give one id to two of them. An id is therefore chosen by the column's name, among 65,536 behind the
last one: operations that add the same column agree, others hardly ever meet, and one that does is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
)

from distop.commit.layout.model import Layout
from distop.errors import CorruptRecord, SchemaConflict
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.structs import convert

_SPREAD = 1 << 16

EVOLUTION = "evolution"
"""Field of an operation's argument."""


class Evolution(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an operation changes of a table's columns; recorded beside the layout that has it all."""

    added: list[int] = []
    """Ids of columns that the table did not have."""
    widened: list[int] = []
    """Ids of columns whose type held less."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)


def evolution_of(arg: OperationArg) -> Evolution:
    """What an operation changes. Raises :class:`~distop.errors.CorruptRecord`."""
    recorded = arg.argument.get(EVOLUTION)
    if recorded is None:
        return Evolution()
    try:
        return convert(recorded, Evolution)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"{arg.id} does not record what it changes of the columns: {error}") from error


def may_widen(present: IcebergType, wanted: IcebergType) -> bool:
    """Whether Iceberg lets a column of the one type become the other (specification, "Schema Evolution")."""
    match present, wanted:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return present.scale == wanted.scale and present.precision < wanted.precision
    return False


def evolved(
    layout: Layout, add: Sequence[NestedField] = (), widen: Mapping[str, IcebergType] | None = None
) -> tuple[Layout, Evolution]:
    """The layout of a table with some columns more, and wider ones; and what is new about it.

    Parameters
    ----------
    add:
        Their ids mean nothing. All become optional: rows of the past have no value there.
    """
    wider = widen or {}
    columns = [_retyped(column, wider.get(column.name)) for column in layout.schema.columns]
    taken = set(layout.schema.field_ids)
    last = max(layout.last_column_id, layout.schema.highest_field_id)
    added = []
    for column in add:
        made = _numbered(column, last, taken)
        taken.update(Schema(made).field_ids)
        added.append(made)
    schema = _schema(layout.schema, [*columns, *added], layout.schema.schema_id + 1)
    widened = [column.field_id for column in layout.schema.columns if column.name in wider]
    told = Evolution(added=[column.field_id for column in added], widened=widened)
    return (replace(layout, schema=schema) if told else layout), told


def _numbered(column: NestedField, last: int, taken: set[int]) -> NestedField:
    used = set(taken)
    seed = zlib.crc32(column.name.encode())

    def next_id() -> int:
        number = last + 1 + seed % _SPREAD
        while number in used:
            number += 1
        used.add(number)
        return number

    optional = _with(column, required=False)
    return assign_fresh_schema_ids(Schema(optional), next_id).columns[0]


def put_on(present: Schema, planned: Schema, evolution: Evolution, known: Iterable[Schema] = ()) -> Schema:
    """The present columns of a table with what an operation adds and widens.

    Parameters
    ----------
    planned:
        The operation's own, which its files were written with.
    known:
        Columns that the table had before.

    Raises
    ------
    SchemaConflict
        The table has got another column of that name or of that id meanwhile, or a type that the files do not
        fit.
    """
    there = {column.field_id: column for column in present.columns}
    names = {column.name for column in present.columns}
    past = {number for schema in known for number in schema.field_ids}
    told = {(column.field_id, column.name) for one in (present, *known) for column in one.columns}
    columns = dict(there)
    for column in planned.columns:
        number, now = column.field_id, there.get(column.field_id)
        is_known = (number, column.name) in told
        if number in evolution.added and not is_known:
            if column.name in names or not past.union(there).isdisjoint(Schema(column).field_ids):
                raise _conflict(column, "the table has got another one of that name or id")
            columns[number] = column
        elif not is_known:
            raise _conflict(column, "the table has never had it")
        elif now is None or now.field_type == column.field_type:
            continue  # what was dropped since stays so: readers pass over it in the files
        elif number in evolution.widened and may_widen(now.field_type, column.field_type):
            columns[number] = _retyped(now, column.field_type)
        elif not may_widen(column.field_type, now.field_type):
            raise _conflict(column, f"it is {now.field_type} by now, and {column.field_type} in the files")
    return _schema(present, columns.values(), present.schema_id)


def _conflict(column: NestedField, why: str) -> SchemaConflict:
    return SchemaConflict(
        f"the table has changed since the operation began; column {column.name!r}: {why}",
        details={"column": column.name},
    )


def _retyped(column: NestedField, kind: IcebergType | None) -> NestedField:
    return column if kind is None else _with(column, field_type=kind)


def _with(column: NestedField, **changes: object) -> NestedField:
    return column.model_copy(update=changes)


def _schema(like: Schema, columns: Iterable[NestedField], schema_id: int) -> Schema:
    return Schema(*columns, schema_id=schema_id, identifier_field_ids=like.identifier_field_ids)
