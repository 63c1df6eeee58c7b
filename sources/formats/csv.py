"""CSV: headers, records into columns, and what their values mean.

What counts as a row is independent of how a file is split and of neighbouring rows: one record is one row.
Arrow's parser alone does not guarantee that (it accepts a quoted value that is never closed, and reads on
over newlines within its text), so records are counted before its result is accepted.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

from distop.lake.writing.casts import Values, has_large, has_room, may_be_hexadecimal, may_round, may_vanish
from distop.sources.formats import text_file
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.conversion import convert, first_code, is_int_or_float, no_values
from distop.sources.formats.files import OpenFile
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import FileUnusable, ReadColumns, check_size
from distop.sources.formats.types import UTC, TimeFormat, is_number, text_type

_FIELD_COUNT = re.compile(
    r"CSV parse error: Row #(?P<row>\d+): Expected (?P<expected>\d+) columns, got (?P<found>\d+)"
)
_CONVERSION = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?"
    r"(?:CSV conversion error to (?P<type>[^:]+): )?(?P<what>.*)",
    re.DOTALL,
)

_VALUE = re.compile(r"invalid value '(.*)'")
_TEXT = pa.large_string()


def read_records(
    data: bytes,
    names: Sequence[str],
    options: CsvOptions,
    conversion: ConvertOptions,
    *,
    skip_ragged: bool = False,
) -> pa.Table:
    """Records as columns.

    Parameters
    ----------
    names:
        All columns of a record. Those without a name can be distinguished, but are never required.
    skip_ragged:
        Skip rows with too few or too many values.

    Raises
    ------
    pyarrow.ArrowInvalid
    """
    if not data.endswith(b"\n"):
        # At the end of a text Arrow takes an empty value for a quoted one if the one before it is quoted.
        data += b"\n"
    data = options.quoting.unescaped(data)
    return read_csv(
        pa.BufferReader(data),
        read_options=ReadOptions(
            column_names=column_names(names), use_threads=False, block_size=len(data) + 1
        ),
        parse_options=ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote or False,
            newlines_in_values=options.multiline,
            invalid_row_handler=(lambda _: "skip") if skip_ragged else None,
        ),
        convert_options=conversion,
    )


def column_names(names: Sequence[str]) -> list[str]:
    """Names by which Arrow can distinguish columns."""
    return [name or f"\0{index}" for index, name in enumerate(names)]


def convert_options(
    options: CsvOptions, columns: Sequence[str], types: Mapping[str, pa.DataType] | None = None
) -> ConvertOptions:
    """Which columns to convert, and to which types; without ``types`` Arrow guesses."""
    return ConvertOptions(
        column_types=types,
        include_columns=columns,
        null_values=options.null_values,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        decimal_point=options.decimal_point,
    )


def is_blank(record: bytes) -> bool:
    """Whether a record is an empty line, which is not a row."""
    return not record.strip(b"\r\n")


def csv_text(file: OpenFile, options: CsvOptions) -> text_file.TextFile:
    """The records of a CSV file, in UTF-8."""
    file, quoting = file.text(options.encoding), options.quoting
    if options.multiline:
        return text_file.TextFile(
            file, is_blank=is_blank, split=quoting.records, last_end=quoting.end_of_last_record
        )
    return text_file.TextFile(
        file, is_blank=is_blank, split=text_file.split_lines, last_end=text_file.last_line_end
    )


def read_header(text: text_file.TextFile, options: CsvOptions) -> tuple[list[str], int, str]:
    """The names of a file's columns, the start of its data, and the line that names them. An empty file has
    no names, and the line is empty where the options name them.

    Raises
    ------
    FileUnusable
        The header is not UTF-8 or not CSV, or names a column twice.
    """
    record, begin, end = text.first_record()
    if isinstance(options.header, list):
        return options.header, begin, ""
    if not record:
        return [], end, ""
    names = names_in(record, options)
    return names, end, record.decode().rstrip("\r\n")


def names_in(header: bytes, options: CsvOptions) -> list[str]:
    """The names of columns in a header. Raises :class:`FileUnusable` as :func:`read_header` does."""
    try:
        line = options.quoting.unescaped(header).decode().rstrip("\r\n")
        names = next(csv.reader([line], _dialect(options)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileUnusable(f"has a header that cannot be read: {error}") from None
    check_size(names)
    twice = next((name for name, times in Counter(names).items() if name and times > 1), None)
    if twice is not None:
        raise FileUnusable(f"has two columns {twice!r}; if that is not a header, give the columns' names")
    return names


def _dialect(options: CsvOptions) -> type[csv.Dialect]:
    class Header(csv.Dialect):
        delimiter = options.delimiter
        quotechar = options.quote or None
        quoting = csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE
        doublequote = True
        strict = True
        lineterminator = "\n"

    return Header


class CsvReader:
    """Reads CSV files."""

    def __init__(self, options: CsvOptions, wanted: ReadColumns) -> None:
        self._options = options
        self._wanted = wanted

    @contextmanager
    def open(self, file: OpenFile) -> Iterator[text_file.OpenTextFile]:
        text = csv_text(file, self._options)
        names, first, header = read_header(text, self._options)
        if names:
            self._wanted.check(names)
        yield text_file.OpenTextFile(
            text, first, CsvRecords(names, self._options, self._wanted.schema), header
        )


class CsvRecords:
    """Converts records of text from any source.

    Parameters
    ----------
    names:
        All columns of a record.
    schema:
        The required ones.
    """

    def __init__(self, names: list[str], options: CsvOptions, schema: pa.Schema) -> None:
        self._names = names
        self._quoting = options.quoting
        self._multiline = options.multiline
        self._schema = schema
        self._options = options
        self._values = CsvValues(options)
        self._types = {field.name: self._values.parsed(field.type) for field in schema}
        plain = [field for field in schema if self._values.is_plain(field.type)]
        self._doubles = [field for field in plain if is_.is_floating(field.type)]
        moments = [field for field in plain if is_.is_timestamp(field.type) and not field.type.tz]
        decimals = [field for field in plain if is_.is_decimal(field.type) and has_room(field.type)]
        self._direct = {field.name: field.type for field in [*self._doubles, *moments, *decimals]}
        self._has_decimals = bool(decimals)
        integers = [field.name for field in schema if is_.is_integer(field.type)]
        self._integers_as_texts = dict.fromkeys(integers, _TEXT)

    def convert(self, rows: text_file.Lines) -> pa.Table:
        """The required columns of some rows.

        Raises
        ------
        Unconvertible
        """
        data = rows.data
        self._check_quotes(data)
        table = self._parsed(data)
        self._check_count(table.num_rows, rows)
        return pa.table([self._column(table, field) for field in self._schema], schema=self._schema)

    def _parsed(self, data: bytes) -> pa.Table:
        """The columns, as texts if Arrow's parser may make something else of some: it rounds numbers, and
        reads hexadecimal ones."""
        types, quote = self._types, self._options.quote.encode()
        if self._integers_as_texts and may_be_hexadecimal(data, quote):
            types = types | self._integers_as_texts
        if self._direct and not self._may_round(data):
            with suppress(pa.ArrowInvalid):  # more texts are values than this parser knows
                table = self._read(data, types | self._direct)
                if not any(has_large(table.column(field.name)) for field in self._doubles):
                    return table
        try:
            return self._read(data, types)
        except pa.ArrowInvalid as error:
            raise self._refusal(str(error), data) from None

    def _read(self, data: bytes, types: Mapping[str, pa.DataType]) -> pa.Table:
        conversion = convert_options(self._options, self._schema.names, types)
        # If a file must have all of them, one that lacks some has been refused already.
        conversion.include_missing_columns = True
        return read_records(data, self._names, self._options, conversion)

    def _may_round(self, data: bytes) -> bool:
        quote = self._options.quote.encode()
        if self._has_decimals and may_vanish(data, quote):
            return True
        bits = min((field.type.bit_width for field in self._doubles), default=0)
        return bits > 0 and may_round(data, bits, quote)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        try:
            return self._values.convert(table.column(field.name), field.type, field.name)
        except Unconvertible as error:
            raise Unconvertible(_with_advice(str(error))) from None

    def _check_quotes(self, data: bytes) -> None:
        """If lines are records, only the last line can have an open quote without including other lines."""
        text = data if self._multiline else data[data.rfind(b"\n", 0, -1) + 1 :]
        if self._quoting.unclosed(text):
            hint = "" if self._multiline else ", or not on this line (see --multiline)"
            raise Unconvertible(f"a quoted value is never closed{hint}")
        if self._quoting.text_follows(data):
            raise Unconvertible(f"text follows the closing quote of a value{self._advice_of_escapes(data)}")

    def _check_count(self, parsed: int, rows: text_file.Lines) -> None:
        """Every record is one row: not several, at a carriage return, nor a part, at a quoted newline."""
        data = rows.data
        lone_return = text_file.has_lone_return(data)
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        if parsed == lines and not lone_return and not self._multiline:
            return
        if parsed > len(rows):
            raise Unconvertible("a carriage return stands alone within the line")
        if parsed < len(rows) or (lone_return and not self._multiline and self._quoting.holds_newline(data)):
            raise Unconvertible("a quoted value holds a newline (see --multiline)")

    def _refusal(self, message: str, data: bytes) -> Unconvertible:
        """An Arrow error in terms of the file."""
        if match := _FIELD_COUNT.match(message):
            reason = f"{match['expected']} columns expected, {match['found']} found"
            return Unconvertible(f"{reason}{self._advice_of_escapes(data)}", int(match["row"]) - 1)
        if match := _CONVERSION.match(message):
            target = f" for {match['type']}" if match["type"] else ""
            name = column_names(self._names)[int(match["column"])]
            reason = _with_advice(f"column {name!r}: {match['what']}{target}")
            return Unconvertible(reason, int(match["row"]) - 1 if match["row"] else None)
        return Unconvertible(message)

    def _advice_of_escapes(self, data: bytes) -> str:
        escapes = not self._options.escape and self._quoting.escapes_quote(data, b"\\")
        return " (see --escape)" if escapes else ""


def _with_advice(reason: str) -> str:
    match = _VALUE.search(reason)
    return f"{reason} (see --null-value)" if match and match[1] in no_values() else reason


class CsvValues:
    """Texts into columns, as the options say that numbers and times are written."""

    def __init__(self, options: CsvOptions) -> None:
        self._thousands, self._decimal_point = options.thousands, options.decimal_point
        self._date = TimeFormat(options.date_format, is_date=True) if options.date_format else None
        self._moment = (
            TimeFormat(options.timestamp_format, is_date=False) if options.timestamp_format else None
        )
        self._zone = options.timezone

    def parsed(self, dtype: pa.DataType) -> pa.DataType:
        """The type for Arrow's parser, so that :meth:`convert` can make ``dtype`` of its values.

        Raises :class:`~distop.sources.formats.types.UnrepresentableType`.
        """
        spelled = (self._thousands and is_number(dtype)) or (self._date and is_.is_date(dtype))
        return _TEXT if spelled else text_type(dtype)

    def convert(self, values: Values, dtype: pa.DataType, column: str) -> Values:
        """Values of Arrow's parser as ``dtype``; raises ``Unconvertible``."""
        zone = self._zone or UTC
        if values.type.equals(_TEXT) and not dtype.equals(_TEXT):
            if self.is_plain(dtype):
                with suppress(Unconvertible):  # white space around values is rare
                    return convert(values, dtype, column, zone)
            try:
                values = self._plain(values, dtype)
            except pa.ArrowInvalid as error:
                raise Unconvertible(f"column {column!r}: {error}") from None
        return convert(values, dtype, column, zone)

    def is_plain(self, dtype: pa.DataType) -> bool:
        """Whether values of a type are written as Arrow, and Iceberg, write them, but for white space."""
        if is_number(dtype):
            return not self._thousands and self._decimal_point == "."
        return self._form(dtype) is None

    def _form(self, dtype: pa.DataType) -> TimeFormat | None:
        return self._date if is_.is_date(dtype) else self._moment if is_.is_timestamp(dtype) else None

    def _plain(self, texts: Values, dtype: pa.DataType) -> Values:
        """The same values as Arrow, and Iceberg, write them."""
        texts = pc.ascii_trim_whitespace(texts)
        if self.is_plain(dtype):
            return texts
        form = self._form(dtype)
        return self._plain_numbers(texts, dtype) if form is None else form.iso(texts)

    def _plain_numbers(self, texts: Values, dtype: pa.DataType) -> Values:
        groups = rf"|[0-9]{{1,3}}({re.escape(self._thousands)}[0-9]{{3}})+" if self._thousands else ""
        fraction = rf"({re.escape(self._decimal_point)}[0-9]*)?([eE][+-]?[0-9]+)?"
        form = rf"^([+-]?([0-9]*{groups}){fraction}|[+-]?(?i:inf|infinity|nan))$"
        other = texts.filter(pc.invert(pc.match_substring_regex(texts, form)))
        if len(other):
            raise pa.ArrowInvalid(f"invalid value {other[0].as_py()!r} for {dtype}")
        if self._thousands:
            texts = pc.replace_substring(texts, self._thousands, "")
        return pc.replace_substring(texts, self._decimal_point, ".")

    def doubt(self, values: pa.Array, dtype: pa.DataType, column: str) -> str:
        """Why texts should not become a type that was only guessed; empty if they may.

        They may not if one is unreadable, or as a number would not be what it was as a text.
        """
        try:
            if is_int_or_float(dtype) and (code := first_code(self._plain(values, dtype), dtype)) is not None:
                return f"{code!r} is no plain number"
            self.convert(values, dtype, column)
        except (pa.ArrowInvalid, Unconvertible) as error:
            return str(error).removeprefix(f"column {column!r}: ")
        return ""

    def guess(self, values: pa.Array, guessed: pa.DataType) -> pa.DataType:
        """The type of some texts, for which Arrow, without these options, has guessed ``guessed``.

        A column whose first value has the form of a date or time is meant to hold such.
        """
        for dtype in self._own_types():
            if not self.doubt(values, dtype, ""):
                return dtype
        for dtype in self._own_types() if guessed.equals(_TEXT) else ():
            if is_.is_temporal(dtype) and not self.doubt(values.slice(0, 1), dtype, ""):
                return dtype
        if is_.is_timestamp(guessed) and self._zone:
            return pa.timestamp("us", UTC)
        return guessed

    def _own_types(self) -> Iterator[pa.DataType]:
        if self._date is not None:
            yield pa.date32()
        if self._moment is not None:
            yield pa.timestamp("us", UTC if self._moment.zoned or self._zone else None)
        if self._thousands:
            yield from (pa.int64(), pa.float64())

    @property
    def spelled(self) -> bool:
        """Whether some type is written otherwise than Arrow expects."""
        return next(self._own_types(), None) is not None
