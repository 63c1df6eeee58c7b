"""Converts rows for a table: one rule, wherever the rows come from.

Columns are matched by name, and so are the fields of structs, also within lists and maps. One that the table
does not have is refused; one that the rows do not have becomes NULL, and is refused if the table requires it.
A value becomes the same value in the type of its column (see ``conversion``), or its row is bad.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from distop.errors import BadRow, InvalidArgument
from distop.operations.arguments import invalid
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.conversion import check_values, convert
from distop.sources.formats.reader import describe
from distop.sources.formats.types import UnrepresentableType, convertible, name_of, new_fields, table_type


def check_columns(
    given: pa.Schema,
    table: pa.Schema,
    *,
    field: str = "schema",
    hint: str = "",
    ignored: Collection[str] = (),
) -> None:
    """Check everything that is known before the first row.

    Parameters
    ----------
    field, hint:
        Of an argument: the field that selects the columns, and how.
    ignored:
        Paths of nested fields that the rows may have, and the table does not.

    Raises
    ------
    InvalidArgument
        The rows cannot be rows of the table; names the column.
    """
    names = list(given.names)
    for name in names:
        if names.count(name) > 1:
            raise _unfit(name, field, "the rows have two columns with this name", "give one another name")
        if name not in table.names:
            similar = [other for other in table.names if other.lower() == name.lower()]
            known = f"the table has {similar[0]!r}" if similar else f"it has {describe(table.names)}"
            raise _unfit(name, field, f"the table has no column {name!r}: {known}", hint)
    for column in table:
        if column.name not in names:
            if not column.nullable:
                reason = f"the table requires a column {column.name!r}, which the rows do not have"
                raise _unfit(column.name, field, reason, hint)
        elif not convertible(given.field(column.name).type, column.type):
            given_type = given.field(column.name).type
            reason = f"{name_of(given_type)} in the source cannot become {column.type} in the table"
            raise _unfit(column.name, "schema", reason, "leave the column out, or give it another type")
        else:
            for path in new_fields(given.field(column.name).type, column.type, column.name):
                if path not in ignored:
                    raise _unfit(path, field, f"the table's column {column.name!r} has no such field", hint)


def converted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with the columns of ``schema``.

    Raises
    ------
    Unconvertible
        A value does not fit its column, or is missing where one is required.
    """
    return pa.table([_column(rows, field) for field in schema], schema=schema)


def writable(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """As :func:`converted`, for rows that are written: a row is also bad if readers do not have a value."""
    rows = converted(rows, schema)
    check_values(rows)
    return rows


def fitting(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """As :func:`writable`, for rows of a DataFrame: raises :class:`~distop.errors.BadRow` if one is bad."""
    try:
        return writable(rows, schema)
    except Unconvertible as error:
        raise BadRow(str(error), hint="cast or replace such values in the query") from None


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    values = convert(rows.column(field.name), field.type, field.name)
    if not field.nullable and values.null_count:
        raise Unconvertible(f"column {field.name!r} is required and has no value")
    return values


def columns_for(rows: pa.Schema) -> pa.Schema:
    """The columns of a new table for these rows.

    All are optional: rows without NULL do not mean that there will never be any. Raises
    :class:`~distop.errors.InvalidArgument` for a type that no table supports.
    """
    fields = []
    for column in rows:
        try:
            fields.append(pa.field(column.name, table_type(column.type)))
        except UnrepresentableType as error:
            raise _unfit(column.name, "schema", str(error), "cast the column to another type") from None
    return pa.schema(fields)


def _unfit(column: str, field: str, reason: str, hint: str) -> InvalidArgument:
    return invalid(field, f"column {column!r}: {reason}", hint, column=column)
