"""Decimals that are what they are made of.

Arrow multiplies by a power of ten to get the decimals of a type, and what then takes more than 128 bits is
another number, without a word: 922.56 in a ``decimal(38,38)`` was 0.39. Of texts with more than 38 digits it
drops some, and what has 39 decimals more than a type is 0.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

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
