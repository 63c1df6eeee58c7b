"""The format options of a source's files, as stored in a plan."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from distop.spark_jobs.formats.csv_quoting import Quoting

Format: TypeAlias = Literal["csv", "jsonl", "parquet"]


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
