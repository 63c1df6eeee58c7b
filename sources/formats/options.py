"""The format options of a source's files, as stored in a plan, and the quoting that those of CSV describe."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec
import numpy as np


class Quoting:
    """The quoting rule of one file.

    Parameters
    ----------
    delimiter, quote, escape:
        One byte each; an empty ``quote`` means that nothing is quoted, an empty ``escape`` that quotes are
        only doubled.
    """

    def __init__(self, delimiter: bytes, quote: bytes, escape: bytes = b"") -> None:
        self.delimiter = delimiter
        self.quote = quote
        self.escape = escape

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        d, q, e = (re.escape(sign) for sign in (self.delimiter, self.quote, self.escape))
        pair = rb"%b%b|%b(?s:.)?" % (q, q, e) if e else q + q
        return re.compile(
            rb"(?:\A|(?<=[%b\r\n]))%b[^%b%b]*(?:(?:%b)[^%b%b]*)*(%b|\Z)" % (d, q, q, e, pair, q, e, q)
        )

    def unescaped(self, text: bytes) -> bytes:
        """The same records without escapes: quotes within quotes are doubled."""
        if not self.escape or self.escape not in text:
            return text
        q, e = self.quote, self.escape
        escaped = re.compile(rb"%b(%b|%b)" % tuple(map(re.escape, (e, q, e))))

        def doubled(field: re.Match[bytes]) -> bytes:
            return escaped.sub(lambda pair: q + q if pair[1] == q else e, field[0])

        return self._quoted.sub(doubled, text)

    def escapes_quote(self, text: bytes, escape: bytes) -> bool:
        """Whether a quoted field has ``escape`` before a quote."""
        sign = escape + self.quote
        return sign in text and any(sign in text[start:end] for start, end, _ in self._spans(text))

    def _spans(self, text: bytes) -> Iterator[tuple[int, int, bool]]:
        """``(start, end, closed)`` of every quoted field; ``text`` begins where a record begins."""
        if not self.quote or self.quote not in text:
            return
        for match in self._quoted.finditer(text):
            yield match.start(), match.end(), bool(match.group(1))

    def unclosed(self, text: bytes) -> bool:
        """Whether ``text``, which begins with a record, ends inside a quoted field."""
        return any(not closed for _, _, closed in self._spans(text))

    def text_follows(self, text: bytes) -> bool:
        """Whether something else than a delimiter or the end of its line follows a closing quote."""
        ends = self.delimiter + b"\r\n"
        return not self._are_plain(text) and any(
            closed and text[end : end + 1] not in ends for _, end, closed in self._spans(text)
        )

    def _are_plain(self, text: bytes) -> bool:
        """Whether every second quote begins a value, and the next one ends it: nearly always so, and much
        faster to see than where each value is."""
        if not self.quote or self.quote not in text:
            return True
        if self.escape and self.escape in text:
            return False
        around = np.zeros(256, bool)
        around[list(self.delimiter + b"\r\n")] = True
        signs = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(signs == self.quote[0])
        begins, ends = quotes[0::2], quotes[1::2]
        before, after = begins[begins > 0] - 1, ends[ends < len(signs) - 1] + 1
        return bool(around[signs[before]].all() and around[signs[after]].all())

    def holds_newline(self, text: bytes) -> bool:
        """Whether a closed quoted field contains a newline."""
        return any(closed and b"\n" in text[start:end] for start, end, closed in self._spans(text))

    def end_of_last_record(self, text: bytes) -> int:
        """The position after the last newline that ends a record; 0 if there is none."""
        last = 0
        outside = 0
        for start, end, closed in self._spans(text):
            last = max(last, text.rfind(b"\n", outside, start) + 1)
            if not closed:
                return last
            outside = end
        return max(last, text.rfind(b"\n", outside) + 1)

    def records(self, text: bytes) -> Iterator[bytes]:
        """The records of ``text``, each with its newline; one that is never closed extends to the end."""
        start = 0
        outside = 0
        for begin, end, _ in self._spans(text):
            while (newline := text.find(b"\n", outside, begin)) >= 0:
                yield text[start : newline + 1]
                start = outside = newline + 1
            outside = end
        while (newline := text.find(b"\n", outside)) >= 0:
            yield text[start : newline + 1]
            start = outside = newline + 1
        if start < len(text):
            yield text[start:]


Format: TypeAlias = Literal["csv", "jsonl", "parquet", "avro"]

TYPED: frozenset[Format] = frozenset({"parquet", "avro"})
"""Formats whose files have a schema."""


class CsvOptions(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """Options of CSV files: the fields of :class:`~distop.spark_jobs.ingest.argument.IngestArgument`."""

    header: bool | list[str] = True
    delimiter: str = ","
    quote: str = '"'
    null_values: list[str] = []
    multiline: bool = False
    decimal_point: str = "."
    escape: str = ""
    thousands: str = ""
    date_format: str = ""
    timestamp_format: str = ""
    timezone: str = ""
    encoding: str = ""
    """A name that Python knows; empty: UTF-8."""

    @property
    def quoting(self) -> Quoting:
        return Quoting(self.delimiter.encode(), self.quote.encode(), self.escape.encode())


def known_encoding(name: str) -> str:
    """The name that Python has for an encoding; empty for UTF-8, which needs no other treatment.

    Raises
    ------
    ValueError
        There is no such encoding of text.
    """
    try:
        "".encode(name)
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is no encoding of text that Python knows") from None
    return "" if codec in ("utf-8", "utf-8-sig", "ascii") else codec
