"""Infers the columns of a source and their types: read from Parquet, guessed from a sample of text.

Guesses are conservative where a wrong one would lose data: numbers with leading zeros (post codes) and
integers with more digits than a float holds stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_
from pyarrow.csv import ReadOptions, read_csv

from distop.errors import SourceUnreadable
from distop.operations.arguments import invalid
from distop.spark_jobs.formats.csv import convert_options, csv_text, parse_options, read_header
from distop.spark_jobs.formats.files import OpenFile
from distop.spark_jobs.formats.jsonl import first_objects
from distop.spark_jobs.formats.options import CsvOptions, Format
from distop.spark_jobs.formats.parquet import holds, opened_parquet
from distop.spark_jobs.formats.reader import FileUnusable, check_size
from distop.spark_jobs.formats.suspicions import foreign_encoding, no_values, suspicions
from distop.spark_jobs.formats.types import UnsupportedType, table_type

SAMPLE_FILES = 8
SAMPLE_BYTES = 2 << 20
"""How much text is sampled, from the beginnings of all sampled files together."""

_NO_PLAIN_NUMBER = r"^\s*[+-]?(0[0-9]|[0-9]{16,}\s*$)"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?")
_INSTANT = re.compile(_TIMESTAMP.pattern + r"(Z|[+-]\d\d:?\d\d)")

T = TypeVar("T")


class Sample(Protocol):
    """What a sample shows of a source."""

    @property
    def names(self) -> list[str]:
        """Its columns, in the order of the first file."""

    @property
    def all_names(self) -> list[str]:
        """The same, plus columns that only other files of the sample have."""

    @property
    def complete(self) -> bool:
        """Whether there can be no other columns."""

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Types of some of its columns, in the form of a table."""

    def fits(self, column: str, dtype: pa.DataType) -> bool:
        """Whether all sampled values of a column fit a numeric type."""


