"""Converts records of a topic to columns: their values by format, and their metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
from pyarrow import types as is_

from distop.lake.storage.quarantine import kept_text
from distop.sources.formats.bad_rows import Unconvertible, bad_value
from distop.sources.formats.csv import CsvRecords
from distop.sources.formats.files import utf_8
from distop.sources.formats.jsonl import JsonObjects
from distop.sources.formats.lines import MAX_LINE_BYTES
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import Wanted
from distop.sources.formats.types import NOT_UTF_8, convert

if TYPE_CHECKING:
    from confluent_kafka import Message

MAX_VALUE_BYTES = MAX_LINE_BYTES
"""A record with a longer value is a bad row: it must fit into memory several times."""
FRAME_BYTES = 5
"""Bytes that a serializer with a schema registry puts before a value."""

NATURAL_TYPES: dict[str, pa.DataType] = {
    "key": pa.large_binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.large_list(
        pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
    ),
}
"""Types of the metadata."""
_READ_TYPES = {"timestamp": pa.timestamp("ms", tz="UTC")}
"""The types of those that Kafka has in another form. A producer may stamp its records with any number."""
RAW_TYPE = pa.large_binary()


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The position of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"

    def facts(self) -> dict[str, Any]:
        """See :class:`~distop.sources.formats.bad_rows.RowPosition`."""
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}


class Records:
    """Some records of one partition, in order."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def part(self, start: int, stop: int) -> Self:
        return type(self)(self.messages[start:stop])

    def number(self) -> int:
        """The offset of the first record."""
        return self.messages[0].offset() or 0

    def kept(self) -> dict[str, Any]:
        return kept_text(self.messages[0].value() or b"")


@dataclass(frozen=True, slots=True)
class _TextOfValues:
    """One value per line."""

    data: bytes
    count: int

    def __len__(self) -> int:
        return self.count


class RecordReader:
    """Converts records.

    Parameters
    ----------
    value_format:
        ``json``, ``csv`` or ``raw``.
    metadata:
        Metadata -> its column.
    wanted:
        All columns to read.
    """

    def __init__(
        self,
        value_format: str,
        wanted: Wanted,
        *,
        metadata: Mapping[str, str],
        csv: CsvOptions,
        value_column: str,
    ) -> None:
        self._schema = wanted.schema
        self._csv = csv
        self._metadata = {what: column for what, column in metadata.items() if column in self._schema.names}
        direct = set(metadata.values())
        values = pa.schema([field for field in self._schema if field.name not in direct])
        self._values = values
        self._wanted = Wanted(values, wanted.strict)
        self._value_column = value_column
        self._format = value_format

    def convert(self, records: Records) -> pa.Table:
        """The required columns, a row for each record.

        Raises
        ------
        Unconvertible
        """
        columns = dict(zip(self._values.names, self._values_of(records.messages).columns, strict=True))
        for what, column in self._metadata.items():
            values = _array(_BESIDE[what](records.messages), _READ_TYPES.get(what, NATURAL_TYPES[what]))
            columns[column] = _bytes_to(values, self._schema.field(column).type, column)
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)

    def _values_of(self, messages: Sequence[Message]) -> pa.Table:
        values = [message.value() for message in messages]
        _check_sizes(values)
        if not self._values.names:
            return self._values.empty_table()
        if self._format == "raw":
            column = _bytes_to(_array(values, RAW_TYPE), self._values.field(0).type, self._value_column)
            return pa.table([column], schema=self._values)
        present = [value for value in values if value is not None]
        table = self._text.convert(_lines(present, self._line)) if present else self._values.empty_table()
        if table.num_rows != len(present):
            raise Unconvertible("the value must hold one record")
        if len(present) == len(values):
            return table
        places = iter(range(len(present)))
        return table.take(pa.array([None if value is None else next(places) for value in values], pa.int64()))

    @cached_property
    def _text(self) -> JsonObjects | CsvRecords:
        if self._format == "json":
            return JsonObjects(self._wanted)
        names = list(self._csv.header) if isinstance(self._csv.header, list) else []
        return CsvRecords(names, self._csv, self._values)

    @property
    def _line(self) -> Callable[[bytes], bytes]:
        return json_line if self._format == "json" else partial(csv_line, encoding=self._csv.encoding)


