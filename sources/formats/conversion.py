"""Values of a source in the types of a table, and what texts of a sample mean.

Guesses are conservative where a wrong one would lose data. A text is a number only if its form is a plain
one: a minus, digits without leading zeros, a fraction. So post codes, phone numbers with a plus and
hexadecimal numbers stay text, and so do integers of 16 digits and more among fractions. Signs that texts were
misinterpreted are sentences for people.

There is one rule: a conversion gives the same value in another type, or it is an error. Nothing is silently
rounded, truncated or moved to another time zone. One case is a convention: a time without a zone is read as
UTC for a ``timestamptz`` column, if no other zone is given.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.errors import JobFailed
from distop.lake.writing.casts import InvalidValue, Values, as_lists, checked_cast
from distop.sources.formats.bad_rows import Unconvertible, bad_value
from distop.sources.formats.types import UTC, family, is_uuid, times_of


def convert(values: Values, target: pa.DataType, column: str, zone: str = UTC) -> Values:
    """``values`` as ``target``, also within nested ones: see :func:`convertible`.

    Parameters
    ----------
    zone:
        Of texts without one that become points in time.

    Raises
    ------
    Unconvertible
        A value has no equal in ``target``; names the column, and the field within it.
    JobFailed
        No value could have one; :func:`convertible` says so in advance.
    """
    source = values.type
    if source.equals(target):
        return values
    if is_.is_nested(target) and family(source) == family(target):
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array(
                [_nested_values(chunk, target, column) for chunk in values.chunks], target
            )
        return _nested_values(values, target, column)
    if is_uuid(source):
        values, source = values.cast(source.storage_type), source.storage_type
    try:
        return _converted(values, target, zone)
    except InvalidValue as error:
        raise Unconvertible(f"column {column!r}: {error}") from None
    except pa.ArrowInvalid as error:
        raise _refusal(str(error), values, target, column, zone) from None
    except pa.ArrowNotImplementedError as error:
        raise JobFailed(f"column {column!r}: {source} cannot become {target}: {error}") from error


def _converted(values: Values, target: pa.DataType, zone: str) -> Values:
    source = values.type
    if family(source) == "text" and (is_.is_timestamp(target) or is_.is_time(target)):
        return times_of(values, target, zone)
    if is_.is_integer(source) and is_.is_decimal(target):
        # Arrow requires room for every value of the type, not only for the existing ones.
        values = values.cast(pa.decimal128(38, 0))
    return checked_cast(values, target)


def _refusal(message: str, values: Values, target: pa.DataType, column: str, zone: str) -> Unconvertible:
    """Arrow's error about a value, in the words of its parser of CSV files. Of many it does not say which."""
    if _UNPARSABLE.search(message):
        reason = _UNPARSABLE.sub(r"invalid value \1 for ", message)
        return Unconvertible(f"column {column!r}: {reason}")
    return bad_value(
        column, values, lambda some: _converted(some, target, zone), f"invalid value {{}} for {target}"
    )


def _nested_values(values: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    """Structs, lists or maps, converted from within: what a NULL hides is not looked at."""
    if is_.is_struct(target):
        given = {field.name: part for field, part in zip(values.type, values.flatten(), strict=True)}
        parts = []
        for field in target:
            part = given.get(field.name)
            part = pa.nulls(len(values), field.type) if part is None else part
            parts.append(_field_values(part, field, f"{column}.{field.name}", values.null_count))
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=values.is_null())
    if is_.is_map(target):
        offsets, entries = _elements(as_lists(values))
        keys, items = entries.flatten()
        keys = _field_values(keys, target.key_field, f"{column}.key")
        items = _field_values(items, target.item_field, f"{column}.value")
        return pa.MapArray.from_arrays(offsets.cast(pa.int32()), keys, items, type=target)
    offsets, elements = _elements(values)
    elements = _field_values(elements, target.value_field, f"{column}.element")
    if is_.is_large_list(target):
        return pa.LargeListArray.from_arrays(offsets, elements, type=target)
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), elements, type=target)