def take_sample(
    file_format: Format, files: Sequence[OpenFile], options: CsvOptions, *, check_newlines: bool
) -> Sample:
    """Sample some of the files, evenly spread.

    Parameters
    ----------
    check_newlines:
        CSV: refuse quoted newlines, since the option is not set.

    Raises
    ------
    SourceUnreadable
        A file is invalid; names it.
    InvalidArgument
        An option does not fit the files, or a column of a file has a type that no table supports.
    """
    last = len(files) - 1
    count = min(len(files), SAMPLE_FILES)
    chosen = [files[last * number // max(1, count - 1)] for number in range(count)]
    if file_format == "csv":
        return CsvSample.of(chosen, options, check_newlines=check_newlines)
    return JsonSample.of(chosen) if file_format == "jsonl" else ParquetSample(chosen)


class CsvSample:
    """Names of columns, and types guessed from some records.

    Parameters
    ----------
    heads:
        Text of complete records, each with the names of its columns.
    """

    complete = True

    def __init__(self, heads: Sequence[tuple[list[str], bytes]], options: CsvOptions) -> None:
        self._options = options
        self._heads = heads
        self.names = next((names for names, _ in heads if names), [])
        self.all_names = list(dict.fromkeys(name for names, _ in heads for name in names))

    @classmethod
    def of(cls, files: Sequence[OpenFile], options: CsvOptions, *, check_newlines: bool) -> CsvSample:
        """The beginnings of all files."""
        size = SAMPLE_BYTES // len(files)

        def head(file: OpenFile) -> tuple[list[str], bytes]:
            text = csv_text(file.text(), options)
            names, first = read_header(text, options)
            return names, text.head(first, size)

        heads = [looked_into(file, head) for file in files]
        for file, (_, records) in zip(files, heads, strict=True):
            if check_newlines and options.quoting.holds_newline(records):
                raise invalid(
                    "multiline",
                    f"{file.url} has a newline within quotes",
                    "set multiline to true if values may hold newlines (then no file is split), else false",
                )
        return cls(heads, options)

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return self._types(columns, self._options)

    def _types(self, columns: Sequence[str], options: CsvOptions) -> dict[str, pa.DataType]:
        found: dict[str, list[pa.DataType]] = {column: [] for column in columns}
        for names, head in self._heads:
            known = set(names)
            there = [name for name in columns if name in known]
            for column, dtype in self._guess(names, head, there, options).items():
                found[column].append(dtype)
        return {column: table_type(reduce(_common_type, types, pa.null())) for column, types in found.items()}

    def fits(self, column: str, dtype: pa.DataType) -> bool:
        for names, head in self._heads:
            if head and column in names:
                try:
                    self._parse(names, head, [column], {column: dtype}, self._options)
                except pa.ArrowInvalid:
                    return False
        return True

    def suspicions(self, guessed: Sequence[str]) -> list[str]:
        """Signs that the files were misinterpreted, as sentences.

        Parameters
        ----------
        guessed:
            Columns whose types were guessed.
        """
        text = [name for name, dtype in self.types(guessed).items() if is_.is_large_string(dtype)]
        values = self._values(text)
        options = msgspec.structs.replace(
            self._options, null_values=[*self._options.null_values, *no_values()]
        )
        types = self._types([name for name in text if len(values[name])], options)
        readable = [
            name
            for name, dtype in types.items()
            if not is_.is_large_string(dtype) and not is_.is_large_binary(dtype)
        ]
        return suspicions(self.names, values, self._options.delimiter, readable)

    @property
    def foreign_encoding(self) -> str:
        """The encoding of the files, if not UTF-8; see :func:`.suspicions.foreign_encoding`."""
        return next((found for _, head in self._heads if (found := foreign_encoding(head))), "")

    def _values(self, columns: Sequence[str]) -> dict[str, pa.Array]:
        """The sample's values of text columns, without NULL."""
        values: dict[str, list[bytes]] = {column: [] for column in columns}
        for names, head in self._heads:
            there = [name for name in names if name in values] if head else []
            if there:
                read = self._parse(names, head, there, dict.fromkeys(there, pa.large_binary()), self._options)
                for name in there:
                    values[name] += read.column(name).drop_null().to_pylist()
        return {
            name: pa.array([value.decode(errors="replace") for value in found], pa.large_string())
            for name, found in values.items()
        }

    def _guess(
        self, names: list[str], head: bytes, columns: list[str], options: CsvOptions
    ) -> dict[str, pa.DataType]:
        if not head or not columns:
            return {}
        guessed = self._parse(names, head, columns, None, options)
        types = {name: _no_bytes(guessed.column(name).type) for name in columns}
        numbers = [name for name, dtype in types.items() if is_.is_integer(dtype) or is_.is_floating(dtype)]
        if numbers:
            texts = self._parse(names, head, numbers, dict.fromkeys(numbers, pa.large_string()), options)
            for name in numbers:
                if _has_codes(texts.column(name), types[name]):
                    types[name] = pa.large_string()
        return types

    def _parse(
        self,
        names: list[str],
        head: bytes,
        columns: list[str],
        types: dict[str, pa.DataType] | None,
        options: CsvOptions,
    ) -> pa.Table:
        unique = [name or f"\0{index}" for index, name in enumerate(names)]
        return read_csv(
            pa.BufferReader(head),
            read_options=ReadOptions(column_names=unique, use_threads=False, block_size=len(head) + 1),
            parse_options=parse_options(options, skip_ragged=True),
            convert_options=convert_options(options, columns, types),
        )


def _no_bytes(guessed: pa.DataType) -> pa.DataType:
    """Text that is not UTF-8 does not change the type: its rows are bad."""
    return pa.large_string() if is_.is_binary(guessed) or is_.is_large_binary(guessed) else guessed


def _has_codes(texts: pa.ChunkedArray, guessed: pa.DataType) -> bool:
    """Whether some text looks like a number but would lose data as one."""
    odd = texts.filter(pc.match_substring_regex(texts, _NO_PLAIN_NUMBER))
    if is_.is_integer(guessed):
        odd = odd.filter(pc.match_substring_regex(odd, r"^\s*[+-]?0"))
    return len(odd) > 0


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The common type of two guesses; text if there is none."""
    if one.equals(other) or is_.is_null(other):
        return one
    if is_.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return pa.float64()
    moments = (is_.is_timestamp, is_.is_date)
    if any(test(one) for test in moments) and any(test(other) for test in moments):
        zoned = any(is_.is_timestamp(dtype) and dtype.tz for dtype in (one, other))
        return pa.timestamp("us", tz="UTC" if zoned else None)
    if is_.is_time(one) and is_.is_time(other):
        return pa.time64("us")
    return pa.large_string()


def _is_number(dtype: pa.DataType) -> bool:
    return bool(is_.is_integer(dtype) or is_.is_floating(dtype))


class JsonSample:
    """The keys and values of some objects.

    Parameters
    ----------
    lines:
        One object each.
    """

    complete = False

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._values: dict[str, list[Any]] = {}
        for line in lines:
            self._add(line)
        self.names = self.all_names = list(self._values)

    @classmethod
    def of(cls, files: Sequence[OpenFile]) -> JsonSample:
        """Of the first objects of each file."""
        size = SAMPLE_BYTES // len(files)

        def lines(file: OpenFile) -> list[bytes]:
            return first_objects(file.text(), size)

        sample = cls(line for file in files for line in looked_into(file, lines))
        looked_into(files[0], lambda _: check_size(sample.names))
        return sample

    def _add(self, line: bytes) -> None:
        try:
            decoded = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Bad rows are handled when they are read.
            return
        if isinstance(decoded, dict):
            for name, value in decoded.items():
                self._values.setdefault(name, []).append(value)

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return {column: self._guess(column) for column in columns}

    def fits(self, column: str, dtype: pa.DataType) -> bool:
        try:
            pa.array(self._values.get(column, []), dtype)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return False
        return True

    def _guess(self, column: str) -> pa.DataType:
        values = [value for value in self._values.get(column, ()) if value is not None]
        if values and all(isinstance(value, str) for value in values):
            return _text_type(values)
        try:
            return table_type(pa.array(values).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnsupportedType) as error:
            raise invalid(
                "schema",
                f"column {column!r} holds values of different kinds: {error}",
                "say in schema what type it has, or leave it out with columns",
            ) from None


def _text_type(values: Iterable[str]) -> pa.DataType:
    values = list(values)
    for pattern, dtype in (
        (_DATE, pa.date32()),
        (_TIMESTAMP, pa.timestamp("us")),
        (_INSTANT, pa.timestamp("us", tz="UTC")),
    ):
        if all(pattern.fullmatch(value) for value in values):
            return dtype
    return pa.large_string()


class ParquetSample:
    """The schemas of the files."""

    complete = True

    def __init__(self, files: Sequence[OpenFile]) -> None:
        schemas = [looked_into(file, self._schema) for file in files]
        self._url = files[0].url
        self.names = list(schemas[0].names)
        try:
            self._schema_of_all = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise invalid("paths", f"the files do not agree on their columns: {error}") from None
        self.all_names = list(self._schema_of_all.names)
        self._files = files

    def fits(self, column: str, dtype: pa.DataType) -> bool:
        """From the statistics of the files, if they have them; otherwise by the column's type."""
        return all(looked_into(file, lambda opened: holds(opened, column, dtype)) for file in self._files)

    @staticmethod
    def _schema(file: OpenFile) -> pa.Schema:
        with opened_parquet(file) as opened:
            return opened.schema_arrow.remove_metadata()

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return dict(self._typed(columns))

    def _typed(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.DataType]]:
        for column in columns:
            try:
                yield column, table_type(self._schema_of_all.field(column).type)
            except UnsupportedType as error:
                raise invalid(
                    "paths", f"{self._url}: column {column!r}: {error}", "leave it out with columns"
                ) from None


def looked_into(file: OpenFile, look: Callable[[OpenFile], T]) -> T:
    """The result of ``look`` for a file.

    Raises
    ------
    SourceUnreadable
        Any error of the file; names it.
    """
    try:
        return look(file)
    except FileUnusable as error:
        raise _unreadable(file, str(error)) from None
    except FileNotFoundError:
        raise _unreadable(file, "has vanished") from None
    except OSError as error:
        raise _unreadable(file, f"cannot be read: {error}") from error


def _unreadable(file: OpenFile, reason: str) -> SourceUnreadable:
    return SourceUnreadable(f"{file.url} {reason}", details={"field": "paths", "path": file.url})
