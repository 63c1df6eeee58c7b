"""Looks keys up in an index: which row groups, and in which data files, may hold them.

An answer may name too much, never too little: readers open files that an index does not cover, cannot read
or does not know. So an index of any age serves any snapshot, and a reader continues without a part that a
newer index has replaced.

An unsupported term of a filter excludes nothing. So the index serves the terms on indexed columns, and the
rows are checked against the whole filter.

A part of an index is a Parquet file in key order with small row groups, so that a look-up reads the footer,
whose statistics say which row groups may hold a key, and one or two of these.

A published manifest never changes; the pointer in etcd (``<table>.index.<column>``) names the current one.
Successive manifests may share parts. Paths below the table's location are written as ``~/...``.

Equal values have equal keys in all files: across promoted types (``int`` and ``long``, ``float`` and
``double``, more digits of a decimal), and for both zeros. Different values mostly have different keys; if
they have not (long texts with the same beginning and digest) a reader opens an unnecessary file, and its own
filter finds no row there. NULL has no key.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property, reduce
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT

from distop.errors import CorruptRecord, InvalidArgument
from distop.lake.predicates import binding
from distop.lake.predicates.binding import Plain
from distop.metastore.crashpoints import reached
from distop.metastore.records.record import convert

Key: TypeAlias = int | bytes

INT, FLOAT, BINARY, DECIMAL = "int", "float", "binary", "decimal"

MAX_KEY_BYTES = 64
"""Longer ones are truncated, and end with a digest of the whole."""
_KEPT_BYTES = 48

_INTEGERS: dict[type[iceberg.IcebergType], pa.DataType] = {
    iceberg.BooleanType: pa.int8(),
    iceberg.IntegerType: pa.int32(),
    iceberg.LongType: pa.int64(),
    iceberg.DateType: pa.date32(),
    iceberg.TimeType: pa.time64("us"),
    iceberg.TimestampType: pa.timestamp("us"),
    iceberg.TimestamptzType: pa.timestamp("us", "UTC"),
}
_EXACT = Context(prec=80)
_NAN_BITS: int = struct.unpack("<q", struct.pack("<d", math.nan))[0]


def encoding_of(column: str, kind: iceberg.IcebergType) -> str:
    """How values of a type become keys: ``int``, ``float``, ``binary``, or ``decimal(<scale>)``.

    Raises :class:`~distop.errors.InvalidArgument` for types without useful equality.
    """
    if isinstance(kind, tuple(_INTEGERS)):
        return INT
    if isinstance(kind, iceberg.FloatType | iceberg.DoubleType):
        return FLOAT
    if isinstance(kind, iceberg.StringType | iceberg.BinaryType | iceberg.FixedType | iceberg.UUIDType):
        return BINARY
    if isinstance(kind, iceberg.DecimalType):
        return f"{DECIMAL}({kind.scale})"
    raise InvalidArgument(
        f"column {column!r} has the type {kind}, which cannot be indexed",
        hint="index a column of a primitive type",
        details={"field": "column"},
    )


def key_type(encoding: str) -> pa.DataType:
    """The Arrow type of keys."""
    return pa.int64() if encoding in (INT, FLOAT) else pa.binary()


# -- columns -----------------------------------------------------------------------------------------


def keys_of(values: pa.Array, kind: iceberg.IcebergType) -> pa.Array:
    """The distinct keys of some values of a column, in file types; unordered."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    values = pc.drop_null(pc.unique(values))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if isinstance(kind, tuple(_INTEGERS)):
        return pc.unique(_as_integers(values, _INTEGERS[type(kind)]))
    if isinstance(kind, iceberg.FloatType | iceberg.DoubleType):
        return pc.unique(_float_bits(values))
    if isinstance(kind, iceberg.DecimalType):
        return _unscaled(values, kind.scale)
    return _bounded(values.cast(pa.binary()))


