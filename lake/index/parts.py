"""A part of an index: a file of sorted entries of key, data file and row group.

A Parquet file in key order with small row groups, so that a look-up reads the footer, whose statistics say
which row groups may hold a key, and one or two of these.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from distop.lake.index.keys import Key, key_type

Groups: TypeAlias = frozenset[int] | None
"""Row groups of a data file that may hold a matching row; ``None``: all."""


def entry_schema(encoding: str) -> pa.Schema:
    """The columns: the key; the data file by its number; the row group within it."""
    return pa.schema({"key": key_type(encoding), "file": pa.int32(), "group": pa.int32()})


@dataclass
class Written:
    """The content of a file of entries."""

    entries: int = 0
    bytes: int = 0
    least: Key | None = None
    greatest: Key | None = None


def group_rows(entries: int) -> int:
    """Entries per row group: a look-up reads one row group and the footer, which has a line for each."""
    return min(65_536, max(1024, 4 * math.isqrt(entries)))


def write_entries(
    io: FileIO, location: str, encoding: str, batches: Iterable[pa.RecordBatch], *, expected: int
) -> Written:
    """Write batches of entries, for a part in key order.

    Parameters
    ----------
    expected:
        Upper estimate of the number of entries.
    """
    written = Written()
    with io.new_output(location).create(overwrite=True) as stream:
        with pq.ParquetWriter(
            stream, entry_schema(encoding), compression="zstd", use_dictionary=["file", "group"]
        ) as parquet:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if not written.entries:
                    written.least = batch["key"][0].as_py()
                written.greatest = batch["key"][-1].as_py()
                written.entries += batch.num_rows
                parquet.write_batch(batch, row_group_size=group_rows(expected))
        written.bytes = int(stream.tell())
    return written


def read_entries(io: FileIO, location: str) -> Iterator[pa.RecordBatch]:
    """All entries, in batches."""
    with io.new_input(location).open() as stream, pq.ParquetFile(stream) as parquet:
        yield from parquet.iter_batches(use_threads=False)


def find(io: FileIO, location: str, keys: Sequence[Any]) -> dict[int, Groups]:
    """The data files, by number, and their row groups for some keys of a part."""
    with io.new_input(location).open() as stream, pq.ParquetFile(stream) as parquet:
        metadata, kind = parquet.metadata, parquet.schema_arrow.field("key").type
        bounds = [_bounds(metadata.row_group(group)) for group in range(metadata.num_row_groups)]
        wanted = sorted({group for key in keys for group in _groups_of(bounds, key)})
        if not wanted:
            return {}
        entries = parquet.read_row_groups(wanted, use_threads=False)
    entries = entries.filter(pc.is_in(entries["key"], value_set=pa.array(keys, kind)))
    found: dict[int, set[int]] = defaultdict(set)
    for file, group in zip(entries["file"].to_pylist(), entries["group"].to_pylist(), strict=True):
        found[file].add(group)
    return {file: frozenset(groups) for file, groups in found.items()}


def _bounds(group: Any) -> tuple[Key, Key]:
    statistics = group.column(0).statistics
    least, greatest = statistics.min, statistics.max
    return (least.encode(), greatest.encode()) if isinstance(least, str) else (least, greatest)


def _groups_of(bounds: list[tuple[Key, Key]], key: Key) -> Iterator[int]:
    place = bisect.bisect_left(bounds, key, key=lambda bound: bound[1])
    while place < len(bounds) and bounds[place][0] <= key:  # type: ignore[operator]
        yield place
        place += 1
