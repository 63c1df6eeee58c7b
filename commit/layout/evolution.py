"""Tables that change: an operation adds or widens columns, on top of the table's present schema.

Files name columns by id, so ids are fixed when an operation starts, and two concurrent operations must not
give one id to two columns. An id is therefore a hash of the column's name, among 65,536 ids after the last
one: operations that add the same column agree, others rarely collide, and a colliding one is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
from pyiceberg.partitioning import PartitionSpec
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
from distop.commit.layout.sizes import MAX_ID
from distop.errors import CorruptRecord, InvalidArgument, SchemaConflict
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.structs import convert

_SPREAD = 1 << 16

EVOLUTION = "evolution"
"""Field of an operation's argument."""


class Evolution(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an operation changes in a table's columns; recorded next to the resulting layout."""

    added: list[int] = []
    """Ids of new columns."""
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


def may_widen(present: IcebergType, wanted: IcebergType) -> bool:
    """Whether Iceberg can promote one type to the other (specification, "Schema Evolution")."""
    match present, wanted:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return present.scale == wanted.scale and present.precision < wanted.precision
    return False


def evolved(
    layout: Layout, add: Sequence[NestedField] = (), widen: Mapping[str, IcebergType] | None = None
) -> tuple[Layout, Evolution]:
    """The layout of a table with added and widened columns, and the changes.

    Parameters
    ----------
    add:
        Their ids are ignored. All become optional: existing rows have no value for them.

    Raises as :func:`refuse_partition_names`.
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
    refuse_partition_names(schema, layout.schema, [layout.spec])
    widened = [column.field_id for column in layout.schema.columns if column.name in wider]
    evolution = Evolution(added=[column.field_id for column in added], widened=widened)
    return (replace(layout, schema=schema) if evolution else layout), evolution


def refuse_partition_names(schema: Schema, present: Schema, specs: Iterable[PartitionSpec]) -> None:
    """Refuse new columns, and new names, that are names of partition fields of other columns, also in earlier
    partitionings: Iceberg's Java library would not read the table. Those of dropped columns are free.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    known = {(column.field_id, column.name) for column in present.columns}
    new = {one.name: one.field_id for one in schema.columns if (one.field_id, one.name) not in known}
    there = set(schema.field_ids)
    for field in (field for spec in specs for field in spec.fields if field.source_id in there):
        if new.get(field.name, field.source_id) != field.source_id:
            raise InvalidArgument(
                f"column {field.name!r} would have the name of a partition field: the table is, or was, "
                f"partitioned by {field.transform} of another column under that name",
                hint="give the column another name",
                details={"column": field.name},
            )


def _numbered(column: NestedField, last: int, taken: set[int]) -> NestedField:
    used = set(taken)
    seed = zlib.crc32(column.name.encode())

    def next_id() -> int:
        number = last + 1 + seed % _SPREAD
        while number in used:
            number += 1
        if number > MAX_ID:
            raise InvalidArgument(
                f"column {column.name!r} would get the id {number}, the table has no more of them",
                details={"column": column.name},
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
    there = {column.field_id: column for column in present.columns}
    names = {column.name for column in present.columns}
    past = {number for schema in known for number in schema.field_ids}
    known_names = {(column.field_id, column.name) for one in (present, *known) for column in one.columns}
    columns = dict(there)
    for column in planned.columns:
        number, now = column.field_id, there.get(column.field_id)
        is_known = (number, column.name) in known_names
        if number in evolution.added and not is_known:
            if column.name in names or not past.union(there).isdisjoint(Schema(column).field_ids):
                raise _conflict(column, "the table now has a different one with that name or id")
            columns[number] = column
        elif not is_known:
            raise _conflict(column, "the table has never had it")
        elif now is None or now.field_type == column.field_type:
            continue  # a column dropped since stays dropped: readers ignore it in files
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