def _check_unframed(value: bytes) -> None:
    """Refuse a value in the wire format of a schema registry: a zero byte, the number of a schema, and
    data."""
    if value.startswith(b"\0") and len(value) > FRAME_BYTES:
        number = int.from_bytes(value[1:FRAME_BYTES], "big")
        raise Unconvertible(
            f"the value is framed for a schema registry (schema {number}): have it written without that, or "
            "set kafka.format to raw"
        )


def json_line(value: bytes) -> bytes:
    """One JSON object on one line.

    Raises
    ------
    Unconvertible
    """
    _check_unframed(value)
    if b"\n" in value or b"\r" in value:
        # In JSON a line break can only be where a space can; in a string it is escaped.
        try:
            msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unconvertible(f"not a JSON object: {error}") from None
        value = value.replace(b"\n", b" ").replace(b"\r", b" ")
    if not value.strip():
        raise Unconvertible("not a JSON object: the value is empty")
    return value


def csv_line(value: bytes, encoding: str) -> bytes:
    """One CSV record on one line, as UTF-8.

    Raises
    ------
    Unconvertible
    """
    try:
        value = utf_8(value, encoding) if encoding else value
    except UnicodeDecodeError as error:
        raise Unconvertible(f"not {encoding}: {error}") from None
    _check_unframed(value)
    line = value.rstrip(b"\r\n")
    if not line:
        raise Unconvertible("not a CSV record: the value is empty")
    if b"\n" in line or b"\r" in line:
        raise Unconvertible("the value holds a line break")
    return line


def _lines(values: Sequence[bytes], line_of: Callable[[bytes], bytes]) -> _TextOfValues:
    lines = []
    for index, value in enumerate(values):
        try:
            lines.append(line_of(value))
        except Unconvertible as error:
            raise Unconvertible(str(error), index if len(values) > 1 else None) from None
    lines.append(b"")
    return _TextOfValues(b"\n".join(lines), len(values))


def _check_sizes(values: Sequence[bytes | None]) -> None:
    for index, value in enumerate(values):
        if value is not None and len(value) > MAX_VALUE_BYTES:
            raise Unconvertible(
                f"the value has {len(value)} bytes, but at most {MAX_VALUE_BYTES} are read", index
            )


def _array(values: Sequence[Any], dtype: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, dtype)])


def _bytes_to(values: pa.ChunkedArray, target: pa.DataType, column: str) -> pa.ChunkedArray:
    """Bytes for a text column must be UTF-8; others are converted as usual."""
    if is_.is_large_binary(values.type) and (is_.is_string(target) or is_.is_large_string(target)):
        try:
            return values.cast(target)
        except pa.ArrowInvalid:
            raise bad_value(column, values, lambda some: some.cast(target), NOT_UTF_8) from None
    return convert(values, target, column)


def _timestamps(messages: Sequence[Message]) -> list[int | None]:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    times = (message.timestamp() for message in messages)
    return [None if kind == TIMESTAMP_NOT_AVAILABLE else ms for kind, ms in times]


def _headers(messages: Sequence[Message]) -> list[list[dict[str, Any]]]:
    return [list(_header_structs(message)) for message in messages]


def _header_structs(message: Message) -> Iterator[dict[str, Any]]:
    headers = message.headers() or []
    for key, value in headers.items() if isinstance(headers, dict) else headers:
        yield {"key": key, "value": value.encode() if isinstance(value, str) else value}


_BESIDE: dict[str, Callable[[Sequence[Message]], Sequence[Any]]] = {
    "key": lambda messages: [message.key() for message in messages],
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "timestamp": _timestamps,
    "headers": _headers,
}
