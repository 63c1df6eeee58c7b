"""Types of columns: what a source's types become in a table, and which conversions are lossless.

Texts as dates and times: those of ISO-8601, or of a format that is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.lake.layout.properties import MAX_NESTING
from distop.lake.writing.casts import InvalidValue, Values, with_room

UTC = "UTC"
_ZEROS = r"(\.[0-9]{6})0+($|[^0-9])"
"""A fraction of a second with more than six digits, whose others are 0."""

_ZONED = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_MONTHS = [
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
]
_HOUR_OF_12 = "0?[1-9]|1[0-2]"
_DIRECTIVES = {
    "Y": ("Y", "[0-9]{4}"),
    "y": ("y", "[0-9]{2}"),
    "m": ("m", ""),
    "b": ("b", f"(?i:{'|'.join(name[:3] for name in _MONTHS)})"),
    "B": ("b", f"(?i:{'|'.join(_MONTHS)})"),
    "d": ("d", ""),
    "H": ("H", ""),
    "I": ("I", _HOUR_OF_12),
    "M": ("M", ""),
    "S": ("S", ""),
    "f": ("f", "[0-9]{1,9}"),
    "p": ("p", "(?i:am|pm)"),
    "z": ("z", "Z|[+-][0-9]{2}:?[0-9]{2}"),
}
"""Letter -> the part that it is, and its texts; those of ``""`` are one or two digits."""

_NEEDS = {"p": "I", "I": "p", "f": "S", "S": "M", "M": "HI", "z": "HI"}
"""A part of a time -> parts: it has a meaning only with one of them."""


def times_of(texts: Values, target: pa.DataType, zone: str = UTC) -> Values:
    """Texts as times of day, or as timestamps; without a zone they are in ``zone``, if ``target`` has one."""
    read = _times_of_day if is_.is_time(target) else _instants if target.tz else _moments
    try:
        return read(texts, target, zone)
    except pa.ArrowInvalid:
        pass
    try:
        return read(pc.replace_substring_regex(texts, _ZEROS, r"\1\2"), target, zone)
    except pa.ArrowInvalid as error:
        if re.search(r"\.[0-9]{7}", str(error)):
            raise pa.ArrowInvalid(f"{error}: more than six digits of a second") from None
        raise


def _moments(texts: Values, target: pa.DataType, _: str) -> Values:
    return texts.cast(target)


def _instants(texts: Values, target: pa.DataType, zone: str) -> Values:
    """With a zone, without one, or some of each."""
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        pass
    local = pa.timestamp(target.unit)
    try:
        return _in_zone(texts.cast(local), target, zone)
    except pa.ArrowInvalid:
        zoned = pc.match_substring_regex(texts, _ZONED)
    nothing = pa.scalar(None, texts.type)
    with_zone = pc.if_else(zoned, texts, nothing).cast(target)
    without_zone = _in_zone(pc.if_else(zoned, nothing, texts).cast(local), target, zone)
    return pc.coalesce(with_zone, without_zone)


def _in_zone(moments: Values, target: pa.DataType, zone: str) -> Values:
    if zone == UTC:
        return moments.cast(target)  # needs no database of time zones
    try:
        return pc.assume_timezone(moments, zone, ambiguous="raise", nonexistent="raise").cast(target)
    except pa.ArrowInvalid as error:
        first, _, _ = str(error).partition("\n")
        raise InvalidValue(first.removesuffix(" between").removesuffix(".  It could be")) from None


def check_zone(zone: str) -> None:
    """Raises ``pa.ArrowInvalid`` for a time zone that is not known here."""
    _in_zone(pa.array([0], pa.timestamp("us")), pa.timestamp("us", UTC), zone)


def _times_of_day(texts: Values, target: pa.DataType, _: str) -> Values:
    """Arrow cannot cast text to a time of day, but to a timestamp."""
    day, nothing = (pa.scalar(text, pa.large_string()) for text in ("1970-01-01 ", ""))
    moments = pc.binary_join_element_wise(day, texts.cast(pa.large_string()), nothing)
    try:
        return moments.cast(pa.timestamp("us")).cast(target)
    except pa.ArrowInvalid as error:
        reason = str(error).replace("'1970-01-01 ", "'").replace("type timestamp[us]", f"type {target}")
        raise pa.ArrowInvalid(reason) from None


class TimeFormat:
    """A format of dates or of timestamps, with the letters of Python's ``strptime``.

    Parameters
    ----------
    text:
        Such as ``%d.%m.%Y %H:%M``. ``%y`` is a year from 1969 to 2068; names of months are English; ``%f`` is
        a fraction of a second.
    is_date:
        Whether only dates have it.

    Raises
    ------
    ValueError
        It has other letters, or does not say which day it is.
    """

    def __init__(self, text: str, *, is_date: bool) -> None:
        self.text = text
        pattern, self._parts, position = "", set[str](), 0
        for directive in re.finditer(r"%(.?)", text, re.DOTALL):
            between, after = text[position : directive.start()], text[directive.end() :]
            # Without a sign between them, only two digits separate two numbers.
            alone = (bool(between) or not position) and not after.startswith("%")
            pattern += re.escape(between)
            pattern += "%" if directive[1] == "%" else self._group(directive[1], "{1,2}" if alone else "{2}")
            position = directive.end()
        self._pattern = f"^{pattern}{re.escape(text[position:])}$"
        self._check(is_date)

    def _group(self, letter: str, digits: str) -> str:
        if letter not in _DIRECTIVES:
            known = ", ".join(f"%{known}" for known in _DIRECTIVES)
            raise ValueError(f"%{letter} is none of {known}")
        part, pattern = _DIRECTIVES[letter]
        if part in self._parts:
            raise ValueError(f"%{letter} repeats a part that is named before")
        self._parts.add(part)
        return f"(?P<{part}>{pattern or '[0-9]' + digits})"

    def _check(self, is_date: bool) -> None:
        for letters in ("Yy", "mb", "d"):
            if len(self._parts.intersection(letters)) != 1:
                raise ValueError(
                    "a year (%Y or %y), a month (%m, %b or %B) and a day (%d) are needed, once each"
                )
        if is_date and self._parts.intersection("HIMSfpz"):
            raise ValueError("a date has no time of day")
        for part, needed in _NEEDS.items():
            if part in self._parts and not self._parts.intersection(needed):
                raise ValueError(f"%{part} needs %{needed[0]}")
        if {"H", "I"} <= self._parts:
            raise ValueError("%H and %I are both hours")

    @property
    def zoned(self) -> bool:
        """Whether times of this format have a zone."""
        return "z" in self._parts

    def iso(self, texts: Values) -> Values:
        """Texts in this format, rewritten as ISO-8601 writes dates and times."""
        matches = pc.extract_regex(texts, self._pattern)
        other = pc.and_(pc.is_valid(texts), pc.is_null(matches))
        if pc.any(other).as_py():
            raise pa.ArrowInvalid(f"{texts.filter(other)[0].as_py()!r} is not of the form {self.text!r}")
        part = {name: pc.struct_field(matches, name) for name in self._parts}

        def text(value: str) -> pa.Scalar:
            return pa.scalar(value, texts.type)

        def joined(sign: str, *parts: Values | pa.Scalar) -> Values:
            return pc.binary_join_element_wise(*parts, text(sign))

        def digits(name: str) -> Values | pa.Scalar:
            return pc.utf8_lpad(part[name], 2, "0") if name in part else text("00")

        if "y" in part:
            century = pc.if_else(pc.greater_equal(part["y"], text("69")), text("19"), text("20"))
            part["Y"] = joined("", century, part["y"])
        if "b" in part:
            names = pa.array([name[:3] for name in _MONTHS], texts.type)
            index = pc.index_in(pc.utf8_slice_codeunits(pc.utf8_lower(part["b"]), 0, 3), names)
            part["m"] = pc.add(index, 1).cast(texts.type)
        if "p" in part:
            hour = part["I"].cast(pa.int32())
            morning = pc.if_else(pc.equal(hour, 12), 0, hour)
            is_morning = pc.equal(pc.utf8_lower(part["p"]), text("am"))
            part["H"] = pc.if_else(is_morning, morning, pc.add(morning, 12)).cast(texts.type)
        date = joined("-", part["Y"], digits("m"), digits("d"))
        if "H" not in part:
            return date
        seconds = joined(".", digits("S"), part["f"]) if "f" in part else digits("S")
        moment = joined("T", date, joined(":", digits("H"), digits("M"), seconds))
        return joined("", moment, part["z"]) if self.zoned else moment


class UnrepresentableType(Exception):
    """A type that no Iceberg table supports, or that a text format cannot represent. The text names it."""


def is_uuid(dtype: pa.DataType) -> bool:
    """Whether this is Arrow's type of UUIDs."""
    return isinstance(dtype, pa.UuidType)