def _as_integers(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    # Like readers: values in other units are truncated to the table's.
    given = values if values.type == wanted else values.cast(wanted, safe=False)
    for width in (pa.int32(), pa.int64()):
        if not pa.types.is_integer(given.type) and given.type.bit_width == width.bit_width:
            given = given.view(width)
    return given.cast(pa.int64())


def _float_bits(values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 + 0.0 is 0.0
    bits = numbers.view(np.int64).copy()
    bits[np.isnan(numbers)] = _NAN_BITS
    return pa.array(bits, pa.int64())


def _unscaled(values: pa.Array, scale: int) -> pa.Array:
    whole = values.cast(pa.decimal128(38, scale))
    little = np.frombuffer(whole.buffers()[1], np.uint8).reshape(-1, 16)
    big = little[whole.offset : whole.offset + len(whole), ::-1]
    data = pa.py_buffer(np.ascontiguousarray(big).tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(whole), [None, data]).cast(pa.binary())


def _bounded(values: pa.Array) -> pa.Array:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest <= MAX_KEY_BYTES:
        return values
    return pc.unique(pa.array([bounded(value) for value in values.to_pylist()], pa.binary()))


def bounded(value: bytes) -> bytes:
    """A key of at most :data:`MAX_KEY_BYTES`."""
    if len(value) <= MAX_KEY_BYTES:
        return value
    digest = hashlib.blake2b(value, digest_size=MAX_KEY_BYTES - _KEPT_BYTES).digest()
    return value[:_KEPT_BYTES] + digest


# -- single values -----------------------------------------------------------------------------------


def key_of(value: Plain, kind: iceberg.IcebergType) -> Key:
    """The key of a value that a column of this type can hold, and that is not NULL."""
    if isinstance(value, float):
        return _NAN_BITS if math.isnan(value) else int(np.float64(value + 0.0).view(np.int64))
    if isinstance(value, Decimal):
        assert isinstance(kind, iceberg.DecimalType)
        return int(value.scaleb(kind.scale, _EXACT)).to_bytes(16, "big", signed=True)
    if isinstance(value, int):
        return int(value)
    return bounded(value.encode() if isinstance(value, str) else value)


def text_of(key: Key) -> int | str:
    """A key as JSON."""
    return key if isinstance(key, int) else key.hex()


def from_text(text: int | str) -> Key:
    """The inverse of :func:`text_of`."""
    return text if isinstance(text, int) else bytes.fromhex(text)


LAYOUT = 1
"""Layout version of manifests and parts. A newer one is not read: the table is scanned instead."""

FOLDER = "index"
"""Folder of a table's indexes, below its location; each operation has a folder of its own in it."""


class IndexPart(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """One part: sorted entries of some data files."""

    path: str = ""
    """URL of the sorted entries. Empty: its files hold only NULL."""
    entries: int = 0
    bytes: int = 0
    least: int | str | None = None
    greatest: int | str | None = None
    """The first and the last key."""
    files: list[str] = []
    """Data files; entries name them by position here. Empty: it has left the table."""

    def may_hold(self, keys: Iterable[Key]) -> bool:
        """Whether any of these keys lies between its first and its last key."""
        if self.least is None or self.greatest is None:
            return False
        least: Any = from_text(self.least)
        greatest: Any = from_text(self.greatest)
        return any(least <= key <= greatest for key in keys)


class IndexManifest(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """An index at the time of its publication."""

    layout: int = msgspec.field(default_factory=lambda: LAYOUT)
    column: str
    field_id: int
    encoding: str
    """How values are encoded as keys, see :func:`~distop.lake.index.lookup.encoding_of`."""
    snapshot_id: int
    parts: list[IndexPart] = []
    left_out: list[str] = []
    """Files of the snapshot that are not covered: missing, or of an unsupported format."""

    @cached_property
    def part_of(self) -> dict[str, int]:
        """The position of each covered file's part."""
        return {file: number for number, part in enumerate(self.parts) for file in part.files if file}

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def paths(self) -> set[str]:
        """Locations of all files that it refers to."""
        return {part.path for part in self.parts if part.path}

    def without(self, places: Collection[int]) -> IndexManifest:
        """The index without the parts at these positions."""
        kept = [part for number, part in enumerate(self.parts) if number not in places]
        return msgspec.structs.replace(self, parts=kept)

    def fits(self, schema: Schema, field_id: int) -> bool:
        """Whether values of a column, in a schema's present type, have the keys stored here."""
        if self.field_id != field_id:
            return False
        try:
            return encoding_of(self.column, schema.find_type(field_id)) == self.encoding
        except (InvalidArgument, ValueError):
            return False


def write_manifest(io: FileIO, location: str, manifest: IndexManifest, root: str) -> int:
    """Write a manifest for a table at ``root``; return its size."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    _rename(plain, lambda path: _short(path, root))
    content = msgspec.json.encode(plain)
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(content)
    return len(content)


def read_manifest(io: FileIO, location: str, root: str) -> IndexManifest:
    """Read a manifest of a table at ``root``.

    Raises
    ------
    FileNotFoundError
        It is gone: another one has been published since.
    CorruptRecord
        It is not a manifest, or has a newer layout.
    """
    with io.new_input(location).open() as stream:
        content = stream.read()
    try:
        plain = msgspec.json.decode(content, type=dict[str, Any])
        if int(plain.get("layout", 0)) > LAYOUT:
            raise CorruptRecord(f"{location} has layout {plain['layout']}, this version reads up to {LAYOUT}")
        _rename(plain, lambda path: _full(path, root))
        return convert(plain, IndexManifest)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"{location} is not the manifest of an index: {error}") from error


def _rename(plain: Mapping[str, Any], renamed: Any) -> None:
    for part in plain.get("parts", ()):
        if "path" in part:
            part["path"] = renamed(part["path"])
        part["files"] = [renamed(file) for file in part.get("files", ())]
    if "leftOut" in plain:
        plain["leftOut"][:] = [renamed(file) for file in plain["leftOut"]]


def _short(path: str, root: str) -> str:
    return "~" + path[len(root) :] if path.startswith(f"{root}/") else path


def _full(path: str, root: str) -> str:
    return root + path[1:] if path.startswith("~/") else path


Groups: TypeAlias = frozenset[int] | None
"""Row groups of a data file that may hold a matching row; ``None``: all."""


def entry_schema(encoding: str) -> pa.Schema:
    """The columns: the key; the data file by its number; the row group within it."""
    return pa.schema({"key": key_type(encoding), "file": pa.int32(), "group": pa.int32()})


@dataclass
class EntriesWritten:
    """The content of a file of entries."""

    entries: int = 0
    bytes: int = 0
    least: Key | None = None
    greatest: Key | None = None


def group_rows(entries: int) -> int:
    """Entries per row group: a look-up reads one row group and the footer, which has a line for each."""
    return min(65_536, max(1024, 4 * math.isqrt(entries)))


def write_entries(
    io: FileIO, location: str, encoding: str, batches: Iterable[pa.RecordBatch], *, expected: int
) -> EntriesWritten:
    """Write batches of entries, for a part in key order.

    Parameters
    ----------
    expected:
        Upper estimate of the number of entries.
    """
    written = EntriesWritten()
    reached("job.file.before")
    with io.new_output(location).create(overwrite=True) as stream:
        with pq.ParquetWriter(
            stream, entry_schema(encoding), compression="zstd", use_dictionary=["file", "group"]
        ) as parquet:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if not written.entries:
                    written.least = batch["key"][0].as_py()
                written.greatest = batch["key"][-1].as_py()
                written.entries += batch.num_rows
                parquet.write_batch(batch, row_group_size=group_rows(expected))
        written.bytes = int(stream.tell())
    reached("job.file.after")
    return written


def read_entries(io: FileIO, location: str) -> Iterator[pa.RecordBatch]:
    """All entries, in batches."""
    with io.new_input(location).open() as stream, pq.ParquetFile(stream) as parquet:
        yield from parquet.iter_batches(use_threads=False)


def find(io: FileIO, location: str, keys: Sequence[Any]) -> dict[int, Groups]:
    """The data files, by number, and their row groups for some keys of a part."""
    with io.new_input(location).open() as stream, pq.ParquetFile(stream) as parquet:
        metadata, kind = parquet.metadata, parquet.schema_arrow.field("key").type
        bounds = [_bounds(metadata.row_group(group)) for group in range(metadata.num_row_groups)]
        wanted = sorted({group for key in keys for group in _groups_of(bounds, key)})
        if not wanted:
            return {}
        entries = parquet.read_row_groups(wanted, use_threads=False)
    entries = entries.filter(pc.is_in(entries["key"], value_set=pa.array(keys, kind)))
    groups_of: dict[int, set[int]] = defaultdict(set)
    for file, group in zip(entries["file"].to_pylist(), entries["group"].to_pylist(), strict=True):
        groups_of[file].add(group)
    return {file: frozenset(groups) for file, groups in groups_of.items()}


def _bounds(group: Any) -> tuple[Key, Key]:
    statistics = group.column(0).statistics
    least, greatest = statistics.min, statistics.max
    return (least.encode(), greatest.encode()) if isinstance(least, str) else (least, greatest)


def _groups_of(bounds: list[tuple[Key, Key]], key: Key) -> Iterator[int]:
    group = bisect.bisect_left(bounds, key, key=lambda bound: bound[1])
    while group < len(bounds) and bounds[group][0] <= key:  # type: ignore[operator]
        yield group
        group += 1


Left: TypeAlias = dict[str, Groups]
"""The remaining files, and their row groups."""

Ask: TypeAlias = Callable[[binding.BoundColumn, Collection[binding.Plain]], Left | None]
"""The planned files that may contain one of some values in a column; ``None``: no index applies."""


def narrowed_by(node: binding.Node, ask: Ask) -> Left | None:
    """The files that may match a filter; ``None``: all of them."""
    match node:
        case binding.And(parts):
            return reduce(_both, (narrowed_by(part, ask) for part in parts))
        case binding.Or(parts):
            return reduce(_either, (narrowed_by(part, ask) for part in parts))
        case binding.BoundComparison(column, "=", value):
            return ask(column, [value])
        case binding.OneOf(column, values, nan, False):
            return ask(column, [*values, math.nan] if nan else values)
    return None


def _both(left: Left | None, right: Left | None) -> Left | None:
    if left is None or right is None:
        return right if left is None else left
    both: Left = {}
    for file in left.keys() & right.keys():
        first, second = left[file], right[file]
        groups = (
            first & second
            if first is not None and second is not None
            else (second if first is None else first)
        )
        if groups is None or groups:
            both[file] = groups
    return both


def _either(left: Left | None, right: Left | None) -> Left | None:
    if left is None or right is None:
        return None
    either: Left = {}
    for file in left.keys() | right.keys():
        first, second = left.get(file, frozenset()), right.get(file, frozenset())
        either[file] = None if first is None or second is None else first | second
    return either


log = logging.getLogger(__name__)

READERS = 8
"""Parts read concurrently."""

MAX_VALUES = 1000
"""Most values per look-up; for more the table is scanned."""

REMEMBERED = 16
"""Parsed manifests that this process caches."""


class PublishedIndex(Protocol):
    """What a look-up needs of a published index."""

    @property
    def field_id(self) -> int: ...
    @property
    def manifest(self) -> str: ...
    @property
    def sequence_number(self) -> int: ...


def narrow(
    records: Iterable[PublishedIndex],
    io: FileIO,
    root: str,
    schema: Schema,
    column: binding.BoundColumn,
    values: Collection[binding.Plain],
    planned: Iterable[str],
    partitioned: Mapping[int, Collection[str]] = EMPTY_DICT,
) -> Left | None:
    """Exclude planned files in which no row has one of some values in a column.

    Parameters
    ----------
    records:
        The table's indexes, from etcd or from the client.
    root:
        The table's location.
    schema:
        That of the snapshot to read.
    column, values:
        As a predicate over the schema compares them.
    planned:
        Locations of the data files of a snapshot, of any snapshot.
    partitioned:
        Id of a column -> the files whose partition has its value. The index does not count for them: the
        column need not be in such a file, and its partition has decided already.

    Returns
    -------
    The files that a reader still has to open, with those of parts that could not be read; ``None`` if no
    index applies: the column has none, it is unreadable, or there are too many values.
    """
    chosen = [record for record in records if record.field_id == column.id]
    if not chosen or len(values) > MAX_VALUES:
        return None
    record = max(chosen, key=lambda record: record.sequence_number)
    manifest = load_manifest(io, record.manifest, root)
    if manifest is None or not manifest.fits(schema, column.id):
        return None
    keys: list[Any] = sorted({key_of(value, column.kind) for value in values})
    apart = frozenset(partitioned.get(column.id, ()))
    of_part: dict[int, list[str]] = defaultdict(list)
    files: Left = {}
    for file in planned:
        number = None if file in apart else manifest.part_of.get(file)
        if number is None:
            files[file] = None
        else:
            of_part[number].append(file)
    parts = [number for number in of_part if manifest.parts[number].may_hold(keys)] if keys else []
    for number, hits in zip(
        parts, _look(io, [manifest.parts[number] for number in parts], keys), strict=True
    ):
        if hits is None:
            files |= dict.fromkeys(of_part[number], None)
        else:
            files |= {file: hits[file] for file in of_part[number] if file in hits}
    return files


def left_of(
    records: Sequence[PublishedIndex],
    io: FileIO,
    root: str,
    schema: Schema,
    predicate: binding.Predicate,
    planned: Collection[str],
    partitioned: Mapping[int, Collection[str]],
) -> Left | None:
    """What is to be opened of planned files, for a filter; parameters as of :func:`narrow`.

    ``None``: all of them, no index says anything.
    """

    def ask(column: binding.BoundColumn, values: Collection[binding.Plain]) -> Left | None:
        return narrow(records, io, root, schema, column, values, planned, partitioned)

    return narrowed_by(predicate.node, ask) if records else None


def _look(io: FileIO, parts: list[IndexPart], keys: list[Any]) -> Iterator[dict[str, Groups] | None]:
    if len(parts) < 2:
        yield from (_look_into(io, part, keys) for part in parts)
        return
    with ThreadPoolExecutor(min(READERS, len(parts)), thread_name_prefix="lookup") as pool:
        yield from pool.map(lambda part: _look_into(io, part, keys), parts)


def _look_into(io: FileIO, part: IndexPart, keys: list[Any]) -> dict[str, Groups] | None:
    """The files of a part that may hold a key; ``None`` if it cannot be read."""
    try:
        hits = find(io, part.path, keys)
    except Exception as error:  # any file system or Parquet error: the files are opened instead
        log.warning("index_part_unreadable", extra={"path": part.path, "error": str(error)})
        return None
    return {part.files[file]: groups for file, groups in hits.items()}


# -- manifests ---------------------------------------------------------------------------------------


_manifests: dict[tuple[str, str], IndexManifest] = {}


def load_manifest(io: FileIO, location: str, root: str) -> IndexManifest | None:
    """A manifest; ``None`` if it cannot be read. Manifests never change, so some are kept in memory."""
    at = (location, root)
    manifest = _manifests.get(at)
    if manifest is not None:
        return manifest
    try:
        manifest = read_manifest(io, location, root)
    except Exception as error:  # missing, unreachable, of a newer version: a scan works
        log.warning("index_manifest_unreadable", extra={"path": location, "error": str(error)})
        return None
    if len(_manifests) >= REMEMBERED:
        _manifests.clear()
    _manifests[at] = manifest
    return manifest
