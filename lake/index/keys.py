"""Values of a column as keys of an index.

Equal values have equal keys in all files: across promoted types (``int`` and ``long``, ``float`` and
``double``, more digits of a decimal), and for both zeros. Different values mostly have different keys; if
they have not (long texts with the same beginning and digest) a reader opens an unnecessary file, and its own
filter finds no row there. NULL has no key.
"""

from __future__ import annotations

import hashlib
import math
import struct
from decimal import Context, Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg

from distop.errors import InvalidArgument
from distop.lake.predicates.binding import Plain

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
