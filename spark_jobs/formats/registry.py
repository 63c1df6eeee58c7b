"""The reader for each format."""

from __future__ import annotations

from distop.errors import CorruptRecord
from distop.spark_jobs.formats.csv import CsvReader
from distop.spark_jobs.formats.jsonl import JsonLinesReader
from distop.spark_jobs.formats.options import CsvOptions
from distop.spark_jobs.formats.parquet import ParquetReader
from distop.spark_jobs.formats.reader import FormatReader, Wanted


def reader_for(file_format: str, csv: CsvOptions, wanted: Wanted) -> FormatReader:
    """The reader of a plan's files."""
    match file_format:
        case "csv":
            return CsvReader(csv, wanted)
        case "jsonl":
            return JsonLinesReader(wanted)
        case "parquet":
            return ParquetReader(wanted)
    raise CorruptRecord(f"the plan names the format {file_format!r}, which this version cannot read")
