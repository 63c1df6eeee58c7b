"""Values of CSV: texts into columns, as the options say that numbers and times are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from distop.commit.writing.casts import Values
from distop.spark_jobs.formats.bad_rows import Unconvertible
from distop.spark_jobs.formats.guesses import first_code, is_int_or_float
from distop.spark_jobs.formats.moments import UTC, TimeFormat
from distop.spark_jobs.formats.options import CsvOptions
from distop.spark_jobs.formats.types import convert, is_number, text_type

_TEXT = pa.large_string()


class CsvValues:
    """See the module."""

    def __init__(self, options: CsvOptions) -> None:
        self._thousands, self._decimal_point = options.thousands, options.decimal_point
        self._date = TimeFormat(options.date_format, is_date=True) if options.date_format else None
        self._moment = (
            TimeFormat(options.timestamp_format, is_date=False) if options.timestamp_format else None
        )
        self._zone = options.timezone

    def parsed(self, dtype: pa.DataType) -> pa.DataType:
        """The type for Arrow's parser, so that :meth:`convert` can make ``dtype`` of its values.

        Raises :class:`~distop.spark_jobs.formats.types.UnsupportedType`.
        """
        spelled = (self._thousands and is_number(dtype)) or (self._date and is_.is_date(dtype))
        return _TEXT if spelled else text_type(dtype)

    def convert(self, values: Values, dtype: pa.DataType, column: str) -> Values:
        """Values of Arrow's parser as ``dtype``; raises ``Unconvertible``."""
        if values.type.equals(_TEXT) and not dtype.equals(_TEXT):
            try:
                values = self._plain(values, dtype)
            except pa.ArrowInvalid as error:
                raise Unconvertible(f"column {column!r}: {error}") from None
        return convert(values, dtype, column, self._zone or UTC)

    def _plain(self, texts: Values, dtype: pa.DataType) -> Values:
        """The same values as Arrow, and Iceberg, write them."""
        texts = pc.ascii_trim_whitespace(texts)
        if is_number(dtype):
            return self._plain_numbers(texts, dtype)
        form = self._date if is_.is_date(dtype) else self._moment if is_.is_timestamp(dtype) else None
        return texts if form is None else form.iso(texts)

    def _plain_numbers(self, texts: Values, dtype: pa.DataType) -> Values:
        if not self._thousands and self._decimal_point == ".":
            return texts
        groups = rf"|[0-9]{{1,3}}({re.escape(self._thousands)}[0-9]{{3}})+" if self._thousands else ""
        fraction = rf"({re.escape(self._decimal_point)}[0-9]*)?([eE][+-]?[0-9]+)?"
        form = rf"^([+-]?([0-9]*{groups}){fraction}|[+-]?(?i:inf|infinity|nan))$"
        other = texts.filter(pc.invert(pc.match_substring_regex(texts, form)))
        if len(other):
            raise pa.ArrowInvalid(f"invalid value {other[0].as_py()!r} for {dtype}")
        if self._thousands:
            texts = pc.replace_substring(texts, self._thousands, "")
        return pc.replace_substring(texts, self._decimal_point, ".")

    def doubt(self, values: pa.Array, dtype: pa.DataType, column: str) -> str:
        """Why texts should not become a type, of which nobody said that it is theirs; empty if they may.

        They may not if one is unreadable, or as a number would not be what it was as a text.
        """
        try:
            if is_int_or_float(dtype) and (code := first_code(self._plain(values, dtype), dtype)) is not None:
                return f"{code!r} is no plain number"
            self.convert(values, dtype, column)
        except (pa.ArrowInvalid, Unconvertible) as error:
            return str(error).removeprefix(f"column {column!r}: ")
        return ""

    def guess(self, values: pa.Array, guessed: pa.DataType) -> pa.DataType:
        """The type of some texts of which Arrow, that knows no such options, has guessed one.

        A column whose first value has the form of a date or time is meant to hold such.
        """
        for dtype in self._own_types():
            if not self.doubt(values, dtype, ""):
                return dtype
        for dtype in self._own_types() if guessed.equals(_TEXT) else ():
            if is_.is_temporal(dtype) and not self.doubt(values.slice(0, 1), dtype, ""):
                return dtype
        if is_.is_timestamp(guessed) and self._zone:
            return pa.timestamp("us", UTC)
        return guessed

    def _own_types(self) -> Iterator[pa.DataType]:
        if self._date is not None:
            yield pa.date32()
        if self._moment is not None:
            yield pa.timestamp("us", UTC if self._moment.zoned or self._zone else None)
        if self._thousands:
            yield from (pa.int64(), pa.float64())

    @property
    def spelled(self) -> bool:
        """Whether some type is written otherwise than Arrow expects."""
        return next(self._own_types(), None) is not None
