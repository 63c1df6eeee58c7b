"""Looking keys up in an index: which row groups of which data files may hold them.

An answer may name too much, never too little: what an index does not cover, cannot read or does not know is
opened. So an index of any age serves any snapshot, and a reader that meets a part which a newer index has
replaced goes on without it.
"""

from __future__ import annotations

import bisect
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from distop.commit.index.bloom import Hashes
from distop.commit.index.blooms import may_hold, read_blooms
from distop.commit.index.keys import hashes, key_of, key_type
from distop.commit.index.manifest import IndexManifest, IndexPart, read_manifest
from distop.metastore.records.model import IndexRecord

log = logging.getLogger(__name__)

READERS = 8
"""Parts that are looked into at a time."""

MAX_VALUES = 1000
"""Values that are looked up at a time; for more the table is scanned."""

REMEMBERED = 16
"""Manifests of this process that are kept as they were parsed."""

Groups: TypeAlias = frozenset[int] | None
"""Row groups of a file that may hold a row; ``None``: all."""


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """What is left to be opened of the files that a reader has planned."""

    files: dict[str, Groups]
    index: str
    """The operation that made the index."""
    covered: int
    """How many of the planned files the index covers."""
    unreadable: list[str] = field(default_factory=list)
    """Parts that could not be read; their files are opened."""


def narrow(
    records: Iterable[IndexRecord],
    io: FileIO,
    root: str,
    schema: Schema,
    column: str,
    values: Sequence[Any],
    planned: Iterable[str],
) -> Narrowed | None:
    """Leave out planned files in which no row has one of some values in a column.

    Parameters
    ----------
    records:
        The table's indexes, as etcd has them.
    root:
        The table's location.
    schema:
        What the column's name and type are taken from: that of the snapshot that is read.
    planned:
        Locations of the data files of a snapshot, of any snapshot.

    Returns
    -------
    ``None`` if no index serves: there is none of the column, it cannot be read, there are too many values.

    Raises
    ------
    InvalidArgument
        A value is none of the column's type.
    """
    try:
        found = schema.find_field(column)
    except ValueError:
        return None
    chosen = [record for record in records if record.field_id == found.field_id]
    if not chosen or len(values) > MAX_VALUES:
        return None
    record = max(chosen, key=lambda record: record.sequence_number)
    manifest = load_manifest(io, record.manifest, root)
    if manifest is None or not manifest.fits(schema, found.field_id):
        return None
    maybe = (key_of(column, value, found.field_type) for value in values)
    keys = sorted({key for key in maybe if key is not None})
    of_part: dict[int, list[str]] = defaultdict(list)
    files: dict[str, Groups] = {}
    covered = 0
    for file in planned:
        place = manifest.part_of.get(file)
        if place is None:
            files[file] = None
        else:
            covered += 1
            of_part[place].append(file)
    parts = [place for place in of_part if manifest.parts[place].may_hold(keys)] if keys else []
    unreadable: list[str] = []
    for place, hits in zip(parts, _look(io, [manifest.parts[place] for place in parts], keys), strict=True):
        if hits is None:
            unreadable.append(manifest.parts[place].path)
            files |= dict.fromkeys(of_part[place], None)
        else:
            files |= {file: hits[file] for file in of_part[place] if file in hits}
    return Narrowed(files=files, index=record.operation, covered=covered, unreadable=unreadable)


def _look(io: FileIO, parts: list[IndexPart], keys: list[Any]) -> Iterator[dict[str, Groups] | None]:
    hashed = hashes(keys)
    if len(parts) < 2:
        yield from (_look_into(io, part, keys, hashed) for part in parts)
        return
    with ThreadPoolExecutor(min(READERS, len(parts)), thread_name_prefix="lookup") as pool:
        yield from pool.map(lambda part: _look_into(io, part, keys, hashed), parts)


def _look_into(io: FileIO, part: IndexPart, keys: list[Any], hashed: Hashes) -> dict[str, Groups] | None:
    """The files of a part that may hold a key; ``None`` if it cannot be read."""
    try:
        if not may_hold(io, part.bloom_path, hashed):
            return {}
    except Exception as error:  # whatever a file system may raise: it only spares reading the keys
        log.warning("index_blooms_unreadable", extra={"path": part.bloom_path, "error": str(error)})
    try:
        hits = find(io, part.path, keys)
    except Exception as error:  # a scan will do
        log.warning("index_part_unreadable", extra={"path": part.path, "error": str(error)})
        return _by_blooms(io, part, hashed)
    return {part.files[file]: groups for file, groups in hits.items()}


def _by_blooms(io: FileIO, part: IndexPart, hashed: Hashes) -> dict[str, Groups] | None:
    try:
        files = read_blooms(io, part.bloom_path).files
    except Exception:
        return None
    return {part.files[file]: None for file, bloom in files.items() if bloom.may_hold(hashed)}


# -- sorted entries ----------------------------------------------------------------------------------


def find(io: FileIO, location: str, keys: Sequence[Any]) -> dict[int, Groups]:
    """Row groups by the number of the data file that stand beside some keys of a part.

    Reads its footer, and the row groups of it that the keys fall into.
    """
    with io.new_input(location).open() as stream, pq.ParquetFile(stream) as parquet:
        metadata = parquet.metadata
        binary = parquet.schema_arrow.field("key").type == pa.binary()
        bounds = [_bounds(metadata.row_group(group), binary) for group in range(metadata.num_row_groups)]
        wanted = sorted({group for key in keys for group in _groups_of(bounds, key)})
        if not wanted:
            return {}
        entries = parquet.read_row_groups(wanted, use_threads=False)
    looked_for = pa.array(keys, key_type("binary" if binary else "int"))
    entries = entries.filter(pc.is_in(entries["key"], value_set=looked_for))
    found: dict[int, set[int]] = defaultdict(set)
    for file, group in zip(entries["file"].to_pylist(), entries["group"].to_pylist(), strict=True):
        found[file].add(group)
    return {file: frozenset(groups) for file, groups in found.items()}


def _bounds(group: Any, binary: bool) -> tuple[Any, Any]:
    statistics = group.column(0).statistics
    least, greatest = statistics.min, statistics.max
    if binary and isinstance(least, str):
        return least.encode(), greatest.encode()
    return least, greatest


def _groups_of(bounds: list[tuple[Any, Any]], key: Any) -> Iterator[int]:
    place = bisect.bisect_left(bounds, key, key=lambda bound: bound[1])
    while place < len(bounds) and bounds[place][0] <= key:
        yield place
        place += 1


# -- manifests ---------------------------------------------------------------------------------------


_manifests: OrderedDict[tuple[str, str], IndexManifest] = OrderedDict()
_lock = Lock()


def load_manifest(io: FileIO, location: str, root: str) -> IndexManifest | None:
    """A manifest; ``None`` if it cannot be read. Manifests never change, and so the last ones are kept."""
    at = (location, root)
    with _lock:
        if at in _manifests:
            _manifests.move_to_end(at)
            return _manifests[at]
    try:
        manifest = read_manifest(io, location, root)
    except Exception as error:  # gone, not to be reached, of a newer version: a scan will do
        log.warning("index_manifest_unreadable", extra={"path": location, "error": str(error)})
        return None
    with _lock:
        _manifests[at] = manifest
        while len(_manifests) > REMEMBERED:
            _manifests.popitem(last=False)
    return manifest
