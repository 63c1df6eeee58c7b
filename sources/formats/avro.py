"""Avro: blocks of records into columns (Avro's specification, "Object Container Files").

fastavro decodes records without their logical types: it has no dates before the year 1. Arrow gets numbers
and bytes as they are stored. What is not UTF-8 becomes text that Arrow refuses: only its rows are bad.

A file is split at any byte: a range has the blocks that begin in it. The marker between blocks, 16 bytes that
are random in each file, shows where its first one begins.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, BinaryIO, Self
from uuid import UUID

import pyarrow as pa
from pyarrow import types as is_

from distop.errors import DistopError, library
from distop.lake.layout.properties import MAX_COLUMNS
from distop.sources.formats.bad_rows import Unconvertible, refused
from distop.sources.formats.conversion import NOT_UTF_8, convert
from distop.sources.formats.files import OpenFile
from distop.sources.formats.reader import FileUnusable, ReadColumns, check_size, damage_named
from distop.sources.formats.types import UTC

BATCH_ROWS = 8 * 1024
BATCH_BYTES = 8 << 20
"""Rows are converted together up to one of these; bytes are those of their blocks."""
MAX_BLOCK_BYTES = 256 << 20
"""Largest block of a file, compressed or not."""

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16
_HEADER_BYTES = 64 << 10, 16 << 20
"""How much is read to find the end of a header."""
_SEARCH_BYTES = 1 << 20
_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": len(_MAGIC)}},
        {"name": "metadata", "type": {"type": "map", "values": "bytes"}},
        {"name": "marker", "type": {"type": "fixed", "name": "Marker", "size": _MARKER_BYTES}},
    ],
}

# -- types ---------------------------------------------------------------------------------------------

_LOGICAL = "logical"
_KEPT = frozenset({"type", "name", "namespace", "fields", "symbols", "items", "values", "size"})
_OF_DECIMALS = frozenset({"precision", "scale"})


def _neutral(schema: Any) -> Any:
    """A schema for decoding: logical types have a name that fastavro does not know, and nothing is left that
    says nothing about the values."""
    if isinstance(schema, list):
        return [_neutral(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    known = {key: _neutral(value) for key, value in schema.items() if key in _KEPT}
    if set(known) == {"type"} and not isinstance(known["type"], str):
        return known["type"]
    if isinstance(logical := schema.get("logicalType"), str):
        known[_LOGICAL] = logical
        known |= {key: schema[key] for key in _OF_DECIMALS.intersection(schema)}
    return known


@dataclass(frozen=True, slots=True)
class _ColumnDecoder:
    """A type of Avro, in Arrow.

    Parameters
    ----------
    array:
        Makes an array of decoded values, of which any may be ``None``; gets the path of their column, too.
        Raises :class:`~distop.sources.formats.bad_rows.Unconvertible`.
    fields:
        How many there are within it.
    """

    dtype: pa.DataType
    array: Callable[[list[Any], str], pa.Array]
    fields: int = 1


def _plain(dtype: pa.DataType) -> _ColumnDecoder:
    def array(values: list[Any], path: str) -> pa.Array:
        try:
            return pa.array(values, dtype)
        except UnicodeEncodeError as error:
            text = pa.scalar(error.object.encode(errors="surrogateescape"))
            raise refused(path, text, NOT_UTF_8) from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise Unconvertible(f"column {path!r}: {error}") from None

    return _ColumnDecoder(dtype, array)


def _unknown(name: str) -> _ColumnDecoder:
    """A type whose values no table can hold."""
    dtype = pa.opaque(pa.null(), name, "Avro")
    return _ColumnDecoder(
        dtype, lambda values, _: pa.ExtensionArray.from_storage(dtype, pa.nulls(len(values)))
    )


_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.large_binary(),
    "string": pa.large_string(),
}
_LOGICALS = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", UTC),
    ("long", "timestamp-micros"): pa.timestamp("us", UTC),
    ("long", "timestamp-nanos"): pa.timestamp("ns", UTC),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


class _Kinds:
    """The types of a schema. Those with a name may be used again under it."""

    def __init__(self) -> None:
        self._named: dict[str, _ColumnDecoder | None] = {}
        """``None``: it has begun."""

    def columns(self, schema: Mapping[str, Any]) -> dict[str, _ColumnDecoder]:
        """Those of a file, by name. Raises as :meth:`of`."""
        self._named[schema["name"]] = None
        return self._fields(schema["fields"])

    def of(self, schema: Any) -> _ColumnDecoder:
        """Raises :class:`FileUnusable` for a type that contains itself."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema not in self._named:
                return _plain(_PRIMITIVES[schema])
            kind = self._named[schema]
            if kind is None:
                raise FileUnusable(f"has records of a type that contains itself, {schema!r}")
            return kind
        if name := schema.get("name"):
            self._named[name] = None
            self._named[name] = kind = self._made(schema)
            return kind
        return self._made(schema)

    def _union(self, branches: list[Any]) -> _ColumnDecoder:
        others = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        kinds = [self.of(branch) for branch in others]
        if not kinds:
            return _plain(pa.null())
        names = (
            branch if isinstance(branch, str) else branch.get("name", branch["type"]) for branch in others
        )
        return kinds[0] if len(kinds) == 1 else _unknown(f"union of {' and '.join(names)}")

    def _made(self, schema: Mapping[str, Any]) -> _ColumnDecoder:
        match schema["type"]:
            case "record" | "error":
                return self._record(schema["fields"])
            case "array":
                return _list(self.of(schema["items"]))
            case "map":
                return _map(self.of(schema["values"]))
            case "enum":
                return _plain(pa.large_string())
            case "fixed":
                size = schema["size"]
                plain = _plain(pa.binary(size)) if size > 0 else _unknown("fixed of no bytes")
                return _logical(schema, plain, size)
            case name:
                return _logical(schema, self.of(name))

    def _fields(self, fields: list[Any]) -> dict[str, _ColumnDecoder]:
        kinds: dict[str, _ColumnDecoder] = {}
        count = 0
        for field in fields:
            if field["name"] in kinds:
                raise FileUnusable(f"has two fields {field['name']!r} in one record")
            kinds[field["name"]] = kind = self.of(field["type"])
            count += kind.fields
            if count > MAX_COLUMNS:
                raise FileUnusable(f"has more than {MAX_COLUMNS:,} fields in one record")
        return kinds

    def _record(self, fields: list[Any]) -> _ColumnDecoder:
        kinds = self._fields(fields)
        if not kinds:
            return _unknown("record without fields")
        dtype = pa.struct([(name, kind.dtype) for name, kind in kinds.items()])

        def array(values: list[Any], path: str) -> pa.Array:
            parts = [
                kind.array([None if value is None else value[name] for value in values], f"{path}.{name}")
                for name, kind in kinds.items()
            ]
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(parts, fields=list(dtype), mask=mask)

        return _ColumnDecoder(dtype, array, 1 + sum(kind.fields for kind in kinds.values()))


