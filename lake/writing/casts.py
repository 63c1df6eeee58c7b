"""Casts columns to a table's types: a value that its type cannot hold is refused, also if Arrow takes it.

Arrow's parser also knows hexadecimal ones: ``0x1F`` would be 31, and ``0xFFFFFFFFFFFFFFFF`` -1, which nothing
gives back. All others that it knows are decimal, and those are their texts.

Arrow multiplies by a power of ten to get the decimals of a type, and what then takes more than 128 bits is
another number, without a word: 922.56 in a ``decimal(38,38)`` was 0.39. Of texts with more than 38 digits it
drops some, and what has 39 decimals more than a type is 0.

A text is such a number if it is the number rounded to as many digits as the text has: ``0.1``, ``12.50``, and
``0.10000000000000001`` are doubles, 9007199254740993 and ``1e400`` are not. So what is printed with as many
digits is what was given.

To decide that takes microseconds for a text. So nearly all are proven by less, many at a time, and those of a
file need not even be looked at one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_
from numpy.typing import NDArray

_Bools: TypeAlias = NDArray[np.bool_]
_Bytes: TypeAlias = NDArray[np.uint8]
_Doubles: TypeAlias = NDArray[np.float64]
_Places: TypeAlias = NDArray[np.int64]

DIGITS = 15
"""Each text of so many digits is a double, if its exponent is not extreme (C's ``DBL_DIG``)."""
_EXACT = Context(prec=1_500, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
"""Has room for all digits of a double, and for those of a text that it is compared with."""


class _FloatKind(NamedTuple):
    """The numbers of a type."""

    digits: int
    """Decimal digits that each of them keeps, as C's ``DBL_DIG``."""
    least: float
    """The least positive one that keeps them all."""
    integers: float
    """It has all integers of a smaller size."""
    exponent: int
    """Digits of an exponent that may be too large or too small."""
    proven: int
    """Digits of the texts that :func:`_proven` can compare."""


_KINDS = {
    16: _FloatKind(3, 2.0**-14, 2.0**11, 1, 3),
    32: _FloatKind(6, 2.0**-126, 2.0**24, 2, 8),
    64: _FloatKind(DIGITS, 2.0**-1022, 2.0**53, 3, 17),
}
"""By bits of a number."""

_PIECE_ROWS, _PIECE_BYTES = 1 << 13, 1 << 18
"""What is looked at in one go: more would not stay in the processor's cache."""


# -- columns -----------------------------------------------------------------------------------------


def unlike_texts(texts: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> str:
    """Why a number is not the text, ``large_string``, that Arrow has made it of; empty if all are."""
    if isinstance(texts, pa.ChunkedArray):
        parts = zip(texts.chunks, made.chunks, strict=True)
        return next(filter(None, (unlike_texts(some, numbers) for some, numbers in parts)), "")
    left = _doubtful(texts, made)
    for text, number in zip(texts.take(left).to_pylist(), made.take(left).to_pylist(), strict=True):
        if not is_number(text, float(number)):
            return _reason(text, float(number), made.type)
    return ""


def unlike_wider(given: pa.Array | pa.ChunkedArray, made: pa.Array | pa.ChunkedArray) -> str:
    """Why a number is not that of a wider type that it is made of; empty if all are.

    By what is printed: 0.1 is one number as a double, and another one as a float.
    """
    if given.type.bit_width <= made.type.bit_width:
        return ""
    other = pc.not_equal(made.cast(given.type), given)
    given, made = given.filter(other), made.filter(other)
    left = pa.array(~_has_decimals(given.to_numpy(), made.to_numpy().astype(np.float64)))
    return unlike_texts(given.filter(left).cast(pa.large_string()), made.filter(left))


def _has_decimals(given: _Doubles, made: _Doubles) -> _Bools:
    """Which floats are doubles rounded to the decimals of these; of those with few decimals.

    As many decimals are printed as are needed for the same double, and 15 digits give only one.
    """
    have, same = np.zeros((2, len(given)), np.bool_)
    with np.errstate(all="ignore"):
        for power in _POWERS[:9]:
            whole = np.rint(given * power)
            now = (whole / power == given) & (np.abs(whole) < 1e15) & ~have
            have |= now
            same |= now & (np.abs(made * power - whole) <= 0.5)
            if have.all():
                break
    return same


def has_large(numbers: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a number is so large that it may be another one than an integer that it is made of."""
    return bool(pc.any(pc.greater_equal(pc.abs(numbers), _KINDS[numbers.type.bit_width].integers)).as_py())


def _doubtful(texts: pa.Array, made: pa.Array) -> pa.Array:
    """The places of the texts that may be others than their numbers."""
    pieces = range(0, len(texts), _PIECE_ROWS)
    proven = [_proven(texts.slice(at, _PIECE_ROWS), made.slice(at, _PIECE_ROWS)) for at in pieces]
    places = pa.array(np.flatnonzero(~np.concatenate([np.empty(0, np.bool_), *proven])))
    # Each step leaves fewer, and costs more for each of them.
    texts, made = texts.take(places), made.take(places)
    # A large float is printed with zeros in place of its last digits.
    large = pc.greater_equal(pc.abs(made), _KINDS[made.type.bit_width].integers)
    other = pc.or_(large, pc.not_equal(made.cast(pa.large_string()), texts))
    texts, places = texts.filter(other), places.filter(other)
    return places.filter(pc.match_substring_regex(texts, "[1-9]"))  # others are zero, infinite or no number


_POWERS = np.array([10.0**places for places in range(20)])


def _proven(texts: pa.Array, made: pa.Array) -> _Bools:
    """Which numbers are sure to be their texts: these have as few digits as all numbers keep, or are the
    number rounded to their digits.

    For the latter, the number times a power of ten is compared with the digits of the text as an integer. The
    last two digits of it are enough: the number is next to the text, so both differ by less than 99, if a
    double has at most 17 digits, and a float 8. A text as short as this with an exponent has as few digits as
    all numbers keep, whatever is found here.
    """
    kind, numbers = _KINDS[made.type.bit_width], made.cast(pa.float64())
    signed = numbers.to_numpy(zero_copy_only=False)
    size = np.abs(signed)
    usual = (size >= kind.least) & (size < np.inf)
    _, offsets, characters = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset :][: len(texts) + 1]
    length = ends[1:] - ends[:-1]
    short = length <= kind.digits
    if short.all():
        return np.asarray(usual & short)
    most: Any = kind.proven
    if made.type.bit_width < 64:  # a float may be the double next to the text, too
        double = pc.equal(texts.cast(pa.float64()), numbers).to_numpy(zero_copy_only=False)
        most = np.where(double, _KINDS[64].proven, most)
    point = pc.find_substring(texts, ".").fill_null(-1).to_numpy()
    # A sign and the zero before a point are no digits.
    known = (point >= 0) & (length - (signed < 0) - (size < 1) <= most + 1)
    signs = np.frombuffer(characters, np.uint8)
    last, before = (signs.take(ends[1:] - back, mode="wrap") - np.uint8(ord("0")) for back in (1, 2))
    known &= (last < 10) & (before < 10)
    with np.errstate(all="ignore"):
        product, error = _product(size, _POWERS.take(length - 1 - point, mode="clip"))
        whole = np.rint(product)
        apart = whole.astype(np.int64) - (10 * before + last)
        apart -= (apart + 50) // 100 * 100
        fraction = product - whole
        rest = fraction + error
        distance = np.abs(rest + apart)
    rounded = (distance < 0.5) | ((distance == 0.5) & (rest - fraction == error))
    return np.asarray(usual & (short | (known & rounded)))


def _product(left: _Doubles, other: _Doubles) -> tuple[_Doubles, _Doubles]:
    """A product, and how much is missing from it (T. J. Dekker: A floating-point technique, 1971)."""
    product = left * other
    (high, low), (other_high, other_low) = _halves(left), _halves(other)
    missing = high * other_high - product + high * other_low + low * other_high + low * other_low
    return product, missing


def _halves(numbers: _Doubles) -> tuple[_Doubles, _Doubles]:
    shifted = numbers * (2.0**27 + 1)
    high = shifted - (shifted - numbers)
    return high, numbers - high


# -- texts of whole files ----------------------------------------------------------------------------


def may_round(text: bytes, bits: int, quote: bytes) -> bool:
    """Whether lines may have a number that is none of so many bits. Integers are left out: of these,
    :func:`has_large` is asked.

    Parameters
    ----------
    quote:
        A sign that may be within a number.
    """
    return any(_Signs(piece, _KINDS[bits], quote).may_round for _, piece in _pieces(text))


def doubtful_lines(text: bytes, *, integers: bool) -> Iterator[bytes]:
    """The lines of JSON that may have a number which is no double.

    Parameters
    ----------
    integers:
        Whether to look at integers, too.
    """
    for first, piece in _pieces(text):
        signs, end = _Signs(piece, _KINDS[64]), 0
        if integers or signs.may_round:
            for position in signs.doubtful(integers=integers).tolist():
                if position + first >= end:
                    start = text.rfind(b"\n", 0, position + first) + 1
                    end = text.find(b"\n", position + first) + 1 or len(text)
                    yield text[start:end]


def _pieces(text: bytes) -> Iterator[tuple[int, _Bytes]]:
    """Whole lines, and where they begin."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE_BYTES) + 1 or len(text)
        yield start, np.frombuffer(text, np.uint8, end - start, start)
        start = end


class _Signs:
    """The signs of a text, as far as they are parts of numbers.

    A number with an exponent of two digits is a double if it has at most 15 digits: none is lost, and it is
    neither too large nor too small.
    """

    def __init__(self, text: _Bytes, kind: _FloatKind, quote: bytes = b"") -> None:
        self._text, self._kind, self._quote = text, kind, quote
        self._digits = text - np.uint8(ord("0")) < 10
        self._parts = self._digits | (text == ord("."))
        for sign in quote:
            self._parts |= text == sign
        self._exponents = (text | np.uint8(32)) == ord("e")
        self._exponents[:1] = False
        self._exponents[1:] &= self._parts[:-1]

    @property
    def may_round(self) -> bool:
        """Whether there is a number with a fraction or an exponent that may be no number of this kind."""
        size = self._kind.digits + 1
        runs = _runs(self._parts, size)
        longer = _runs(runs, 2)
        if longer.any() and (longer > _runs(self._digits, size + 1)).any():  # not of digits alone
            return True
        return bool(self._exponents.any() and len(self._raised(runs)))

    def _raised(self, runs: _Bools) -> _Places:
        """Exponents of numbers that have many digits, or may be too large or too small."""
        size, last = self._kind.digits + 1, len(self._text) - 1
        places = np.flatnonzero(self._exponents)
        long = runs.take(places - size, mode="clip") & (places >= size) if len(runs) else False
        after = places + 1
        for _ in range(2):  # a sign, and a quote before or after it
            after += np.isin(self._text[np.minimum(after, last)], [*b"+-", *self._quote])
        digits = [self._parts[np.minimum(after + at, last)] for at in range(self._kind.exponent)]
        return np.asarray(places[np.logical_and.reduce(digits) | long])

    def doubtful(self, *, integers: bool) -> _Places:
        """Places of numbers of JSON that may be no doubles."""
        size = self._kind.digits + 1
        runs = _runs(self._parts, size)
        edges = np.flatnonzero(np.diff(runs, prepend=False, append=False))
        starts, ends = edges[::2], edges[1::2] + (size - 1)
        texts = _between(self._text, starts, ends)
        if not integers:
            points = pc.greater_equal(pc.find_substring(texts, "."), 0)
            texts, starts = texts.filter(points), starts[points.to_numpy(zero_copy_only=False)]
        try:
            numbers = texts.cast(pa.float64())
        except pa.ArrowInvalid:  # several points
            kept = pc.match_substring_regex(texts, r"^[0-9]+(\.[0-9]+)?$")
            texts, starts = texts.filter(kept), starts[kept.to_numpy(zero_copy_only=False)]
            numbers = texts.cast(pa.float64())
        places = starts[_doubtful(texts, numbers)]
        if self._exponents.any():
            begins = np.flatnonzero(np.diff(self._parts, prepend=False) & self._parts)
            begins = begins[np.searchsorted(begins, self._raised(runs)) - 1]
            before = begins - 1 - (self._text[begins - 1] == ord("-"))
            places = np.union1d(places, begins[np.isin(self._text[before], [*_BEFORE_NUMBER])])
        return np.asarray(places)


_BEFORE_NUMBER = b":,[ \t\r\n"
"""Signs of JSON that a number follows."""


def _runs(signs: _Bools, size: int) -> _Bools:
    """Where so many signs begin that are all set."""
    length = 1
    while length < size:
        step = min(length, size - length)
        signs, length = signs[step:] & signs[:-step], length + step
    return signs


def _between(text: _Bytes, starts: _Places, ends: _Places) -> pa.Array:
    """Parts of a text that do not touch each other."""
    bounds = np.stack([starts, ends], axis=1).ravel()
    both = pa.LargeStringArray.from_buffers(max(0, len(bounds) - 1), pa.py_buffer(bounds), pa.py_buffer(text))
    return both.take(pa.array(np.arange(0, len(both), 2)))


# -- single texts ------------------------------------------------------------------------------------


def unlike_double(text: str) -> str:
    """Why the text of a number is no double; empty if it is one."""
    number = float(text)
    return "" if is_number(text, number) else _reason(text, number, pa.float64())


def _reason(text: str, number: float, kind: pa.DataType) -> str:
    text = text.strip()
    if math.isinf(number):
        return f"{text} is too large for {kind}"
    nearest = f"{number:.0f}" if number.is_integer() else pa.scalar(number, kind).cast(pa.string()).as_py()
    return f"{text} is no {kind}: the nearest one is {nearest}"


def is_number(text: str, number: float) -> bool:
    """Whether a number, rounded to the digits of a text, is what the text says."""
    _, _, fraction = text.partition(".")
    if repr(number) == text or f"{number:.{len(fraction)}f}" == text:
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