def table_type(dtype: pa.DataType, depth: int = 0) -> pa.DataType:
    """The type for ``dtype`` in an Iceberg table: the narrowest that holds all its values.

    Nanoseconds are the exception: they become microseconds, and a value with a remainder is a bad row.

    Raises
    ------
    UnrepresentableType
    """
    if depth > MAX_NESTING:
        raise UnrepresentableType(f"values are nested deeper than {MAX_NESTING} levels")
    if is_.is_dictionary(dtype):
        return table_type(dtype.value_type, depth + 1)
    if is_.is_null(dtype) or is_.is_string(dtype) or is_.is_large_string(dtype) or is_.is_string_view(dtype):
        return pa.large_string()
    if is_.is_uint64(dtype):
        return pa.decimal128(20, 0)
    if is_.is_integer(dtype):
        fits_int = dtype.bit_width < 32 or (dtype.bit_width == 32 and is_.is_signed_integer(dtype))
        return pa.int32() if fits_int else pa.int64()
    if is_.is_floating(dtype):
        return pa.float64() if is_.is_float64(dtype) else pa.float32()
    if is_.is_date(dtype):
        return pa.date32()
    if is_.is_time(dtype):
        return pa.time64("us")
    if is_.is_timestamp(dtype):
        return pa.timestamp("us", tz=UTC if dtype.tz else None)
    if is_.is_decimal(dtype) and dtype.precision <= 38 and dtype.scale >= 0:
        return pa.decimal128(dtype.precision, dtype.scale)
    if is_.is_binary(dtype) or is_.is_large_binary(dtype) or is_.is_binary_view(dtype):
        return pa.large_binary()
    if is_.is_boolean(dtype) or is_.is_fixed_size_binary(dtype) or is_uuid(dtype):
        return dtype
    return _nested(dtype, lambda inner: table_type(inner, depth + 1))