def _list(items: _ColumnDecoder) -> _ColumnDecoder:
    dtype = pa.large_list(items.dtype)

    def array(values: list[Any], path: str) -> pa.Array:
        flat = [item for value in values if value for item in value]
        elements = items.array(flat, f"{path}.element")
        return pa.LargeListArray.from_arrays(pa.array(_offsets(values), pa.int64()), elements, type=dtype)

    return _ColumnDecoder(dtype, array, items.fields)


def _map(items: _ColumnDecoder) -> _ColumnDecoder:
    texts = _plain(pa.large_string())
    dtype = pa.map_(texts.dtype, items.dtype)

    def array(values: list[Any], path: str) -> pa.Array:
        keys = texts.array([key for value in values if value for key in value], f"{path}.key")
        flat = [item for value in values if value for item in value.values()]
        offsets = pa.array(_offsets(values), pa.int32())
        return pa.MapArray.from_arrays(offsets, keys, items.array(flat, f"{path}.value"), type=dtype)

    return _ColumnDecoder(dtype, array, items.fields + 1)


def _offsets(values: list[Any]) -> list[int | None]:
    """Where each list begins, and the last one ends; ``None`` for one that is NULL."""
    positions: list[int | None] = []
    end = 0
    for value in values:
        positions.append(None if value is None else end)
        end += len(value or ())
    return [*positions, end]


