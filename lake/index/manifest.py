"""The manifest of an index: its parts, and which part has the keys of which data file; and the keys.

A published manifest never changes; the pointer in etcd (``<table>.index.<column>``) names the current one.
Successive manifests may share parts. Paths below the table's location are written as ``~/...``.


Equal values have equal keys in all files: across promoted types (``int`` and ``long``, ``float`` and
``double``, more digits of a decimal), and for both zeros. Different values mostly have different keys; if
they have not (long texts with the same beginning and digest) a reader opens an unnecessary file, and its own
filter finds no row there. NULL has no key.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Iterable, Mapping
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from distop.errors import CorruptRecord, InvalidArgument
from distop.lake.predicates.binding import Plain
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
    """How values are encoded as keys, see :func:`~distop.lake.index.manifest.encoding_of`."""
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
