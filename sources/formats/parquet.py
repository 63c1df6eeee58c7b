"""Parquet: row groups into columns.

Times in INT96, a physical type of older programs, are read as microseconds: nanoseconds in 64 bits reach from
1677 to 2262, and Arrow would make other times of those beyond. They are also read as nanoseconds, whose last
digits are right in any year, to find those that are not whole microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_

from distop.lake.writing.casts import as_lists
from distop.sources.formats.bad_rows import Unconvertible, shown
from distop.sources.formats.conversion import convert
from distop.sources.formats.files import OpenFile
from distop.sources.formats.reader import FileUnusable, ReadColumns, check_size, damage_named

BATCH_ROWS = 64 * 1024


@contextmanager
def opened_parquet(file: OpenFile, *, int96: str = "us") -> Iterator[pq.ParquetFile]:
    """A Parquet file; ``int96`` is the unit of times in INT96.

    Raises :class:`FileUnusable` if it is not one.
    """
    with closing(file.open()) as stream:
        try:
            opened = pq.ParquetFile(stream, coerce_int96_timestamp_unit=int96)
        except pa.ArrowInvalid as error:
            raise FileUnusable(f"is not a Parquet file: {error}") from None
        with opened:
            check_size(opened.schema_arrow.names)
            yield opened


@contextmanager
def _opened_for_int96(file: OpenFile, opened: pq.ParquetFile) -> Iterator[pq.ParquetFile | None]:
    """The same file with times in INT96 as nanoseconds; ``None`` if it has none."""
    kinds = (opened.schema.column(number).physical_type for number in range(len(opened.schema.names)))
    if "INT96" not in kinds:
        yield None
        return
    with opened_parquet(file, int96="ns") as nanos:
        yield nanos


def schemas_of(file: OpenFile) -> tuple[pa.Schema, pa.Schema]:
    """The schema of a file, and the same with times in INT96 as points in time.

    Parquet does not say whether such a time has a zone. Spark and Hive, which wrote most of them, store
    points in time, and Iceberg's own readers take them as such.
    """
    with opened_parquet(file) as opened, _opened_for_int96(file, opened) as nanos:
        schema = opened.schema_arrow.remove_metadata()
        if nanos is None:
            return schema, schema
        pairs = zip(schema, nanos.schema_arrow, strict=True)
        return schema, pa.schema([field.with_type(_zoned(field.type, other.type)) for field, other in pairs])


def _zoned(micros: pa.DataType, nanos: pa.DataType) -> pa.DataType:
    if micros.equals(nanos):
        return micros
    if is_.is_struct(micros):
        return pa.struct(
            [
                field.with_type(_zoned(field.type, other.type))
                for field, other in zip(micros, nanos, strict=True)
            ]
        )
    if is_.is_map(micros):
        keys, items = _zoned(micros.key_type, nanos.key_type), _zoned(micros.item_type, nanos.item_type)
        return pa.map_(keys, items)
    if is_.is_nested(micros):
        return pa.list_(_zoned(micros.value_type, nanos.value_type))
    return pa.timestamp("us", "UTC")


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
    groups: Iterable[pq.RowGroupMetaData], chunk: int | None, given: pa.DataType, dtype: pa.DataType
) -> bool:
    if is_.is_floating(given) and is_.is_floating(dtype):
        return bool(given.bit_width <= dtype.bit_width)  # digits are lost between the extremes, too
    for group in groups:
        statistics = None if chunk is None else group.column(chunk).statistics
        if statistics is None or (not statistics.has_min_max and statistics.null_count != group.num_rows):
            return False
        try:
            pa.array([statistics.min, statistics.max] if statistics.has_min_max else [], given).cast(dtype)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return False
    return True


class ParquetRows:
    """Some rows of a Parquet file.

    Parameters
    ----------
    first:
        Number of the first row within its file, counted from 1.
    nanos:
        Its columns with times in INT96, as nanoseconds.
    """

    def __init__(self, table: pa.Table, first: int, nanos: pa.Table | None = None) -> None:
        self.table = table
        self.nanos = nanos
        self._first = first

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def part(self, start: int, stop: int) -> Self:
        nanos = None if self.nanos is None else self.nanos.slice(start, stop - start)
        return type(self)(self.table.slice(start, stop - start), self._first + start, nanos)

    def number(self) -> int:
        return self._first

    def kept(self) -> dict[str, Any]:
        first = {name: shown(self.table.column(name)[0]) for name in self.table.column_names}
        return {"raw": json.dumps(first, default=str, ensure_ascii=False)}


class ParquetReader:
    """Reads Parquet files."""

    def __init__(self, wanted: ReadColumns) -> None:
        self._wanted = wanted

    @contextmanager
    def open(self, file: OpenFile) -> Iterator[ParquetFile]:
        with ExitStack() as stack:
            opened = stack.enter_context(opened_parquet(file))
            nanos = stack.enter_context(_opened_for_int96(file, opened))
            there = self._wanted.check_types(opened.schema_arrow)
            yield ParquetFile(opened, self._wanted.schema, there, nanos)


class ParquetFile:
    """One Parquet file; ``there`` are the columns of the schema that it has, ``nanos`` is the same file with
    times in INT96 as nanoseconds."""

    row_unit = "row"

    def __init__(
        self, file: pq.ParquetFile, schema: pa.Schema, there: list[str], nanos: pq.ParquetFile | None = None
    ) -> None:
        self._file = file
        self._schema = schema
        self._there = there
        self._nanos = nanos
        self._int96 = [] if nanos is None else [name for name in there if _differ(file, nanos, name)]

    def blocks(self, start: int, end: int | None) -> Iterator[ParquetRows]:
        """Rows of a range of row groups."""
        metadata = self._file.metadata
        first = 1 + sum(metadata.row_group(group).num_rows for group in range(start))
        groups = range(start, metadata.num_row_groups if end is None else end)
        for some in [range(group, group + 1) for group in groups] if self._int96 else [groups]:
            nanos, at = self._nanos_of(some), 0
            batches = self._file.iter_batches(
                batch_size=BATCH_ROWS, row_groups=some, columns=self._there, use_threads=False
            )
            while True:
                with damage_named():
                    batch = next(batches, None)
                if batch is None:
                    break
                exact = None if nanos is None else nanos.slice(at, batch.num_rows)
                yield ParquetRows(pa.Table.from_batches([batch]), first + at, exact)
                at += batch.num_rows
            first += at

    def _nanos_of(self, groups: range) -> pa.Table | None:
        if self._nanos is None or not self._int96:
            return None
        with damage_named():
            return self._nanos.read_row_groups(groups, columns=self._int96, use_threads=False)

    def convert(self, rows: ParquetRows) -> pa.Table:
        """The required columns of some rows."""
        if rows.nanos is not None:
            _check_micros(rows.table, rows.nanos)
        columns = [
            convert(rows.table.column(field.name), field.type, field.name)
            if field.name in self._there
            else pa.nulls(len(rows), field.type)
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)


def _differ(first: pq.ParquetFile, other: pq.ParquetFile, name: str) -> bool:
    return not first.schema_arrow.field(name).type.equals(other.schema_arrow.field(name).type)


def _check_micros(rows: pa.Table, nanos: pa.Table) -> None:
    """Refuse times in INT96 that are not whole microseconds. Raises :class:`Unconvertible`."""
    for name in nanos.column_names:
        both = _times(rows.column(name)), _times(nanos.column(name))
        for micros, exact in zip(*both, strict=True):
            if micros.type.equals(exact.type):
                continue
            # Both wrap around in the same way, so that the difference is right in any year.
            rest = pc.subtract(exact.view(pa.int64()), pc.multiply(micros.view(pa.int64()), 1000))
            lost = pc.max(rest).as_py()
            if lost:
                raise Unconvertible(f"column {name!r}: {lost} nanoseconds would be lost beyond microseconds")


def _times(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """The times within a column."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if is_.is_timestamp(values.type):
        return [values]
    if not is_.is_nested(values.type):
        return []
    if is_.is_map(values.type):
        values = as_lists(values)
    parts = values.flatten() if is_.is_struct(values.type) else [values.flatten()]
    return [times for part in parts for times in _times(part)]