def _logical(schema: Mapping[str, Any], plain: _ColumnDecoder, size: int | None = None) -> _ColumnDecoder:
    """A type with its logical type. As the specification says, one that is unknown there, or does not fit,
    means nothing."""
    name, logical = schema["type"], schema.get(_LOGICAL, "")
    if dtype := _LOGICALS.get((name, logical)):
        return _plain(dtype)
    if logical == "uuid" and (name == "string" or size == 16):
        return _converted(pa.uuid(), _uuid) if name == "string" else _plain(pa.uuid())
    if logical == "decimal" and name in ("bytes", "fixed"):
        return _decimal(schema.get("precision"), schema.get("scale", 0), size) or plain
    if logical == "big-decimal" or (logical == "duration" and size == 12):
        return _unknown(logical)
    return plain


def _decimal(precision: Any, scale: Any, size: int | None) -> _ColumnDecoder | None:
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision > 0:
        return None
    if size is not None and 10**precision > 1 << (8 * size - 1):
        return None
    if precision > pa.decimal256(76).precision:
        return _unknown(f"decimal({precision},{scale})")
    dtype = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return _converted(dtype, partial(_decimal_of, dtype))


def _converted(dtype: pa.DataType, read: Callable[[Any], Any]) -> _ColumnDecoder:
    """A type whose values Arrow does not take as they are stored; ``read`` raises ``ValueError``."""
    plain = _plain(dtype)

    def array(values: list[Any], path: str) -> pa.Array:
        try:
            return plain.array([None if value is None else read(value) for value in values], path)
        except ValueError as error:
            raise Unconvertible(f"column {path!r}: {error}") from None

    return _ColumnDecoder(dtype, array)


def _unscaled(value: bytes, scale: int) -> Decimal:
    """The number of an integer in two's complement, highest byte first; raises ``ValueError`` for none."""
    if not value:
        raise ValueError("a decimal of no bytes")
    return Decimal(f"{int.from_bytes(value, signed=True)}e-{scale}")


def _decimal_of(dtype: pa.DataType, value: bytes) -> Decimal:
    number = _unscaled(value, dtype.scale)
    if len(number.as_tuple().digits) > dtype.precision:
        raise ValueError(f"{number} has more than {dtype.precision} digits")
    return number


def _uuid(text: str) -> bytes:
    uuid = UUID(text)
    if str(uuid) != text.lower():  # Python knows other spellings
        raise ValueError(f"{text!r} is no uuid")
    return uuid.bytes


# -- files ---------------------------------------------------------------------------------------------


def _fastavro() -> Any:
    return library("fastavro", "avro", "reading Avro files")


@dataclass(frozen=True, slots=True)
class _Header:
    """What the beginning of a file says of the rest."""

    size: int
    """Bytes that the header takes."""
    marker: bytes
    codec: str
    schema: dict[str, Any]
    """The schema with which blocks are decoded."""
    kinds: dict[str, _ColumnDecoder]
    """Column -> how its values are read."""

    @classmethod
    def of(cls, stream: BinaryIO) -> Self:
        """Raises :class:`FileUnusable` if there is none, or not one of records that can be read."""
        header, size = _raw_header(stream)
        metadata = header["metadata"]
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _CODECS:
            raise FileUnusable(f"is compressed with {codec!r}; known are {', '.join(_CODECS)}")
        try:
            schema = _fastavro().parse_schema(_neutral(json.loads(metadata["avro.schema"])))
            if not isinstance(schema, dict) or schema["type"] != "record":
                raise FileUnusable("holds other values than records")
            check_size([field["name"] for field in schema["fields"]])
            return cls(size, header["marker"], codec, schema, _Kinds().columns(schema))
        except (DistopError, FileUnusable):
            raise
        except Exception as error:  # fastavro's have no class of their own
            raise FileUnusable(f"has a schema that cannot be read: {error!r}") from None

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([(name, kind.dtype) for name, kind in self.kinds.items()])


def _raw_header(stream: BinaryIO) -> tuple[dict[str, Any], int]:
    """A header and its bytes. Of most files a few kilobytes need be read for it."""
    fastavro, data = _fastavro(), b""
    for size in _HEADER_BYTES:
        data += stream.read(size - len(data))
        if not data.startswith(_MAGIC):
            break
        text = io.BytesIO(data)
        try:
            return fastavro.schemaless_reader(text, _HEADER, None), text.tell()
        except (ArithmeticError, EOFError, ValueError):
            if len(data) < size:
                break
    raise FileUnusable("is not an Avro file: it has no header of one")