def text_type(dtype: pa.DataType) -> pa.DataType:
    """The type for reading a CSV file, so that :func:`convert` can make ``dtype`` of it: text where Arrow's
    parser would change values, or refuse some that convert does not.

    Raises
    ------
    UnrepresentableType
        The type cannot be written in CSV.
    """
    if is_.is_timestamp(dtype) or is_.is_time(dtype) or is_.is_floating(dtype) or is_.is_decimal(dtype):
        return pa.large_string()
    if is_.is_nested(dtype) or family(dtype) == "bytes":
        raise UnrepresentableType(f"CSV cannot hold values of type {dtype}")
    return dtype


def json_type(dtype: pa.DataType) -> pa.DataType:
    """The type for reading JSON, so that :func:`convert` can make ``dtype`` of it.

    Raises
    ------
    UnrepresentableType
        The type cannot be written in JSON.
    """
    if is_.is_temporal(dtype):
        return pa.large_string()
    if is_.is_map(dtype) or family(dtype) == "bytes":
        raise UnrepresentableType(f"JSON cannot hold values of type {dtype}")
    if is_.is_float32(dtype):
        return pa.float64()  # Arrow's parser would make numbers infinite that are too large
    if is_.is_decimal(dtype):
        return with_room(dtype)
    if is_.is_list(dtype) or is_.is_large_list(dtype):
        return pa.list_(json_type(dtype.value_type))
    return _nested(dtype, json_type) if is_.is_struct(dtype) else dtype


