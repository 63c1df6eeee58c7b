"""Infers the columns of a source and their types: read from schemas, guessed from a sample of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import types as is_

from distop.errors import SourceUnreadable
from distop.lake.writing.casts import DIGITS, is_number
from distop.operations.arguments import invalid
from distop.sources.formats import avro, parquet
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.conversion import (
    common_type,
    convert,
    foreign_encoding,
    no_bytes,
    no_values,
    suspicions,
    suspicions_of_strings,
    type_of_texts,
)
from distop.sources.formats.csv import CsvValues, convert_options, csv_text, read_header, read_records
from distop.sources.formats.files import OpenFile
from distop.sources.formats.jsonl import first_objects
from distop.sources.formats.options import CsvOptions, Format
from distop.sources.formats.reader import FileUnusable, check_size
from distop.sources.formats.types import UnrepresentableType, table_type

SAMPLE_FILES = 8
SAMPLE_BYTES = 2 << 20
"""How much text is sampled, from the beginnings of all sampled files together."""

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

    @property
    def instants(self) -> Mapping[str, pa.DataType]:
        """Types of columns that are points in time unless the table, or the argument, says otherwise."""

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Types of some of its columns, in the form of a table."""

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        """Those of some columns with sampled values that do not fit these numeric types."""


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
    return JsonSample.of(chosen) if file_format == "jsonl" else TypedSample(chosen, _TYPED[file_format])


class CsvSample:
    """Names of columns, and types guessed from some records.

    Parameters
    ----------
    heads:
        Text of complete records, each with the names of its columns.
    """

    complete = True
    instants: Mapping[str, pa.DataType] = {}

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
            text = csv_text(file, options)
            names, first, _ = read_header(text, options)
            return names, text.head(first, size)

        heads = [looked_into(file, head) for file in files]
        for file, (_, records) in zip(files, heads, strict=True):
            if check_newlines and options.quoting.holds_newline(records):
                raise invalid(
                    "multiline",
                    f"{file.url} has a newline within quotes",
                    "say --multiline if values may hold them (then no file is split), else --no-multiline",
                )
        return cls(heads, options)

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return self._guessed(columns, self._options)[0]

    def _guessed(
        self, columns: Sequence[str], options: CsvOptions
    ) -> tuple[dict[str, pa.DataType], dict[str, str]]:
        """The types, and why columns that Arrow takes for something else are text."""
        guesses: dict[str, list[pa.DataType]] = {column: [] for column in columns}
        for names, head in self._heads:
            read = self._parse(names, head, columns, None, options)
            for column, values in read.items():
                guesses[column].append(no_bytes(values.type))
        types = {
            column: table_type(reduce(common_type, kinds, pa.null())) for column, kinds in guesses.items()
        }
        written, reasons = CsvValues(options), dict[str, str]()
        looked = [name for name in columns if written.spelled or not is_.is_large_string(types[name])]
        for column, values in self._values(looked, options).items():
            if len(values):
                types[column] = written.guess(values, types[column])
                if reason := written.doubt(values, types[column], column):
                    types[column], reasons[column] = pa.large_string(), reason
        return types, reasons

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        written = CsvValues(self._options)
        values = self._values(list(types), self._options)
        return [column for column, dtype in types.items() if not _fits(written, values[column], dtype)]

    def suspicions(self, guessed: Sequence[str]) -> list[str]:
        """Signs that the files were misinterpreted, as sentences.

        Parameters
        ----------
        guessed:
            Columns whose types were guessed.
        """
        types, reasons = self._guessed(guessed, self._options)
        text = [name for name, dtype in types.items() if is_.is_large_string(dtype)]
        values = self._values(text, self._options)
        options = msgspec.structs.replace(
            self._options, null_values=[*self._options.null_values, *no_values()]
        )
        others, _ = self._guessed([name for name in text if len(values[name])], options)
        readable = [name for name, dtype in others.items() if not is_.is_large_string(dtype)]
        problems = suspicions(self.names, values, self._options.delimiter, readable, reasons)
        return [*self._escapes(), *problems]

    def _escapes(self) -> list[str]:
        quoting = self._options.quoting
        if quoting.escape or not any(quoting.escapes_quote(head, b"\\") for _, head in self._heads):
            return []
        sign = f"\\{self._options.quote}"
        meant = self._options.quote
        return [f"quoted values hold {sign}: if that means {meant}, give --escape '\\'"]

    @property
    def foreign_encoding(self) -> str:
        """The encoding of the files, if not UTF-8; see :func:`.conversion.foreign_encoding`."""
        return next((encoding for _, head in self._heads if (encoding := foreign_encoding(head))), "")

    def _values(self, columns: Sequence[str], options: CsvOptions) -> dict[str, pa.Array]:
        """The sample's values of some columns as text, without NULL."""
        values: dict[str, list[pa.Array]] = {column: [] for column in columns}
        for names, head in self._heads:
            read = self._parse(names, head, columns, dict.fromkeys(columns, pa.large_binary()), options)
            for column, texts in read.items():
                values[column] += map(_decoded, texts.drop_null().chunks)
        return {column: pa.concat_arrays([_NO_TEXTS, *texts]) for column, texts in values.items()}

    def _parse(
        self,
        names: list[str],
        head: bytes,
        columns: Sequence[str],
        types: dict[str, pa.DataType] | None,
        options: CsvOptions,
    ) -> dict[str, pa.ChunkedArray]:
        """The values of some columns in the head of one file."""
        known = set(names)
        there = [name for name in columns if name in known]
        if not head or not there:
            return {}
        chosen = convert_options(options, there, types)
        read = read_records(head, names, options, chosen, skip_ragged=True)
        return dict(zip(read.column_names, read.columns, strict=True))