def _field_values(values: pa.Array, field: pa.Field, path: str, hidden: int = 0) -> pa.Array:
    """The values of a nested field; ``hidden`` of them are within a NULL."""
    made = convert(values, field.type, path)
    if not field.nullable and made.null_count > hidden:
        raise Unconvertible(f"column {path!r} is required and has no value")
    return made


def _elements(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The elements of lists of any kind, and where each list begins: NULL if it is NULL."""
    exists = lists.is_valid()
    sizes = pc.if_else(exists, pc.list_value_length(lists).cast(pa.int64()), 0)
    bounds = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    begins = pa.concat_arrays([exists, pa.array([True])])
    return pc.if_else(begins, bounds, pa.scalar(None, pa.int64())), lists.flatten()


def from_epoch(numbers: pa.ChunkedArray, unit: str, target: pa.DataType, column: str) -> pa.ChunkedArray:
    """Numbers that count from the beginning of 1970, in UTC, as dates or times.

    Parameters
    ----------
    unit:
        ``days``, for dates; ``s``, ``ms``, ``us`` or ``ns``. Of a time of day they count from its beginning.

    Raises
    ------
    Unconvertible
        The number is too large, or has a fraction of a microsecond.
    """
    try:
        if unit == "days":
            return numbers.cast(pa.int32()).cast(target)
        moments = numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us"))
        return moments.cast(pa.int64()).cast(target) if is_.is_time(target) else moments.cast(target)
    except pa.ArrowInvalid as error:
        raise Unconvertible(f"column {column!r}: {error}") from None


def check_values(rows: pa.Table) -> None:
    """Refuse values that Arrow has and readers of a table do not, also nested ones: texts that are not UTF-8,
    dates and times outside of the years 1 to 9999, times of day outside of a day.

    Raises
    ------
    Unconvertible
        Names the column.
    """
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for values in column.chunks:
            _check(values, name)


def _check(values: pa.Array, column: str) -> None:
    kind = values.type
    if is_.is_map(kind):
        first, end = (values.offsets[index].as_py() for index in (0, -1))
        _check(values.keys.slice(first, end - first), f"{column}.key")
        _check(values.items.slice(first, end - first), f"{column}.value")
    elif is_.is_struct(kind):
        for field, part in zip(kind, values.flatten(), strict=True):
            _check(part, f"{column}.{field.name}")
    elif is_.is_nested(kind):
        # Validating it as a whole would also validate what is outside of this slice of it.
        _check(values.flatten(), f"{column}.element")
    else:
        try:
            _check_flat(values)
        except InvalidValue as error:
            raise bad_value(column, values, _check_flat, str(error)) from None


def _check_flat(values: pa.Array) -> None:
    """Raises :class:`InvalidValue` with ``{}`` for the value."""
    kind = values.type
    if family(kind) == "text":
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise InvalidValue(NOT_UTF_8) from None
    for is_kind, (least, greatest), where in _RANGES:
        if is_kind(kind) and len(values):
            extremes = pc.min_max(values.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
            if extremes["min"] is not None and not least <= extremes["min"] <= extremes["max"] <= greatest:
                raise InvalidValue(f"{{}} is outside of {where}")


def _is_micros(kind: pa.DataType) -> bool:
    return bool(is_.is_timestamp(kind) and kind.unit == "us")


NOT_UTF_8 = "{} is not UTF-8"
"""Why a text is refused; ``{}`` stands for it."""
_DAY_US = 86_400_000_000
_DAYS = -719_162, 2_932_896
_YEARS = "the years 1 to 9999"
_RANGES: tuple[tuple[Callable[[pa.DataType], bool], tuple[int, int], str], ...] = (
    (is_.is_date32, _DAYS, _YEARS),
    (_is_micros, (_DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1), _YEARS),
    (pa.time64("us").equals, (0, _DAY_US - 1), "a day"),
)
"""The values that readers have, in the units of tables (days and microseconds), and what that is."""

_UNPARSABLE = re.compile(r"Failed to parse string: ('.*') as a scalar of type ", re.DOTALL)

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
