"""JSON lines, one object per line, and files that are one JSON array of objects.

Every line is checked to be one JSON object before Arrow's parser sees it. Arrow would accept several values
on a line, and some invalid lines (a lone ``null``) crash its process.

An array is read element by element: a file may be larger than memory. The beginning of an element is known
only after reading everything before it. So one job reads such a file as a whole: the one whose range has its
first byte. Later ranges contain no element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_
from pyarrow.json import ParseOptions, ReadOptions, read_json

from distop.lake.writing.casts import doubtful_lines, has_large, may_vanish, unlike_double
from distop.sources.formats import text_file
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.conversion import convert
from distop.sources.formats.files import OpenFile
from distop.sources.formats.reader import FileUnusable, ReadColumns
from distop.sources.formats.types import is_number, json_type

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(rb'\{(?:[^{}\[\]"]++|%b)*+\}|%b|[\[\]{},"]' % (_STRING, _STRING), re.DOTALL)
"""The tokens of the structure: objects without nested ones as a whole, strings, and single characters. A lone
quote begins a string that continues after the text."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"\t\t")
"""Control characters: white space between values; not allowed within a string."""

_NOTHING = b"null"
"""Stands for a missing element: its line would be blank, and not a row."""


def is_array(file: OpenFile) -> bool:
    """Whether the first character of a file opens an array. Raises :class:`FileUnusable` as reading it
    does."""
    with text_file.opened_text(file) as stream:
        return _open_array(stream) is not None


class ElementCounter:
    """Blocks know the number of their first element; each element is one of their lines."""

    def lines_before(self, offset: int) -> int:
        """The number itself."""
        return offset


class JsonArrayFile:
    """An open file; see :class:`~distop.sources.formats.reader.FileReader`."""

    row_unit = "element"

    def __init__(self, file: OpenFile, elements: text_file.Converter) -> None:
        self._file = file
        self.convert = elements.convert

    def blocks(self, start: int, end: int | None) -> Iterator[text_file.TextRows]:
        """All elements, if the range has the first byte of the file."""
        if start > 0:
            return
        for block in element_blocks(self._file):
            yield text_file.TextRows(
                block, ElementCounter(), split=text_file.split_lines, is_blank=lambda _: False
            )


def element_blocks(file: OpenFile, block_bytes: int = text_file.BLOCK_BYTES) -> Iterator[text_file.LineBlock]:
    """The elements of an array, one per line; ``offset`` counts elements.

    Raises
    ------
    FileUnusable
        The array is not closed, or is followed by something; an element is too long.
    """
    count = 0
    with text_file.opened_text(file) as stream:
        buffer = _open_array(stream)
        closed = buffer is None
        if buffer is not None:
            buffer += stream.read(block_bytes)
        while buffer is not None and not closed:
            elements, used, closed = _array_elements(buffer)
            buffer = buffer[used:]
            if elements:
                yield text_file.LineBlock(count, b"".join(elements))
                count += len(elements)
            elif len(buffer) > text_file.MAX_LINE_BYTES:
                raise FileUnusable(
                    f"has an element, number {count + 1}, of more than {text_file.MAX_LINE_BYTES} bytes"
                )
            if not closed:
                data = stream.read(block_bytes)
                if not data:
                    raise FileUnusable(f"holds a JSON array that is not closed after {count} elements")
                buffer += data
        while buffer and not buffer.strip():
            buffer = stream.read(text_file.TAIL_BYTES)
        if buffer:
            raise FileUnusable(f"holds a JSON array of {count} elements, followed by something else")


def _open_array(stream: BinaryIO) -> bytes | None:
    """The part of an array that was read, without its first character; ``None`` if the file is not an
    array."""
    data = stream.read(text_file.TAIL_BYTES)
    data = data[text_file.size_of_mark(data) :]
    while data and not data.strip():
        data = stream.read(text_file.TAIL_BYTES)
    data = data.lstrip()
    return data[1:] if data.startswith(b"[") else None


def _array_elements(text: bytes) -> tuple[list[bytes], int, bool]:
    """The complete elements at the start of a text, their length, and whether the array ends there.

    An invalid value is also an element, except the space within an empty array.
    """
    elements: list[bytes] = []
    begin = depth = 0
    for match in _TOKEN.finditer(text):
        sign = match[0]
        if sign in (b"[", b"{"):
            depth += 1
        elif sign == b'"':
            break
        elif depth and sign in (b"]", b"}"):
            depth -= 1
        elif not depth and sign in (b",", b"]"):
            element = text[begin : match.start()].strip()
            if element or elements or sign == b",":
                elements.append((element.translate(_ONE_LINE) or _NOTHING) + b"\n")
            begin = match.end()
            if sign == b"]":
                return elements, begin, True
    return elements, begin, False