_NO_TEXTS = pa.array([], pa.large_string())


def _decoded(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in values.to_pylist()], pa.large_string())


def _fits(written: CsvValues, values: pa.Array, dtype: pa.DataType) -> bool:
    try:
        written.convert(values, dtype, "")
    except Unconvertible:
        return False
    return True


def _number(text: str) -> float | Decimal:
    """The number of a JSON text: a decimal if no double is that."""
    number = float(text)
    if len(text) <= DIGITS and "e" not in text and "E" not in text:
        return number  # usual, and several times faster
    try:
        return number if is_number(text, number) else Decimal(text)
    except ArithmeticError:  # an exponent beyond all limits
        return Decimal(number)


def _are_strings(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


_json = msgspec.json.Decoder(float_hook=_number)


class JsonSample:
    """The keys and values of some objects.

    Parameters
    ----------
    lines:
        One object each.
    """

    complete = False
    instants: Mapping[str, pa.DataType] = {}

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._values: dict[str, list[Any]] = {}
        self._beyond_ascii: list[bytes] = []
        for line in lines:
            self._add(line)
            if not line.isascii():
                self._beyond_ascii.append(line)
        self.names = self.all_names = list(self._values)

    @classmethod
    def of(cls, files: Sequence[OpenFile]) -> JsonSample:
        """A sample of the first objects of each file."""
        size = SAMPLE_BYTES // len(files)

        def lines(file: OpenFile) -> list[bytes]:
            return first_objects(file.text(), size)

        sample = cls(line for file in files for line in looked_into(file, lines))
        looked_into(files[0], lambda _: check_size(sample.names))
        return sample

    def _add(self, line: bytes) -> None:
        try:
            decoded = _json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Bad rows are handled when they are read.
            return
        if isinstance(decoded, dict):
            for name, value in decoded.items():
                self._values.setdefault(name, []).append(value)

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return {column: self._guess(column) for column in columns}

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        return [column for column, dtype in types.items() if not self._fits(column, dtype)]

    def _fits(self, column: str, dtype: pa.DataType) -> bool:
        try:
            values = self._values.get(column, [])
            pa.array(values, dtype)
            if is_.is_floating(dtype):  # pyarrow rounds these
                convert(pa.chunked_array([pa.array(values, pa.float64())]), dtype, column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, Unconvertible):
            return False
        return True

    def suspicions(self, guessed: Sequence[str]) -> list[str]:
        """Signs that the files were misinterpreted; see :meth:`CsvSample.suspicions`."""
        texts, readable, reasons = dict[str, pa.Array](), list[str](), dict[str, str]()
        signs = set(no_values())
        for column in guessed:
            values = self._present(column)
            if not _are_strings(values):
                continue
            _, reason = type_of_texts(values)
            others = [value for value in values if value not in signs]
            if reason:
                reasons[column] = reason
            elif len(others) < len(values) and not is_.is_large_string(type_of_texts(others)[0]):
                readable.append(column)
            else:
                continue
            texts[column] = pa.array(values, pa.large_string())
        return suspicions_of_strings(texts, readable, reasons)

    @property
    def foreign_encoding(self) -> str:
        """The encoding of the files, if not UTF-8; see :func:`.conversion.foreign_encoding`."""
        return foreign_encoding(b"\n".join(self._beyond_ascii))

    def _present(self, column: str) -> list[Any]:
        return [value for value in self._values.get(column, ()) if value is not None]

    def _guess(self, column: str) -> pa.DataType:
        values = self._present(column)
        if _are_strings(values):
            return type_of_texts(values)[0]
        if long := next((value for value in values if isinstance(value, Decimal)), None):
            raise invalid(
                "schema",
                f"column {column!r} holds {long}, and no double is that number",
                "give it a type with --schema, such as decimal(38,9), or leave it out of --column",
            )
        try:
            return table_type(pa.array(values).type)
        except UnrepresentableType as error:
            raise invalid("schema", f"column {column!r}: {error}", "leave it out of --column") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise invalid(
                "schema",
                f"column {column!r} holds values of different kinds: {error}",
                "give it a type with --schema, or leave it out of --column",
            ) from None


@dataclass(frozen=True, slots=True)
class _Looks:
    """How files that have a schema are looked into; see the functions of :mod:`.parquet`."""

    schemas_of: Callable[[OpenFile], tuple[pa.Schema, pa.Schema]]
    unfit: Callable[[OpenFile, Mapping[str, pa.DataType]], list[str]]


_TYPED: dict[Format, _Looks] = {
    "parquet": _Looks(parquet.schemas_of, parquet.unfit),
    "avro": _Looks(avro.schemas_of, avro.unfit),
}


class TypedSample:
    """The schemas of files that have one."""

    complete = True

    def __init__(self, files: Sequence[OpenFile], looks: _Looks) -> None:
        self._looks = looks
        self._schemas = [looked_into(file, looks.schemas_of) for file in files]
        schemas = [schema for schema, _ in self._schemas]
        self._url = files[0].url
        self.names = list(schemas[0].names)
        try:
            self._schema_of_all = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise invalid("paths", f"the files do not agree on their columns: {error}") from None
        self.all_names = list(self._schema_of_all.names)
        self._files = files

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        """By the statistics of the files, their first values, or the columns' types."""
        columns = {
            column
            for file in self._files
            for column in looked_into(file, lambda it: self._looks.unfit(it, types))
        }
        return [column for column in types if column in columns]

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        return dict(self._typed(columns))

    @property
    def instants(self) -> dict[str, pa.DataType]:
        """The types of columns with times in INT96, as points in time (see :func:`.parquet.schemas_of`);
        without those that have another type in other files."""
        names = {
            zoned.name
            for schemas in self._schemas
            for field, zoned in zip(*schemas, strict=True)
            if not field.type.equals(zoned.type)
        }
        types: dict[str, pa.DataType] = {}
        for name in names:
            fields = [zoned.field(name) for _, zoned in self._schemas if name in zoned.names]
            with suppress(pa.ArrowInvalid, pa.ArrowTypeError, UnrepresentableType):
                together = pa.unify_schemas([pa.schema([it]) for it in fields], promote_options="permissive")
                types[name] = table_type(together.field(0).type)
        return types

    def _typed(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.DataType]]:
        for column in columns:
            try:
                yield column, table_type(self._schema_of_all.field(column).type)
            except UnrepresentableType as error:
                raise invalid(
                    "paths", f"{self._url}: column {column!r}: {error}", "leave it out of --column"
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
