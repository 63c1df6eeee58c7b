"""Casts columns to a table's types: a value that its type cannot hold is refused, also if Arrow takes it.

Arrow's parser also knows hexadecimal ones: ``0x1F`` would be 31, and ``0xFFFFFFFFFFFFFFFF`` -1, which nothing
gives back. All others that it knows are decimal, and those are their texts.

Arrow multiplies by a power of ten to get the decimals of a type, and what then takes more than 128 bits is
another number, without a word: 922.56 in a ``decimal(38,38)`` was 0.39. Of texts with more than 38 digits it
drops some, and what has 39 decimals more than a type is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from distop.lake.writing.floats import unlike_texts, unlike_wider

MAX_DIGITS = 38
"""All numbers of so many digits take at most 128 bits."""


def has_room(dtype: pa.DataType) -> bool:
    """Whether a parser of Arrow, which takes no more digits than a type has, multiplies none by too much."""
    return bool(dtype.precision + dtype.scale <= MAX_DIGITS)


def with_room(dtype: pa.DataType) -> pa.DataType:
    """The type for a parser of Arrow: it takes all texts that are numbers of ``dtype``, and multiplies none
    by too much."""
    return pa.decimal256(2 * MAX_DIGITS - dtype.scale, dtype.scale)


def may_vanish(text: bytes, quote: bytes = b"") -> bool:
    """Whether a text may hold a number with so many decimals that a parser of Arrow makes 0 of it.

    Parameters
    ----------
    quote:
        A sign that may be within a number.
    """
    signs = [exponent + between + b"-" for exponent in (b"e", b"E") for between in {b"", quote}]
    if not any(sign in text for sign in signs):  # much faster
        return False
    maybe = re.escape(quote) + b"?" if quote else b""
    return re.search(maybe.join([rb"[0-9.]", rb"[eE]", rb"-", rb"[0-9]", rb"[0-9]"]), text) is not None


def unlike_decimals(texts: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> str:
    """Why a decimal is not the text, ``large_string``, that Arrow has made it of; empty if all are."""
    long = pc.greater(pc.binary_length(texts), MAX_DIGITS - made.type.scale)
    rare = pc.or_(long, pc.match_substring(texts, "e", ignore_case=True))
    for text, number in zip(texts.filter(rare).to_pylist(), made.filter(rare).to_pylist(), strict=True):
        if Decimal(text) != number:
            return f"invalid value {text!r} for {made.type}"
    return ""


def unlike_number(given: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> str:
    """Why a decimal is not the decimal that Arrow has made it of; empty if all are."""
    more = made.type.scale - given.type.scale
    if more <= 0 or given.type.precision + more <= MAX_DIGITS:
        return ""
    back = made.cast(given.type, safe=False)  # what was too large is smaller now
    other = given.filter(pc.not_equal(back, given))
    return f"invalid value {other[0].as_py()} for {made.type}" if len(other) else ""


def unlike_integers(texts: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> str:
    """Why an integer of a type is not the text, ``large_string``, that Arrow has made it of; empty if all
    are."""
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    for chunk in chunks:
        if _has_x(_characters(chunk)):
            hexadecimal = chunk.filter(pc.match_substring(chunk, "x", ignore_case=True))
            if len(hexadecimal):
                return f"invalid value {hexadecimal[0].as_py()!r} for {kind}"
    return ""


def may_be_hexadecimal(text: bytes, quote: bytes) -> bool:
    """Whether a text may hold a hexadecimal number.

    Parameters
    ----------
    quote:
        A sign that may be within a number; or empty.
    """
    if not _has_x(text):
        return False
    for start in range(0, len(text), _PIECE_BYTES):
        signs = np.frombuffer(text, np.uint8, min(_PIECE_BYTES + 2, len(text) - start), start)
        zeros, marks = signs == ord("0"), (signs | np.uint8(32)) == ord("x")
        if (zeros[:-1] & marks[1:]).any():
            return True
        if quote and (zeros[:-2] & (signs[1:-1] == ord(quote)) & marks[2:]).any():
            return True
    return False


def _has_x(text: bytes) -> bool:
    return b"x" in text or b"X" in text


def _characters(texts: pa.Array) -> bytes:
    """The bytes of all texts, one after the other."""
    _, offsets, characters = texts.buffers()
    if characters is None or not len(texts):
        return b""
    ends = np.frombuffer(offsets, np.int64)[texts.offset :]
    joined: bytes = characters[ends[0] : ends[len(texts)]].to_pybytes()
    return joined


Values = TypeVar("Values", pa.Array, pa.ChunkedArray)


class InvalidValue(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A value that is refused. The text says which one, and why: Arrow's own errors do not always."""


def checked_cast(values: Values, target: pa.DataType) -> Values:
    """``values`` as ``target``; raises ``pa.ArrowInvalid`` if one does not fit.

    Arrow makes finite numbers infinite that are too large for a float, rounds those with more digits than it
    has, reads some texts as hexadecimal numbers, and says nothing.
    """
    result = values.cast(target)
    if not values.type.equals(target):
        _check_numbers(values, result)
    return result


def _check_numbers(given: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> None:
    """Check that numbers are those that were given, as numbers or texts; also within nested values.

    Raises ``pa.ArrowInvalid``.
    """
    kind = made.type
    if is_.is_null(given.type) or kind.equals(given.type):
        return
    if is_.is_struct(kind):
        for name in (field.name for field in kind if given.type.get_field_index(field.name) >= 0):
            _check_numbers(pc.struct_field(given, name), pc.struct_field(made, name))
    elif is_.is_map(kind):
        _check_numbers(pc.list_flatten(as_lists(given)), pc.list_flatten(as_lists(made)))
    elif is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        _check_numbers(pc.list_flatten(given), pc.list_flatten(made))
    elif reason := _unlike(given, made):
        raise InvalidValue(reason)


def _unlike(given: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> str:
    """Why a number is not what it is made of; empty if all are."""
    source, kind = given.type, made.type
    if is_.is_floating(kind) and is_.is_floating(source):
        return unlike_wider(given, made)
    is_checked = is_.is_integer(source) or is_.is_boolean(source)  # by Arrow
    if is_.is_floating(kind) and not is_checked:
        return unlike_texts(given.cast(pa.large_string()), made)
    is_text = not is_.is_primitive(source) and not is_.is_decimal(source)
    if is_.is_integer(kind) and is_text:
        return unlike_integers(given.cast(pa.large_string()), kind)
    if is_.is_decimal(kind) and is_text:
        return unlike_decimals(given.cast(pa.large_string()), made)
    if is_.is_decimal(kind) and not is_.is_floating(source):
        whole = given.cast(pa.decimal128(MAX_DIGITS, 0)) if is_checked else given
        return unlike_number(whole, made)
    return ""


def as_lists(maps: Values) -> Values:
    """Maps as lists of structs of ``key`` and ``value``, which Arrow can flatten."""
    entry = pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])
    return maps.cast(pa.list_(entry))


def check_never_empty(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> None:
    """Check that some columns have no empty text.

    Raises ``pa.ArrowInvalid``, which names the column.
    """
    for name in names:
        if pc.any(pc.equal(rows.column(name), "")).as_py():
            raise pa.ArrowInvalid(
                f"column {name!r}: an empty text would become NULL, as the table is partitioned by it"
            )