_Check: TypeAlias = Callable[[Any, pa.DataType, str], None]
"""Of a value, with its type and column; raises ``Unconvertible``."""

_IN_ROW = re.compile(r" in row \d+$")
_OTHER_KIND = re.compile(r"Column\(/(?P<column>.*)\) changed from (?P<wanted>\w+) to (?P<found>\w+)")
_UNNAMED = re.compile(r"Failed to convert JSON to |The string '|Number too big ")
"""Errors of Arrow's parser about a value that do not name its column."""
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
_WHERE = re.compile(r" - at `.*`$")


class _Spelled(str):
    """A number with a fraction or an exponent, as it is written."""


def _number(text: str) -> float | _Spelled:
    number = float(text)
    return number if repr(number) == text else _Spelled(text)


_DOUBTFUL = (int, _Spelled)
"""Types of numbers that a double may not have."""


class _Object(msgspec.Struct):
    """Any JSON object; decoding validates it and keeps nothing."""


_objects = msgspec.json.Decoder(_Object)
_spelled_object = msgspec.json.Decoder(dict[str, Any], float_hook=_number)


def is_blank(record: bytes) -> bool:
    """Whether a line is not a row."""
    return not record.strip()


def json_text(file: OpenFile) -> text_file.TextFile:
    """The lines of a JSON lines file."""
    return text_file.TextFile(file, is_blank=is_blank)


def first_objects(file: OpenFile, size: int) -> list[bytes]:
    """Some objects from the beginning of a file of lines, or of an array, about ``size`` bytes of them."""
    if is_array(file):
        return next((block.data for block in element_blocks(file, size)), b"").splitlines()
    text = json_text(file)
    return text.head(text.first_record()[1], size).splitlines()


class JsonLinesReader:
    """Reads files of JSON lines, and files that are one array. A missing key is NULL."""

    def __init__(self, wanted: ReadColumns) -> None:
        self._wanted = wanted

    @contextmanager
    def open(self, file: OpenFile) -> Iterator[text_file.OpenTextFile | JsonArrayFile]:
        objects = JsonObjects(self._wanted)
        if is_array(file.text()):
            yield JsonArrayFile(file.text(), objects)
            return
        text = json_text(file.text())
        yield text_file.OpenTextFile(text, text.first_record()[1], objects)


class JsonObjects:
    """Converts lines of text from any source."""

    def __init__(self, wanted: ReadColumns) -> None:
        self._schema = wanted.schema
        self._doubles = [field for field in wanted.schema if _holds(field.type, is_.is_floating)]
        self._decimals = [field for field in wanted.schema if _holds(field.type, is_.is_decimal)]
        self._parse_options = ParseOptions(
            explicit_schema=pa.schema([(field.name, json_type(field.type)) for field in wanted.schema]),
            unexpected_field_behavior="error" if wanted.strict else "ignore",
        )

    def convert(self, rows: text_file.Lines) -> pa.Table:
        """The required columns of some rows.

        Raises
        ------
        Unconvertible
        """
        data = rows.data
        count = _checked_objects(data)
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        # Rows need to be counted only where lines may be blank.
        if (count != lines or _holds_blank_line(data)) and count != len(rows):
            raise Unconvertible("a line must hold one JSON object")
        if not count:
            return self._schema.empty_table()
        table = self._parsed(data)
        if table.num_rows != count:
            raise Unconvertible("a line must hold one JSON object")
        self._check_doubles(data, table)
        if self._decimals and may_vanish(data):
            for line in filter(may_vanish, data.split(b"\n")):
                _check_numbers(line, self._decimals)
        try:
            columns = [convert(table.column(field.name), field.type, field.name) for field in self._schema]
        except Unconvertible:
            if count == 1:
                _check_numbers(data, self._decimals)  # names them as they are written
            raise
        return pa.table(columns, schema=self._schema)

    def _check_doubles(self, data: bytes, parsed: pa.Table) -> None:
        """Arrow's parser rounds numbers with more digits than a double has: only the texts show it."""
        if not self._doubles:
            return
        numbers = (part for field in self._doubles for part in _doubles_of(parsed.column(field.name)))
        for line in doubtful_lines(data, integers=any(map(has_large, numbers))):
            _check_numbers(line, self._doubles, _check_double)

    def _parsed(self, data: bytes) -> pa.Table:
        try:
            return read_json(
                pa.BufferReader(data),
                read_options=ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=self._parse_options,
            )
        except pa.ArrowInvalid as error:
            raise Unconvertible(_refusal(str(error), data, self._schema)) from None