def _nested(dtype: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if is_.is_struct(dtype) and not dtype.num_fields:
        raise UnrepresentableType("objects without any key cannot be stored")
    if is_.is_struct(dtype):
        return pa.struct([field.with_type(inner(field.type)).remove_metadata() for field in dtype])
    if is_.is_map(dtype):
        return pa.map_(inner(dtype.key_type), inner(dtype.item_type))
    if is_.is_list(dtype) or is_.is_large_list(dtype) or is_.is_fixed_size_list(dtype):
        return pa.large_list(inner(dtype.value_type))
    raise UnrepresentableType(f"values of type {name_of(dtype)} are not supported in Iceberg tables")


def name_of(dtype: pa.DataType) -> str:
    """A type in a message; one that Arrow does not have by the name that its format gives it."""
    return str(dtype.type_name if isinstance(dtype, pa.OpaqueType) else dtype)


def convertible(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether :func:`.conversion.convert` goes from ``source`` to ``target`` without silent loss.

    A conversion that may fail for single values is allowed: such a value is a bad row. Fields of structs go
    by name, as columns do: ``source`` may lack optional ones, which are then NULL. What it has in addition
    (:func:`new_fields`) is left out.
    """
    if is_.is_dictionary(source):
        return convertible(source.value_type, target)
    if source.equals(target) or is_.is_null(source):
        return True
    kind = family(source)
    if family(target) not in _CONVERSIONS[kind]:
        return False
    if kind == "float":
        return bool(is_.is_integer(target) or target.bit_width >= source.bit_width)
    if kind == "timestamp":
        return bool(target.tz or not source.tz)
    if kind == "list":
        return convertible(source.value_type, target.value_type)
    if kind == "map":
        keys = convertible(source.key_type, target.key_type)
        return keys and convertible(source.item_type, target.item_type)
    if kind == "struct":
        given = {field.name: field.type for field in source}
        return (
            len(given) == source.num_fields
            and any(field.name in given for field in target)
            and all(
                convertible(given[field.name], field.type) if field.name in given else field.nullable
                for field in target
            )
        )
    return kind != "bytes" or bool(table_type(source).equals(target))


def new_fields(given: pa.DataType, present: pa.DataType, path: str) -> list[str]:
    """The paths of the fields of ``given`` that ``present`` does not have, within a column ``path``. They are
    those of Iceberg: ``a.b``, ``a.element.b`` within lists, ``a.value.b`` within maps."""
    return list(_new_fields(given, present, path))


def _new_fields(given: pa.DataType, present: pa.DataType, path: str) -> Iterator[str]:
    if is_.is_struct(given) and is_.is_struct(present):
        for field in given:
            at = present.get_field_index(field.name)
            if at < 0:
                yield f"{path}.{field.name}"
            else:
                yield from _new_fields(field.type, present.field(at).type, f"{path}.{field.name}")
    elif is_.is_map(given) and is_.is_map(present):
        yield from _new_fields(given.key_type, present.key_type, f"{path}.key")
        yield from _new_fields(given.item_type, present.item_type, f"{path}.value")
    elif _is_list(given) and _is_list(present):
        yield from _new_fields(given.value_type, present.value_type, f"{path}.element")


def grown(present: pa.DataType, given: pa.DataType) -> pa.DataType:
    """``present`` with the fields that only ``given`` has: optional, behind the others. Keys of maps stay as
    they are (Iceberg's specification, "Schema Evolution"). Both have types in the form of a table."""
    if is_.is_struct(given) and is_.is_struct(present):
        types = {field.name: field.type for field in given}
        fields = [
            field.with_type(grown(field.type, types.pop(field.name))) if field.name in types else field
            for field in present
        ]
        return pa.struct([*fields, *(pa.field(name, dtype) for name, dtype in types.items())])
    if is_.is_map(given) and is_.is_map(present):
        item = present.item_field.with_type(grown(present.item_type, given.item_type))
        return pa.map_(present.key_field, item)
    if _is_list(given) and _is_list(present):
        element = present.value_field.with_type(grown(present.value_type, given.value_type))
        return pa.large_list(element) if is_.is_large_list(present) else pa.list_(element)
    return present


def _is_list(dtype: pa.DataType) -> bool:
    return bool(is_.is_list(dtype) or is_.is_large_list(dtype) or is_.is_fixed_size_list(dtype))


def is_number(dtype: pa.DataType) -> bool:
    """Whether values of a type are numbers."""
    return family(dtype) in ("integer", "float", "decimal")


def may_become(present: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one type may become one of the other, with its existing files."""
    if is_.is_decimal(present) and is_.is_decimal(wanted):
        return bool(present.scale == wanted.scale and present.precision < wanted.precision)
    return (present, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (is_.is_string, is_.is_large_string, is_.is_string_view),
    "integer": (is_.is_integer,),
    "float": (is_.is_floating,),
    "decimal": (is_.is_decimal,),
    "boolean": (is_.is_boolean,),
    "timestamp": (is_.is_timestamp,),
    "date": (is_.is_date,),
    "time": (is_.is_time,),
    "list": (is_.is_list, is_.is_large_list, is_.is_fixed_size_list),
    "map": (is_.is_map,),
    "struct": (is_.is_struct,),
    "bytes": (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary, is_uuid),
}
_CONVERSIONS: dict[str, frozenset[str]] = {
    **{family: frozenset({family}) for family in _FAMILIES},
    "text": frozenset({"text", "integer", "float", "decimal", "boolean", "timestamp", "date", "time"}),
    "integer": frozenset({"integer", "float", "decimal", "text"}),
    "float": frozenset({"float", "integer"}),
    "date": frozenset({"date", "timestamp"}),
    "other": frozenset(),
}


def family(dtype: pa.DataType) -> str:
    """The group of types with the same conversions that it belongs to, such as ``text`` or ``list``."""
    return next((name for name, tests in _FAMILIES.items() if any(test(dtype) for test in tests)), "other")
