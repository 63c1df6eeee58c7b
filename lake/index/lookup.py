"""Looks keys up in an index: which row groups, and in which data files, may hold them.

An answer may name too much, never too little: readers open files that an index does not cover, cannot read
or does not know. So an index of any age serves any snapshot, and a reader continues without a part that a
newer index has replaced.

An unsupported term of a filter excludes nothing. So the index serves the terms on indexed columns, and the
rows are checked against the whole filter.

A part of an index is a Parquet file in key order with small row groups, so that a look-up reads the footer,
whose statistics say which row groups may hold a key, and one or two of these.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT

from distop.lake.index.manifest import IndexManifest, IndexPart, Key, key_of, key_type, read_manifest
from distop.lake.predicates import binding
from distop.metastore.crashpoints import reached

Groups: TypeAlias = frozenset[int] | None
"""Row groups of a data file that may hold a matching row; ``None``: all."""


def entry_schema(encoding: str) -> pa.Schema:
    """The columns: the key; the data file by its number; the row group within it."""
    return pa.schema({"key": key_type(encoding), "file": pa.int32(), "group": pa.int32()})


@dataclass
class EntriesWritten:
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
) -> EntriesWritten:
    """Write batches of entries, for a part in key order.

    Parameters
    ----------
    expected:
        Upper estimate of the number of entries.
    """
    written = EntriesWritten()
    reached("job.file.before")
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
    reached("job.file.after")
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
    groups_of: dict[int, set[int]] = defaultdict(set)
    for file, group in zip(entries["file"].to_pylist(), entries["group"].to_pylist(), strict=True):
        groups_of[file].add(group)
    return {file: frozenset(groups) for file, groups in groups_of.items()}


def _bounds(group: Any) -> tuple[Key, Key]:
    statistics = group.column(0).statistics
    least, greatest = statistics.min, statistics.max
    return (least.encode(), greatest.encode()) if isinstance(least, str) else (least, greatest)


def _groups_of(bounds: list[tuple[Key, Key]], key: Key) -> Iterator[int]:
    group = bisect.bisect_left(bounds, key, key=lambda bound: bound[1])
    while group < len(bounds) and bounds[group][0] <= key:  # type: ignore[operator]
        yield group
        group += 1


Left: TypeAlias = dict[str, Groups]
"""The remaining files, and their row groups."""

Ask: TypeAlias = Callable[[binding.BoundColumn, Collection[binding.Plain]], Left | None]
"""The planned files that may contain one of some values in a column; ``None``: no index applies."""


def narrowed_by(node: binding.Node, ask: Ask) -> Left | None:
    """The files that may match a filter; ``None``: all of them."""
    match node:
        case binding.And(parts):
            return reduce(_both, (narrowed_by(part, ask) for part in parts))
        case binding.Or(parts):
            return reduce(_either, (narrowed_by(part, ask) for part in parts))
        case binding.BoundComparison(column, "=", value):
            return ask(column, [value])
        case binding.OneOf(column, values, nan, False):
            return ask(column, [*values, math.nan] if nan else values)
    return None


def _both(left: Left | None, right: Left | None) -> Left | None:
    if left is None or right is None:
        return right if left is None else left
    both: Left = {}
    for file in left.keys() & right.keys():
        first, second = left[file], right[file]
        groups = (
            first & second
            if first is not None and second is not None
            else (second if first is None else first)
        )
        if groups is None or groups:
            both[file] = groups
    return both


def _either(left: Left | None, right: Left | None) -> Left | None:
    if left is None or right is None:
        return None
    either: Left = {}
    for file in left.keys() | right.keys():
        first, second = left.get(file, frozenset()), right.get(file, frozenset())
        either[file] = None if first is None or second is None else first | second
    return either


log = logging.getLogger(__name__)

READERS = 8
"""Parts read concurrently."""

MAX_VALUES = 1000
"""Most values per look-up; for more the table is scanned."""

REMEMBERED = 16
"""Parsed manifests that this process caches."""


class PublishedIndex(Protocol):
    """What a look-up needs of a published index."""

    @property
    def field_id(self) -> int: ...
    @property
    def manifest(self) -> str: ...
    @property
    def sequence_number(self) -> int: ...


def narrow(
    records: Iterable[PublishedIndex],
    io: FileIO,
    root: str,
    schema: Schema,
    column: binding.BoundColumn,
    values: Collection[binding.Plain],
    planned: Iterable[str],
    partitioned: Mapping[int, Collection[str]] = EMPTY_DICT,
) -> Left | None:
    """Exclude planned files in which no row has one of some values in a column.

    Parameters
    ----------
    records:
        The table's indexes, from etcd or from the client.
    root:
        The table's location.
    schema:
        That of the snapshot to read.
    column, values:
        As a predicate over the schema compares them.
    planned:
        Locations of the data files of a snapshot, of any snapshot.
    partitioned:
        Id of a column -> the files whose partition has its value. The index does not count for them: the
        column need not be in such a file, and its partition has decided already.

    Returns
    -------
    The files that a reader still has to open, with those of parts that could not be read; ``None`` if no
    index applies: the column has none, it is unreadable, or there are too many values.
    """
    chosen = [record for record in records if record.field_id == column.id]
    if not chosen or len(values) > MAX_VALUES:
        return None
    record = max(chosen, key=lambda record: record.sequence_number)
    manifest = load_manifest(io, record.manifest, root)
    if manifest is None or not manifest.fits(schema, column.id):
        return None
    keys: list[Any] = sorted({key_of(value, column.kind) for value in values})
    apart = frozenset(partitioned.get(column.id, ()))
    of_part: dict[int, list[str]] = defaultdict(list)
    files: Left = {}
    for file in planned:
        number = None if file in apart else manifest.part_of.get(file)
        if number is None:
            files[file] = None
        else:
            of_part[number].append(file)
    parts = [number for number in of_part if manifest.parts[number].may_hold(keys)] if keys else []
    for number, hits in zip(
        parts, _look(io, [manifest.parts[number] for number in parts], keys), strict=True
    ):
        if hits is None:
            files |= dict.fromkeys(of_part[number], None)
        else:
            files |= {file: hits[file] for file in of_part[number] if file in hits}
    return files


def left_of(
    records: Sequence[PublishedIndex],
    io: FileIO,
    root: str,
    schema: Schema,
    predicate: binding.Predicate,
    planned: Collection[str],
    partitioned: Mapping[int, Collection[str]],
) -> Left | None:
    """What is to be opened of planned files, for a filter; parameters as of :func:`narrow`.

    ``None``: all of them, no index says anything.
    """

    def ask(column: binding.BoundColumn, values: Collection[binding.Plain]) -> Left | None:
        return narrow(records, io, root, schema, column, values, planned, partitioned)

    return narrowed_by(predicate.node, ask) if records else None


def _look(io: FileIO, parts: list[IndexPart], keys: list[Any]) -> Iterator[dict[str, Groups] | None]:
    if len(parts) < 2:
        yield from (_look_into(io, part, keys) for part in parts)
        return
    with ThreadPoolExecutor(min(READERS, len(parts)), thread_name_prefix="lookup") as pool:
        yield from pool.map(lambda part: _look_into(io, part, keys), parts)


def _look_into(io: FileIO, part: IndexPart, keys: list[Any]) -> dict[str, Groups] | None:
    """The files of a part that may hold a key; ``None`` if it cannot be read."""
    try:
        hits = find(io, part.path, keys)
    except Exception as error:  # any file system or Parquet error: the files are opened instead
        log.warning("index_part_unreadable", extra={"path": part.path, "error": str(error)})
        return None
    return {part.files[file]: groups for file, groups in hits.items()}


# -- manifests ---------------------------------------------------------------------------------------


_manifests: dict[tuple[str, str], IndexManifest] = {}


def load_manifest(io: FileIO, location: str, root: str) -> IndexManifest | None:
    """A manifest; ``None`` if it cannot be read. Manifests never change, so some are kept in memory."""
    at = (location, root)
    manifest = _manifests.get(at)
    if manifest is not None:
        return manifest
    try:
        manifest = read_manifest(io, location, root)
    except Exception as error:  # missing, unreachable, of a newer version: a scan works
        log.warning("index_manifest_unreadable", extra={"path": location, "error": str(error)})
        return None
    if len(_manifests) >= REMEMBERED:
        _manifests.clear()
    _manifests[at] = manifest
    return manifest
