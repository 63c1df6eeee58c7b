"""Guesses of types from texts.

Conservative where a wrong one would lose data. A text is a number only if its form is a plain one: a minus,
digits without leading zeros, a fraction. So post codes, phone numbers with a plus and hexadecimal numbers
stay text, and so do integers of 16 digits and more among fractions.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.types import convert

_INTEGER = "^(0|-?[1-9][0-9]*)$"
"""There is no integer -0."""
_NUMBER = r"^-?((0|[1-9][0-9]{0,14})(\.[0-9]+)?|[0-9](\.[0-9]+[eE][+-]?|[eE][+-])[0-9]{1,3})$"
"""An exponent follows one digit, and has a sign or follows a fraction, as programs write numbers; ``32E0134``
and ``1E5`` may be codes."""
_EXPONENT = r"^-?[0-9](\.[0-9]+)?e(0|[1-9][0-9]{0,2})$"
"""Without a sign, if all of a column have exponents."""

_DATE = r"^\d{4}-\d\d-\d\d$"
_TIMESTAMP = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?$"
_INSTANT = _TIMESTAMP.removesuffix("$") + r"(Z|[+-]\d\d:?\d\d)$"


def no_bytes(guessed: pa.DataType) -> pa.DataType:
    """Text that is not UTF-8 does not change the type: its rows are bad."""
    return pa.large_string() if is_.is_binary(guessed) or is_.is_large_binary(guessed) else guessed


def first_code(texts: pa.Array, guessed: pa.DataType) -> str | None:
    """The first text that has not the form of such numbers."""
    form = _INTEGER if is_.is_integer(guessed) else _NUMBER
    others = texts.filter(pc.invert(pc.match_substring_regex(texts, form)))
    if not len(others):
        return None
    if is_.is_floating(guessed) and _all_match(others, _EXPONENT) and _all_match(texts, "[eE]"):
        return None
    code: str = others[0].as_py()
    return code


def _all_match(texts: pa.Array, form: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, form)).as_py())


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


def type_of_texts(values: Iterable[str]) -> tuple[pa.DataType, str]:
    """The type of strings of JSON: of dates or times, if all of them are; otherwise text. Of strings that
    have the form of dates or times, also why they are none."""
    texts = pa.array(values, pa.large_string())
    for pattern, dtype in (
        (_DATE, pa.date32()),
        (_TIMESTAMP, pa.timestamp("us")),
        (_INSTANT, pa.timestamp("us", tz="UTC")),
    ):
        if _all_match(texts, pattern):
            try:
                convert(texts, dtype, "")
            except Unconvertible as error:
                return pa.large_string(), str(error).removeprefix("column '': ")
            return dtype, ""
    return pa.large_string(), ""
