"""A file format's reader: files to raw rows, and raw rows to columns of a table, by one rule.

Columns are matched by name, and so are the fields of structs, also within lists and maps. One that the table
does not have is refused; one that the rows do not have becomes NULL, and is refused if the table requires it.
A value becomes the same value in the type of its column (see ``conversion``), or its row is bad.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from distop.errors import BadRow, InvalidArgument
from distop.lake.layout.properties import MAX_COLUMN_NAME, MAX_COLUMNS
from distop.operations.arguments import invalid
from distop.sources.formats.bad_rows import Rows, Unconvertible
from distop.sources.formats.conversion import check_values, convert
from distop.sources.formats.files import OpenFile
from distop.sources.formats.types import UnrepresentableType, convertible, name_of, new_fields, table_type

if TYPE_CHECKING:
    import pyarrow as pa


class FileUnusable(Exception):
    """A file is invalid as a whole. The text is the reason, without the file's name."""


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """Which columns to read from the files of a source.

    Parameters
    ----------
    schema:
        Arrow names and types of the columns, in the types of an Iceberg table.
    strict:
        Whether unwanted columns, and unwanted fields of nested ones, are an error.
    partly:
        Whether a file may lack some of them, which are then NULL.
    """

    schema: pa.Schema
    strict: bool
    partly: bool = False

    def check(self, names: list[str]) -> None:
        """Check the columns of a file that lists them.

        Raises
        ------
        FileUnusable
        """
        there, wanted = set(names), set(self.schema.names)
        missing = [name for name in self.schema.names if name not in there]
        if missing and not self.partly:
            raise FileUnusable(f"has no column {missing[0]!r}, only {describe(names)}")
        self.check_extra([name for name in names if name not in wanted])

    def check_types(self, given: pa.Schema) -> list[str]:
        """Check the columns of a file that knows their types; those of the required ones that it has.

        Raises
        ------
        FileUnusable
        """
        self.check(given.names)
        there = [field for field in self.schema if field.name in given.names]
        for field in there:
            kind = given.field(field.name).type
            if not convertible(kind, field.type):
                raise FileUnusable(
                    f"has {name_of(kind)} in column {field.name!r}, which cannot become {field.type}"
                )
            self.check_extra(new_fields(kind, field.type, field.name))
        return [field.name for field in there]

    def check_extra(self, extra: list[str]) -> None:
        """Check the columns, or the nested fields, of a file that ``schema`` does not have.

        Raises
        ------
        FileUnusable
        """
        if extra and self.strict:
            raise FileUnusable(f"has a column {extra[0]!r} that is not wanted; see --on-new-columns")


R = TypeVar("R", bound=Rows)


class FileReader(Protocol[R]):
    """An open file of a source."""

    row_unit: str
    """The unit of row numbers: ``line``, ``row`` or ``element``."""

    def blocks(self, start: int, end: int | None) -> Iterator[R]:
        """The raw rows of units ``start`` to ``end`` (``None``: the end), in blocks of bounded size.

        Raises
        ------
        FileUnusable
        """

    def convert(self, rows: R) -> pa.Table:
        """The required columns of raw rows of this file, one row each.

        Raises
        ------
        Unconvertible
        """


class FormatReader(Protocol):
    """Reads the files of one format."""

    def open(self, file: OpenFile) -> AbstractContextManager[FileReader[Any]]:
        """Open one file. Raises :class:`FileUnusable` if its columns do not match."""


def check_size(names: Sequence[str]) -> None:
    """Refuse a file with more columns than a table can have, or longer names, before any other work.

    Raises
    ------
    FileUnusable
    """
    if len(names) > MAX_COLUMNS:
        raise FileUnusable(f"has {len(names):,} columns, at most {MAX_COLUMNS:,} are read")
    for name in names:
        if len(name) > MAX_COLUMN_NAME:
            raise FileUnusable(
                f"has a column {name[:50]!r}... with a name of {len(name):,} characters, "
                f"at most {MAX_COLUMN_NAME:,} are read"
            )


@contextmanager
def damage_named() -> Iterator[None]:
    """Turn what a library says of bytes that it cannot decode into :class:`FileUnusable`."""
    try:
        yield
    except (ArithmeticError, EOFError, LookupError, ValueError) as error:
        raise FileUnusable(f"is damaged: {str(error) or type(error).__name__}") from error
    except OSError as error:
        # Errors of the operating system have a number, and may be transient.
        if error.errno is not None:
            raise
        raise FileUnusable(f"is damaged: {error}") from error


def describe(names: list[str], limit: int = 30) -> str:
    """Some names, for a message."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


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
