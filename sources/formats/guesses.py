"""What texts of a sample mean: guesses of their types, and signs that they were misinterpreted.

Guesses are conservative where a wrong one would lose data. A text is a number only if its form is a plain
one: a minus, digits without leading zeros, a fraction. So post codes, phone numbers with a plus and
hexadecimal numbers stay text, and so do integers of 16 digits and more among fractions. Signs are sentences
for people.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.conversion import convert

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


def common_type(first: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The common type of two guesses; text if there is none."""
    if first.equals(other) or is_.is_null(other):
        return first
    if is_.is_null(first):
        return other
    if is_int_or_float(first) and is_int_or_float(other):
        return pa.float64()
    moments = (is_.is_timestamp, is_.is_date)
    if any(test(first) for test in moments) and any(test(other) for test in moments):
        zoned = any(is_.is_timestamp(dtype) and dtype.tz for dtype in (first, other))
        return pa.timestamp("us", tz="UTC" if zoned else None)
    if is_.is_time(first) and is_.is_time(other):
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


MAX_SUSPICIONS = 20
"""Most sentences for one sample: there may be very many suspicious columns."""
MAX_QUOTED = 60
"""Characters of a value quoted in a sentence."""

_OTHER_DELIMITERS = ";\t|,"
_NO_VALUE = ("NA", "N/A", "n/a", "NaN", "nan", "None", "none", "NIL", "nil", "-", "--", "?", ".")
"""Common texts for missing values in columns of numbers and times."""
_VALUE = re.compile(r"[+-]?\d+([.,]\d+)?|\d{4}-\d\d-\d\d.*")
_DECIMAL_COMMA = r"^\s*[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+\s*$"


def suspicions(
    names: Sequence[str],
    texts: Mapping[str, pa.Array],
    delimiter: str,
    readable: Iterable[str],
    reasons: Mapping[str, str],
) -> list[str]:
    """The suspicions of CSV.

    Parameters
    ----------
    names:
        Columns as in the header.
    texts:
        Columns guessed to be text -> their values as text, without NULL.
    readable:
        Which of these would be numbers or times if :func:`no_values` meant NULL.
    reasons:
        Columns that look like numbers or times -> why they are text nevertheless.
    """
    return _most([*_of_names(names, delimiter), *_of_values(names, texts, set(readable), reasons)])


def suspicions_of_strings(
    texts: Mapping[str, pa.Array], readable: Iterable[str], reasons: Mapping[str, str]
) -> list[str]:
    """As :func:`suspicions`, of columns of JSON that are ``readable`` or have ``reasons``."""
    return _most(list(_of_columns(texts, set(readable), reasons, "write null for it")))


def _most(names: list[str]) -> list[str]:
    more = len(names) - MAX_SUSPICIONS
    return names if more <= 0 else [*names[:MAX_SUSPICIONS], f"and {more} more of this kind"]


def no_values() -> list[str]:
    """Texts that may mean NULL without being declared."""
    return list(_NO_VALUE)


def foreign_encoding(text: bytes) -> str:
    """The probable encoding of a text that is not UTF-8, with an example; empty if it is UTF-8.

    A text with only one such line, or with some non-ASCII lines in UTF-8, is UTF-8 with bad rows.
    """
    try:
        text.decode()
        return ""
    except UnicodeDecodeError as error:
        at = error.start
    strange = [line for line in text.splitlines() if not line.isascii()]
    if len(strange) == 1 or any(map(_is_utf_8, strange)):
        return ""
    begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
    line = text[begin : end if end >= 0 else len(text)]
    word = next((part for part in re.split(rb"[\s,;|]", line) if not part.isascii()), line)
    return f"Latin-1 or Windows-1252 ({_quoted(word.decode('latin-1'))})"


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_names(names: Sequence[str], delimiter: str) -> Iterator[str]:
    if len(names) == 1:
        other = next((sign for sign in _OTHER_DELIMITERS if sign != delimiter and sign in names[0]), None)
        if other is not None:
            yield (
                f"there is one column, {_quoted(names[0])}, and its name contains {other!r}: "
                f"if that separates columns, give --delimiter {shlex.quote(other)}"
            )
    like_values = [name for name in names if _VALUE.fullmatch(name.strip())]
    if like_values:
        yield (
            f"the header names a column {_quoted(like_values[0])}, which looks like a value: if the files "
            "have no header, name the columns with --header"
        )


def _of_values(
    names: Sequence[str],
    texts: Mapping[str, pa.Array],
    readable: set[str],
    reasons: Mapping[str, str],
) -> list[str]:
    all_text = len(texts) == len(names)
    if not any(len(values) for values in texts.values()):
        nothing = "the sample has no row, so every column became text: give --schema, or ingest rows first"
        return [nothing] if texts and all_text else []
    problems = list(_of_columns(texts, readable, reasons, "name it with --null-value"))
    if all_text and len(names) > 1 and not problems:
        problems.append("every column became text: is the first line a header, and is the delimiter right?")
    return problems


def _of_columns(
    texts: Mapping[str, pa.Array], readable: set[str], reasons: Mapping[str, str], advice: str
) -> Iterator[str]:
    for name, values in texts.items():
        became = f"column {_quoted(name)} became text"
        if not len(values):
            continue
        if name in readable:
            sign = values.filter(pc.is_in(values, pa.array(_NO_VALUE, values.type)))[0].as_py()
            yield f"{became} because of {_quoted(sign)}: if that means a missing value, {advice}"
        elif name in reasons:
            yield f"{became}: {_shortened(reasons[name])}"
        elif pc.all(pc.match_substring_regex(values, _DECIMAL_COMMA)).as_py():
            example = _quoted(values[0].as_py())
            yield f"{became} because its numbers have a decimal comma ({example}): give --decimal-point ,"


def _quoted(text: str) -> str:
    return repr(_shortened(text, MAX_QUOTED))


def _shortened(text: str, limit: int = 4 * MAX_QUOTED) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