@dataclass(frozen=True, slots=True)
class _Block:
    """One block, still compressed: ``start`` is its first byte within the file, ``end`` the one behind it."""

    start: int
    rows: int
    data: bytes
    end: int


def _blocks(
    stream: BinaryIO, header: _Header, start: int, end: int | None, *, skip: bool = False
) -> Iterator[_Block]:
    """The blocks that begin at bytes ``start`` to ``end``; with ``skip`` without their data.

    Raises
    ------
    FileUnusable
    """
    size = stream.seek(0, io.SEEK_END)
    position = header.size if start <= header.size else _after_marker(stream, header.marker, start)
    while position < (size if end is None else min(end, size)):
        with damage_named():
            block = _block(stream, header.marker, position, size, skip=skip)
        yield block
        position = block.end


def _block(stream: BinaryIO, marker: bytes, position: int, size: int, *, skip: bool) -> _Block:
    read = _fastavro().schemaless_reader
    stream.seek(position)
    rows, length = read(stream, "long", None), read(stream, "long", None)
    begin = stream.tell()
    if rows < 0 or length < 0 or begin + length + _MARKER_BYTES > size:
        raise EOFError(f"the block at byte {position} ends behind the file")
    if length > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of {length:,} bytes, at most {MAX_BLOCK_BYTES:,} are read")
    data = b"" if skip else stream.read(length)
    stream.seek(begin + length)
    if stream.read(_MARKER_BYTES) != marker:
        raise ValueError(f"no marker follows the block at byte {position}")
    return _Block(position, rows, data, stream.tell())


def _after_marker(stream: BinaryIO, marker: bytes, position: int) -> int:
    """Where the first block begins at or after a position; the end of the file if there is none."""
    begin = position - _MARKER_BYTES
    stream.seek(begin)
    data = b""
    while more := stream.read(_SEARCH_BYTES):
        data += more
        if (at := data.find(marker)) >= 0:
            return begin + at + _MARKER_BYTES
        kept = data[-_MARKER_BYTES + 1 :]
        begin += len(data) - len(kept)
        data = kept
    return stream.tell()


def _bounded(decompressor: Any, data: bytes) -> bytes:
    """Raises ``ValueError`` if it becomes too much, or ends too early."""
    block: bytes = decompressor.decompress(data, MAX_BLOCK_BYTES + 1)
    if len(block) > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of more than {MAX_BLOCK_BYTES:,} bytes")
    if not decompressor.eof:
        raise EOFError("a block ends too early")
    return block


def _from_snappy(data: bytes) -> bytes:
    """Raises ``ValueError`` if the checksum, which follows it, is that of another content."""
    packed, checksum = data[:-4], data[-4:]
    size = 0
    for index, byte in enumerate(packed[:5]):  # it begins with its size, seven bits in a byte
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    if size > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of more than {MAX_BLOCK_BYTES:,} bytes")
    block: bytes = pa.Codec("snappy").decompress(packed, size, asbytes=True)
    if zlib.crc32(block).to_bytes(4) != checksum:
        raise ValueError("the checksum of a block is another")
    return block


def _from_zstandard(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        block: bytes = stream.read(MAX_BLOCK_BYTES + 1)
    if len(block) > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of more than {MAX_BLOCK_BYTES:,} bytes")
    return block


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: _bounded(zlib.decompressobj(-zlib.MAX_WBITS), data),
    "snappy": _from_snappy,
    "zstandard": _from_zstandard,
    "bzip2": lambda data: _bounded(bz2.BZ2Decompressor(), data),
    "xz": lambda data: _bounded(lzma.LZMADecompressor(), data),
}


class AvroRows:
    """Some records of an Avro file.

    Parameters
    ----------
    first:
        Index of the first among those of its range of the file.
    """

    def __init__(self, records: list[dict[str, Any]], first: int, part: _Range) -> None:
        self.records = records
        self._first = first
        self._range = part

    def __len__(self) -> int:
        return len(self.records)

    def part(self, start: int, stop: int) -> Self:
        return type(self)(self.records[start:stop], self._first + start, self._range)

    def number(self) -> int:
        return self._range.rows_before + self._first + 1

    def kept(self) -> dict[str, Any]:
        """As the file has it: dates and times are numbers, and bytes that are not UTF-8 like ``\\xff``."""
        kinds = self._range.header.kinds
        shown = {name: _shown(value, kinds[name].dtype) for name, value in self.records[0].items()}
        text = json.dumps(shown, default=str, ensure_ascii=False)
        return {"raw": text.encode(errors="surrogateescape").decode(errors="backslashreplace")}


