"""Guesses of types from texts.

Conservative where a wrong one would lose data: numbers with leading zeros (post codes) and integers with more
digits than a float holds stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

_NO_PLAIN_NUMBER = r"^\s*[+-]?(0[0-9]|[0-9]{16,}\s*$)"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?")
_INSTANT = re.compile(_TIMESTAMP.pattern + r"(Z|[+-]\d\d:?\d\d)")


def no_bytes(guessed: pa.DataType) -> pa.DataType:
    """Text that is not UTF-8 does not change the type: its rows are bad."""
    return pa.large_string() if is_.is_binary(guessed) or is_.is_large_binary(guessed) else guessed


def has_codes(texts: pa.ChunkedArray, guessed: pa.DataType) -> bool:
    """Whether some text looks like a number but would lose data as one."""
    odd = texts.filter(pc.match_substring_regex(texts, _NO_PLAIN_NUMBER))
    if is_.is_integer(guessed):
        odd = odd.filter(pc.match_substring_regex(odd, r"^\s*[+-]?0"))
    return len(odd) > 0


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The common type of two guesses; text if there is none."""
    if one.equals(other) or is_.is_null(other):
        return one
    if is_.is_null(one):
        return other
    if is_int_or_float(one) and is_int_or_float(other):
        return pa.float64()
    moments = (is_.is_timestamp, is_.is_date)
    if any(test(one) for test in moments) and any(test(other) for test in moments):
        zoned = any(is_.is_timestamp(dtype) and dtype.tz for dtype in (one, other))
        return pa.timestamp("us", tz="UTC" if zoned else None)
    if is_.is_time(one) and is_.is_time(other):
        return pa.time64("us")
    return pa.large_string()


def is_int_or_float(dtype: pa.DataType) -> bool:
    """Whether it is a number that Arrow guesses from text."""
    return bool(is_.is_integer(dtype) or is_.is_floating(dtype))


def type_of_texts(values: Iterable[str]) -> pa.DataType:
    """Of strings of JSON: dates and times, if all of them are; otherwise text."""
    values = list(values)
    for pattern, dtype in (
        (_DATE, pa.date32()),
        (_TIMESTAMP, pa.timestamp("us")),
        (_INSTANT, pa.timestamp("us", tz="UTC")),
    ):
        if all(pattern.fullmatch(value) for value in values):
            return dtype
    return pa.large_string()
