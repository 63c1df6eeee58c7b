"""Infers the columns of a topic from a sample of its records, if they are not known otherwise."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial

import pyarrow as pa
from pyiceberg.schema import Schema

from distop.errors import KafkaUnavailable
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.inference import SAMPLE_BYTES, CsvSample, JsonSample, Sample
from distop.sources.formats.options import CsvOptions
from distop.sources.kafka.argument import KafkaArgument
from distop.sources.kafka.client import Cluster
from distop.sources.kafka.offsets import OffsetRange
from distop.sources.kafka.reader import RangeReader
from distop.sources.kafka.records import NATURAL_TYPES, RAW_TYPE, csv_line, json_line

SAMPLE_SECONDS = 3.0
SAMPLE_RANGES = 8
SAMPLE_RECORDS = 200
"""Sample size: records of each range, and number of ranges."""


def direct_columns(kafka: KafkaArgument) -> list[str]:
    """Columns that get values directly, without parsing a text: those of metadata, and the raw value."""
    return [*([kafka.value_column] if kafka.format == "raw" else ()), *kafka.metadata.values()]


def direct_types(kafka: KafkaArgument) -> dict[str, pa.DataType]:
    """The types of :func:`direct_columns` in the topic."""
    types = {column: NATURAL_TYPES[what] for what, column in kafka.metadata.items()}
    return types | ({kafka.value_column: RAW_TYPE} if kafka.format == "raw" else {})


class KafkaSample:
    """The columns of a topic. Records are read only if the columns are not known otherwise.

    Parameters
    ----------
    table:
        The schema of the table, if it has one.
    declared:
        Whether the caller has declared the columns.
    """

    def __init__(
        self,
        cluster: Cluster,
        kafka: KafkaArgument,
        ranges: Sequence[OffsetRange],
        options: CsvOptions,
        table: Schema | None,
        *,
        declared: bool,
    ) -> None:
        self._cluster = cluster
        self._kafka = kafka
        self._ranges = ranges
        self._options = options
        self._table = table
        self._declared = declared
        self.complete = kafka.format != "json"
        self.unreadable = ""
        """Why the first unreadable record of the sample is so."""

    @cached_property
    def names(self) -> list[str]:
        """Columns of the values; for JSON those of the table, whatever keys the sample has.

        If they were declared, an unknown key makes its record a bad one, and does not fail the operation.
        """
        direct = direct_columns(self._kafka)
        if self._kafka.format == "raw":
            return [self._kafka.value_column]
        if self._kafka.format == "csv":
            return [name for name in self._header if name not in direct]
        if self._declared:
            return []
        known = self._records.names if self._table is None else [one.name for one in self._table.columns]
        return [name for name in known if name not in direct]

    @cached_property
    def all_names(self) -> list[str]:
        """The same, and for JSON the keys in the sample."""
        if self._kafka.format != "json" or self._declared:
            return self.names
        direct = direct_columns(self._kafka)
        return list(dict.fromkeys(name for name in (*self.names, *self._records.names) if name not in direct))

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        return self._records.unfit(types)

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        direct = direct_types(self._kafka)
        guessed = [column for column in columns if column not in direct]
        known = {column: direct[column] for column in columns if column in direct}
        return known | (self._records.types(guessed) if guessed else {})

    @property
    def _header(self) -> list[str]:
        return list(self._options.header) if isinstance(self._options.header, list) else []

    @cached_property
    def _records(self) -> Sample:
        if self._kafka.format == "json":
            return JsonSample(self._lines())
        return CsvSample([(self._header, b"".join(line + b"\n" for line in self._lines()))], self._options)

    def _lines(self) -> list[bytes]:
        lines = []
        as_csv = partial(csv_line, encoding=self._options.encoding)
        line_of = json_line if self._kafka.format == "json" else as_csv
        for value in self._values():
            try:
                lines.append(line_of(value))
            except Unconvertible as error:
                # Bad records are handled when they are read.
                self.unreadable = self.unreadable or str(error)
        return lines

    def _values(self) -> list[bytes]:
        """The first values of some ranges, evenly spread."""
        deadline = time.monotonic() + SAMPLE_SECONDS

        def look() -> None:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"topic {self._kafka.topic!r}: no sample of its records within {SAMPLE_SECONDS:.0f} s",
                    hint="try again, or declare the columns with schema",
                )

        reader = RangeReader(self._cluster, self._kafka.topic, skip_gaps=True, look=look)
        last = len(self._ranges) - 1
        count = min(len(self._ranges), SAMPLE_RANGES)
        values: list[bytes] = []
        for number in range(count):
            wanted = self._ranges[last * number // max(1, count - 1)]
            size, some = 0, 0
            for message in reader.records(wanted):
                if (value := message.value()) is not None:
                    values.append(value)
                some, size = some + 1, size + len(message)
                if some >= SAMPLE_RECORDS or size >= SAMPLE_BYTES // count:
                    break
        return values
