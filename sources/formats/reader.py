"""The interface of a file format's reader: files to raw rows, and raw rows to columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from distop.lake.layout.properties import MAX_COLUMN_NAME, MAX_COLUMNS
from distop.sources.formats.bad_rows import Rows
from distop.sources.formats.files import OpenFile
from distop.sources.formats.types import convertible, name_of, new_fields

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
