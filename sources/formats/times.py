"""Texts as dates and times: those of ISO-8601, or of a format that is given."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.lake.writing.casts import InvalidValue, Values

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
