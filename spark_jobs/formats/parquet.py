"""Parquet: row groups into columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.types import is_floating

from distop.spark_jobs.formats.files import OpenFile
from distop.spark_jobs.formats.reader import FileUnusable, Wanted, check_size
from distop.spark_jobs.formats.types import convert, convertible

BATCH_ROWS = 64 * 1024


@contextmanager
def opened_parquet(file: OpenFile) -> Iterator[pq.ParquetFile]:
    """A Parquet file. Raises :class:`FileUnusable` if it is not one."""
    with closing(file.open()) as stream:
        try:
            opened = pq.ParquetFile(stream)
        except pa.ArrowInvalid as error:
            raise FileUnusable(f"is not a Parquet file: {error}") from None
        with opened:
            check_size(opened.schema_arrow.names)
            yield opened


def row_group_sizes(file: OpenFile) -> tuple[int, ...]:
    """The compressed sizes in bytes of a file's row groups."""
    with opened_parquet(file) as opened:
        metadata = opened.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return tuple(
            sum(group.column(column).total_compressed_size for column in range(group.num_columns))
            for group in groups
        )


def unfit(file: OpenFile, types: Mapping[str, pa.DataType]) -> list[str]:
    """Those of some columns whose smallest or largest value a numeric type cannot hold, according to the
    file's statistics, or that have none."""
    with opened_parquet(file) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
        return [
            column
            for column, dtype in types.items()
            if column in schema.names
            and not _holds(groups, chunks.get(column), schema.field(column).type, dtype)
        ]


def _holds(
    groups: Iterable[pq.RowGroupMetaData], chunk: int | None, found: pa.DataType, dtype: pa.DataType
) -> bool:
    if is_floating(found) and is_floating(dtype):
        return bool(found.bit_width <= dtype.bit_width)  # digits are lost between the extremes, too
    for group in groups:
        statistics = None if chunk is None else group.column(chunk).statistics
        if statistics is None or (not statistics.has_min_max and statistics.null_count != group.num_rows):
            return False
        try:
            pa.array([statistics.min, statistics.max] if statistics.has_min_max else [], found).cast(dtype)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return False
    return True


class ParquetRows:
    """Some rows of a Parquet file.

    Parameters
    ----------
    first:
        Number of the first row within its file, counted from 1.
    """

    def __init__(self, table: pa.Table, first: int) -> None:
        self.table = table
        self._first = first

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def part(self, start: int, stop: int) -> Self:
        return type(self)(self.table.slice(start, stop - start), self._first + start)

    def number(self) -> int:
        return self._first

    def raw(self) -> str:
        shown = {name: _shown(self.table.column(name)) for name in self.table.column_names}
        return json.dumps(shown, default=str, ensure_ascii=False)


def _shown(column: pa.ChunkedArray) -> Any:
    """The first value; as Arrow's text if Python has no such value, such as a date after the year 9999."""
    try:
        return column[0].as_py()
    except (ArithmeticError, LookupError, ValueError):
        return column.slice(0, 1).combine_chunks().to_string(skip_new_lines=True)


class ParquetReader:
    """Reads Parquet files."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    @contextmanager
    def open(self, file: OpenFile) -> Iterator[ParquetFile]:
        with opened_parquet(file) as opened:
            schema = opened.schema_arrow
            self._wanted.check(schema.names)
            wanted = [field for field in self._wanted.schema if field.name in schema.names]
            for field in wanted:
                found = schema.field(field.name).type
                if not convertible(found, field.type):
                    raise FileUnusable(
                        f"has {found} in column {field.name!r}, which cannot become {field.type}"
                    )
            yield ParquetFile(opened, self._wanted.schema, [field.name for field in wanted])


class ParquetFile:
    """One Parquet file; ``there`` are the columns of the schema that it has."""

    row_unit = "row"

    def __init__(self, file: pq.ParquetFile, schema: pa.Schema, there: list[str]) -> None:
        self._file = file
        self._schema = schema
        self._there = there

    def blocks(self, start: int, end: int | None) -> Iterator[ParquetRows]:
        """Rows of a range of row groups."""
        metadata = self._file.metadata
        first = 1 + sum(metadata.row_group(group).num_rows for group in range(start))
        groups = range(start, metadata.num_row_groups if end is None else end)
        batches = self._file.iter_batches(
            batch_size=BATCH_ROWS, row_groups=groups, columns=self._there, use_threads=False
        )
        while (batch := self._next(batches)) is not None:
            yield ParquetRows(pa.Table.from_batches([batch]), first)
            first += batch.num_rows

    @staticmethod
    def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        try:
            return next(batches, None)
        except pa.ArrowInvalid as error:
            raise FileUnusable(f"is damaged: {error}") from error
        except OSError as error:
            # Errors of the operating system have a number, and may be transient.
            if error.errno is not None:
                raise
            raise FileUnusable(f"is damaged: {error}") from error

    def convert(self, rows: ParquetRows) -> pa.Table:
        """The required columns of some rows."""
        columns = [
            convert(rows.table.column(field.name), field.type, field.name)
            if field.name in self._there
            else pa.nulls(len(rows), field.type)
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)
