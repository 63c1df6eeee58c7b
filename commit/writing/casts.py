"""Casts columns to a table's types: a value that its type cannot hold is refused, also if Arrow takes it.

Floating-point numbers need a rule of their own. A text is such a number if it is the number rounded to as
many digits as the text has: ``0.1``, ``12.50``, and ``0.10000000000000001`` are doubles, 9007199254740993 and
``1e400`` are not. So what is printed with as many digits is what was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

Values = TypeVar("Values", pa.Array, pa.ChunkedArray)


class InvalidValue(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A value that is refused. The text says which one, and why: Arrow's own errors do not always."""


_DIGITS = {16: 3, 32: 6, 64: 15}
"""Bits of a number -> decimal digits that each of them keeps, as C's ``DBL_DIG``."""
_LEAST = {16: 2.0**-14, 32: 2.0**-126, 64: 2.0**-1022}
"""Bits of a number -> the least positive one that keeps them all."""
_EXACT = Context(prec=1_500, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
"""Has room for all digits of a double, and for those of a text that it is compared with."""


def checked_cast(values: Values, target: pa.DataType) -> Values:
    """``values`` as ``target``; raises ``pa.ArrowInvalid`` if one does not fit.

    Arrow makes finite numbers infinite that are too large for a float, and rounds those with more digits than
    it has, and says nothing.
    """
    result = values.cast(target)
    if not values.type.equals(target):
        check_floats(values, result)
    return result


def check_floats(given: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> None:
    """Check that floating-point numbers are those that were given, as numbers or texts; also within nested
    values.

    Raises ``pa.ArrowInvalid``.
    """
    kind = made.type
    if is_.is_null(given.type) or kind.equals(given.type):
        return
    if is_.is_struct(kind):
        for name in (field.name for field in kind if given.type.get_field_index(field.name) >= 0):
            check_floats(pc.struct_field(given, name), pc.struct_field(made, name))
    elif is_.is_map(kind):
        check_floats(pc.list_flatten(as_lists(given)), pc.list_flatten(as_lists(made)))
    elif is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        check_floats(pc.list_flatten(given), pc.list_flatten(made))
    elif is_.is_floating(kind):
        if is_.is_floating(given.type):
            _check_narrower(given, made)
        elif not is_.is_integer(given.type) and not is_.is_boolean(given.type):  # Arrow checks these
            _check_texts(given.cast(pa.large_string()), made)


def as_lists(maps: Values) -> Values:
    """Maps as lists of structs of ``key`` and ``value``, which Arrow can flatten."""
    entry = pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])
    return maps.cast(pa.list_(entry))


def _check_narrower(given: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> None:
    """By what is printed: 0.1 is one number as a double, and another one as a float."""
    if given.type.bit_width > made.type.bit_width:
        other = pc.not_equal(made.cast(given.type), given)
        _check_texts(given.filter(other).cast(pa.large_string()), made.filter(other))


def _check_texts(texts: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> None:
    bits, size = made.type.bit_width, pc.abs(made)
    usual = pc.and_(pc.greater_equal(size, _LEAST[bits]), pc.is_finite(made))
    short = pc.less_equal(pc.binary_length(texts), _DIGITS[bits])
    # Each step leaves fewer, and costs more for each of them.
    doubtful = pc.invert(pc.and_(usual, short))
    texts, made = texts.filter(doubtful), made.filter(doubtful)
    doubtful = pc.not_equal(made.cast(pa.large_string()), texts)
    texts, made = texts.filter(doubtful), made.filter(doubtful)
    doubtful = pc.match_substring_regex(texts, "[1-9]")  # others are zero, infinite or no number
    texts, made = texts.filter(doubtful), made.filter(doubtful)
    for text, number in zip(texts.to_pylist(), made.to_pylist(), strict=True):
        if not is_number(text, float(number)):
            raise InvalidValue(_reason(text, float(number), made.type))


def check_number(text: str) -> None:
    """Raises :class:`InvalidValue` for the text of a number that is no double."""
    number = float(text)
    if not is_number(text, number):
        raise InvalidValue(_reason(text, number, pa.float64()))


def _reason(text: str, number: float, kind: pa.DataType) -> str:
    text = text.strip()
    if math.isinf(number):
        return f"{text} is too large for {kind}"
    nearest = f"{number:.0f}" if number.is_integer() else pa.scalar(number, kind).cast(pa.string()).as_py()
    return f"{text} is no {kind}: the nearest one is {nearest}"


def is_number(text: str, number: float) -> bool:
    """Whether a number, rounded to the digits of a text, is what the text says."""
    _, _, fraction = text.partition(".")
    if fraction.isdecimal() and f"{number:.{len(fraction)}f}" == text:
        return True  # of what follows, the usual case, and several times faster
    try:
        given = Decimal(text)
    except ArithmeticError:  # an exponent beyond all limits
        return False
    if not given.is_finite() or not math.isfinite(number):
        return given.is_finite() == math.isfinite(number)
    if not text.strip().lstrip("+-").isdecimal():
        given = given.normalize(_EXACT)  # 0.10 has no more digits than 0.1; those of an integer all count
    exponent = given.as_tuple().exponent
    difference = _EXACT.subtract(Decimal(number), given)
    return _EXACT.multiply(abs(difference), Decimal(2)) <= Decimal((0, (1,), int(exponent)))


def check_never_empty(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> None:
    """Check that some columns have no empty text.

    Raises ``pa.ArrowInvalid``, which names the column.
    """
    for name in names:
        if pc.any(pc.equal(rows.column(name), "")).as_py():
            raise pa.ArrowInvalid(
                f"column {name!r}: an empty text would become NULL, as the table is partitioned by it"
            )
