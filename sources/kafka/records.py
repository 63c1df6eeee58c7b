"""Records of a topic as columns: values by format, metadata, and the columns that a sample shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
from pyarrow import types as is_
from pyiceberg.schema import Schema

from distop.errors import KafkaUnavailable
from distop.lake.storage.quarantine import kept_text
from distop.sources.formats.bad_rows import Unconvertible, bad_value
from distop.sources.formats.conversion import NOT_UTF_8, convert
from distop.sources.formats.csv import CsvRecords
from distop.sources.formats.files import utf_8
from distop.sources.formats.inference import SAMPLE_BYTES, CsvSample, JsonSample, Sample
from distop.sources.formats.jsonl import JsonObjects
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import ReadColumns
from distop.sources.formats.text_file import MAX_LINE_BYTES
from distop.sources.kafka.client import Cluster, RangeReader
from distop.sources.kafka.ranges import KafkaArgument, OffsetRange

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
        """The position, by names of its parts: see :class:`~distop.sources.formats.bad_rows.RowPosition`."""
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
    """Values of records, one on each line."""

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
        wanted: ReadColumns,
        *,
        metadata: Mapping[str, str],
        csv: CsvOptions,
        value_column: str,
    ) -> None:
        self._schema = wanted.schema
        self._csv = csv
        self._metadata = {part: column for part, column in metadata.items() if column in self._schema.names}
        direct = set(metadata.values())
        values = pa.schema([field for field in self._schema if field.name not in direct])
        self._values = values
        self._wanted = ReadColumns(values, wanted.strict)
        self._value_column = value_column
        self._format = value_format

    def convert(self, records: Records) -> pa.Table:
        """The required columns, a row for each record.

        Raises
        ------
        Unconvertible
        """
        columns = dict(zip(self._values.names, self._values_of(records.messages).columns, strict=True))
        for part, column in self._metadata.items():
            values = _array(_METADATA[part](records.messages), _READ_TYPES.get(part, NATURAL_TYPES[part]))
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


def _header_structs(message: Message) -> Iterator[dict[str, Any]]:
    headers = message.headers() or []
    for key, value in headers.items() if isinstance(headers, dict) else headers:
        yield {"key": key, "value": value.encode() if isinstance(value, str) else value}


_METADATA: dict[str, Callable[[Sequence[Message]], Sequence[Any]]] = {
    "key": lambda messages: [message.key() for message in messages],
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "timestamp": _timestamps,
    "headers": lambda messages: [list(_header_structs(message)) for message in messages],
}


SAMPLE_SECONDS = 3.0
SAMPLE_RANGES = 8
SAMPLE_RECORDS = 200
"""Sample size: records of each range, and number of ranges."""


def direct_columns(kafka: KafkaArgument) -> list[str]:
    """Columns that get values directly, without parsing a text: those of metadata, and the raw value."""
    return [*([kafka.value_column] if kafka.format == "raw" else ()), *kafka.metadata.values()]


def direct_types(kafka: KafkaArgument) -> dict[str, pa.DataType]:
    """The types of :func:`direct_columns` in the topic."""
    types = {column: NATURAL_TYPES[part] for part, column in kafka.metadata.items()}
    return types | ({kafka.value_column: RAW_TYPE} if kafka.format == "raw" else {})


class KafkaSample:
    """The columns of a topic. Records are read only if the columns are not known otherwise.

    Parameters
    ----------
    table:
        The schema of the table, if it has one.
    declared:
        Whether the caller has declared the columns.
    """

    instants: Mapping[str, pa.DataType] = {}

    def __init__(
        self,
        cluster: Cluster,
        kafka: KafkaArgument,
        ranges: Sequence[OffsetRange],
        options: CsvOptions,
        table: Schema | None,
        *,
        declared: bool,
    ) -> None:
        self._cluster = cluster
        self._kafka = kafka
        self._ranges = ranges
        self._options = options
        self._table = table
        self._declared = declared
        self.complete = kafka.format != "json"
        self.unreadable = ""
        """Why the first unreadable record of the sample is so."""

    @cached_property
    def names(self) -> list[str]:
        """Columns of the values; for JSON those of the table, whatever keys the sample has.

        If they were declared, an unknown key makes its record a bad one, and does not fail the operation.
        """
        direct = direct_columns(self._kafka)
        if self._kafka.format == "raw":
            return [self._kafka.value_column]
        if self._kafka.format == "csv":
            return [name for name in self._header if name not in direct]
        if self._declared:
            return []
        known = (
            self._records.names if self._table is None else [column.name for column in self._table.columns]
        )
        return [name for name in known if name not in direct]

    @cached_property
    def all_names(self) -> list[str]:
        """The columns of :attr:`names`, and for JSON the keys in the sample."""
        if self._kafka.format != "json" or self._declared:
            return self.names
        direct = direct_columns(self._kafka)
        return list(dict.fromkeys(name for name in (*self.names, *self._records.names) if name not in direct))

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        return self._records.unfit(types)

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        direct = direct_types(self._kafka)
        guessed = [column for column in columns if column not in direct]
        known = {column: direct[column] for column in columns if column in direct}
        return known | (self._records.types(guessed) if guessed else {})

    @property
    def _header(self) -> list[str]:
        return list(self._options.header) if isinstance(self._options.header, list) else []

    @cached_property
    def _records(self) -> Sample:
        if self._kafka.format == "json":
            return JsonSample(self._lines())
        return CsvSample([(self._header, b"".join(line + b"\n" for line in self._lines()))], self._options)

    def _lines(self) -> list[bytes]:
        lines = []
        as_csv = partial(csv_line, encoding=self._options.encoding)
        line_of = json_line if self._kafka.format == "json" else as_csv
        for value in self._values():
            try:
                lines.append(line_of(value))
            except Unconvertible as error:
                # Bad records are handled when they are read.
                self.unreadable = self.unreadable or str(error)
        return lines

    def _values(self) -> list[bytes]:
        """The first values of some ranges, evenly spread."""
        deadline = time.monotonic() + SAMPLE_SECONDS

        def look() -> None:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"topic {self._kafka.topic!r}: no sample of its records within {SAMPLE_SECONDS:.0f} s",
                    hint="try again, or declare the columns: --schema",
                )

        reader = RangeReader(self._cluster, self._kafka.topic, skip_gaps=True, look=look)
        last = len(self._ranges) - 1
        count = min(len(self._ranges), SAMPLE_RANGES)
        values: list[bytes] = []
        for number in range(count):
            wanted = self._ranges[last * number // max(1, count - 1)]
            size, some = 0, 0
            for message in reader.records(wanted):
                if (value := message.value()) is not None:
                    values.append(value)
                some, size = some + 1, size + len(message)
                if some >= SAMPLE_RECORDS or size >= SAMPLE_BYTES // count:
                    break
        return values