def _shown(value: Any, dtype: pa.DataType) -> Any:
    try:
        return _unscaled(value, dtype.scale) if is_.is_decimal(dtype) and value is not None else value
    except ValueError:
        return value


@dataclass(frozen=True)
class _Range:
    """The blocks of an open file that begin in a range of its bytes."""

    stream: BinaryIO
    header: _Header
    start: int
    end: int | None

    @cached_property
    def rows_before(self) -> int:
        """How many rows the file has before it."""
        return sum(block.rows for block in _blocks(self.stream, self.header, 0, self.start, skip=True))

    def rows(self) -> Iterator[AvroRows]:
        """All rows, some at a time."""
        read = partial(_fastavro().schemaless_reader, handle_unicode_errors="surrogateescape")
        records: list[dict[str, Any]] = []
        first = size = 0
        for block in _blocks(self.stream, self.header, self.start, self.end):
            with damage_named():
                content = io.BytesIO(_CODECS[self.header.codec](block.data))
            left = block.rows
            while left:
                count = min(left, BATCH_ROWS - len(records))
                with damage_named():
                    records += [read(content, self.header.schema, None) for _ in range(count)]
                left -= count
                size += content.tell()
                if len(records) == BATCH_ROWS or size > BATCH_BYTES:
                    yield AvroRows(records, first, self)
                    first += len(records)
                    records, size = [], 0
            if content.read(1):
                raise FileUnusable(f"is damaged: the block at byte {block.start} has more than its rows")
        if records:
            yield AvroRows(records, first, self)


class AvroReader:
    """Reads Avro files."""

    def __init__(self, wanted: ReadColumns) -> None:
        self._wanted = wanted

    @contextmanager
    def open(self, file: OpenFile) -> Iterator[AvroFile]:
        with closing(file.open()) as stream:
            header = _Header.of(stream)
            self._wanted.check_types(header.arrow)
            yield AvroFile(stream, header, self._wanted.schema)


class AvroFile:
    """One Avro file; ``schema`` are the required columns."""

    row_unit = "row"

    def __init__(self, stream: BinaryIO, header: _Header, schema: pa.Schema) -> None:
        self._stream, self._header, self._schema = stream, header, schema

    def blocks(self, start: int, end: int | None) -> Iterator[AvroRows]:
        """The rows of the blocks that begin in a range of bytes."""
        return _Range(self._stream, self._header, start, end).rows()

    def convert(self, rows: AvroRows) -> pa.Table:
        """The required columns of some rows."""
        columns = [self._column(rows, field) for field in self._schema]
        return pa.table(columns, schema=self._schema)

    def _column(self, rows: AvroRows, field: pa.Field) -> pa.Array:
        kind = self._header.kinds.get(field.name)
        if kind is None:
            return pa.nulls(len(rows), field.type)
        return convert(_array(kind, rows.records, field.name), field.type, field.name)


def _array(kind: _ColumnDecoder, records: list[dict[str, Any]], name: str) -> pa.Array:
    return kind.array([record[name] for record in records], name)


def schemas_of(file: OpenFile) -> tuple[pa.Schema, pa.Schema]:
    """The schema of a file, twice: all its times say whether they are points in time."""
    with closing(file.open()) as stream:
        schema = _Header.of(stream).arrow
        return schema, schema


def unfit(file: OpenFile, types: Mapping[str, pa.DataType]) -> list[str]:
    """Those of some columns of which one of the first values does not fit a numeric type."""
    if not types:
        return []
    with closing(file.open()) as stream:
        header = _Header.of(stream)
        rows = next(_Range(stream, header, 0, None).rows(), None)
        if rows is None:
            return []
        there = [column for column in types if column in header.kinds]
        return [name for name in there if not _fits(header.kinds[name], rows.records, name, types[name])]


def _fits(kind: _ColumnDecoder, records: list[dict[str, Any]], column: str, dtype: pa.DataType) -> bool:
    try:
        convert(_array(kind, records, column), dtype, column)
    except Unconvertible:
        return False
    return True