def _holds(dtype: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is of a kind, or a type within it."""
    within = (dtype.field(index).type for index in range(dtype.num_fields))
    return is_kind(dtype) or any(_holds(inner, is_kind) for inner in within)


def _doubles_of(values: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The columns of floats within a column."""
    if is_.is_floating(values.type):
        yield values
    elif is_.is_nested(values.type):
        parts = values.flatten() if is_.is_struct(values.type) else [pc.list_flatten(values)]
        for part in parts:
            yield from _doubles_of(part)


def _check_leaves(value: Any, dtype: pa.DataType, column: str, check: _Check) -> None:
    """Check the values of a JSON value that are not nested, with their types and columns."""
    if isinstance(value, list) and is_.is_nested(dtype):
        for item in value:
            _check_leaves(item, dtype.value_type, f"{column}.element", check)
    elif isinstance(value, dict) and is_.is_struct(dtype):
        for field in dtype:
            _check_leaves(value.get(field.name), field.type, f"{column}.{field.name}", check)
    else:
        check(value, dtype, column)


def _check_double(value: Any, dtype: pa.DataType, column: str) -> None:
    is_doubtful = isinstance(value, _DOUBTFUL) and not isinstance(value, bool) and is_.is_floating(dtype)
    if is_doubtful and (reason := unlike_double(str(value))):
        raise Unconvertible(f"column {column!r}: {reason}")


def _check_number(value: Any, dtype: pa.DataType, column: str) -> None:
    """Check a number, or a text that is to be one, as those of CSV files."""
    if isinstance(value, int | float | str) and not isinstance(value, bool) and is_number(dtype):
        convert(pa.array([str(value)], pa.large_string()), dtype, column)


def _holds_blank_line(data: bytes) -> bool:
    return is_blank(data[: data.find(b"\n") + 1] or b"x") or _BLANK_LINE.search(data) is not None


def _checked_objects(data: bytes) -> int:
    """The number of JSON objects."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Unconvertible(f"not UTF-8: {error}") from None
    try:
        return len(_objects.decode_lines(data))
    except msgspec.MsgspecError as error:
        raise Unconvertible(f"not a JSON object: {_WHERE.sub('', str(error))}") from None
    except RecursionError:
        raise Unconvertible("it is nested too deeply") from None


def _refusal(message: str, data: bytes, schema: pa.Schema) -> str:
    """An Arrow error in terms of the line."""
    message = _IN_ROW.sub("", message.removeprefix("JSON parse error: "))
    if _UNNAMED.match(message):
        try:
            _check_numbers(data, schema)
        except (
            Unconvertible
        ) as error:  # of several lines no number is checked: the bad one comes again, alone
            return str(error)
        return message
    if match := _OTHER_KIND.match(message):
        column, at = match["column"], schema.get_field_index(match["column"])
        if at < 0:
            column = column.replace("/[]", ".element").replace("/", ".")
        shown = f"column {column!r}: {match['found']} instead of {match['wanted']}"
        counts = match["found"] == "number" and at >= 0 and is_.is_temporal(schema.field(at).type)
        return f"{shown}; if it counts from 1970, say in epoch_units what" if counts else shown
    if message == "unexpected field":
        try:
            key = _unknown_key(msgspec.json.decode(data), pa.struct(list(schema)))
        except msgspec.MsgspecError:  # several lines: the bad one comes again, alone
            return message
        return f"column {key!r} is not wanted; see --on-new-columns" if key else message
    return message


def _check_numbers(line: bytes, fields: Iterable[pa.Field], check: _Check = _check_number) -> None:
    """Check the numbers of some columns of a line."""
    try:
        row = _spelled_object.decode(line)
    except msgspec.MsgspecError as error:  # an integer with thousands of digits
        raise Unconvertible(_WHERE.sub("", str(error))) from None
    for field in fields:
        _check_leaves(row.get(field.name), field.type, field.name, check)


def _unknown_key(value: Any, dtype: pa.DataType, path: str = "") -> str:
    """The path of the first key within a value that a type does not have; empty: it has all."""
    if isinstance(value, dict) and is_.is_struct(dtype):
        for key, inner in value.items():
            inner_path, at = f"{path}.{key}" if path else key, dtype.get_field_index(key)
            if at < 0:
                return inner_path
            if key_path := _unknown_key(inner, dtype.field(at).type, inner_path):
                return key_path
    if isinstance(value, list) and (is_.is_list(dtype) or is_.is_large_list(dtype)):
        inside = (_unknown_key(inner, dtype.value_type, f"{path}.element") for inner in value)
        return next(filter(None, inside), "")
    return ""
