"""Values of a source in the types of a table.

There is one rule: a conversion gives the same value in another type, or it is an error. Nothing is silently
rounded, truncated or moved to another time zone. One case is a convention: a time without a zone is read as
UTC for a ``timestamptz`` column, if no other zone is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.errors import JobFailed
from distop.lake.writing.casts import InvalidValue, Values, as_lists, checked_cast
from distop.sources.formats.bad_rows import Unconvertible, bad_value
from distop.sources.formats.times import UTC, times_of
from distop.sources.formats.types import family, is_uuid


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
