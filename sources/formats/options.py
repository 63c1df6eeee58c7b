"""The format options of a source's files, as stored in a plan."""

from __future__ import annotations

import codecs
from typing import Literal, TypeAlias

import msgspec

from distop.sources.formats.csv_quoting import Quoting

Format: TypeAlias = Literal["csv", "jsonl", "parquet", "avro"]

TYPED: frozenset[Format] = frozenset({"parquet", "avro"})
"""Formats whose files have a schema."""


class CsvOptions(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """See :class:`~distop.spark_jobs.ingest.argument.IngestArgument`."""

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
    """Empty: UTF-8."""

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
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is no encoding of text that Python knows") from None
    return "" if found in ("utf-8", "utf-8-sig", "ascii") else found
