"""Looks keys up in an index: which row groups of which data files may hold them.

An answer may name too much, never too little: readers open files that an index does not cover, cannot read or
does not know. So an index of any age serves any snapshot, and a reader continues without a part that a newer
index has replaced.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT

from distop.lake.index.filters import Left, narrowed_by
from distop.lake.index.keys import key_of
from distop.lake.index.manifest import IndexManifest, IndexPart, read_manifest
from distop.lake.index.parts import Groups, find
from distop.lake.predicates.binding import Column, Plain, Predicate

log = logging.getLogger(__name__)

READERS = 8
"""Parts read concurrently."""

MAX_VALUES = 1000
"""Most values per look-up; for more the table is scanned."""

REMEMBERED = 16
"""Parsed manifests that this process caches."""


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """The planned files that a reader still has to open."""

    files: dict[str, Groups]
    index: str
    """The operation that made the index."""
    covered: int
    """How many of the planned files the index covers."""
    unreadable: list[str] = field(default_factory=list)
    """Parts that could not be read; their files are opened."""


class PublishedIndex(Protocol):
    """What a look-up needs of a published index."""

    @property
    def field_id(self) -> int: ...
    @property
    def manifest(self) -> str: ...
    @property
    def sequence_number(self) -> int: ...
    @property
    def operation(self) -> str: ...


def narrow(
    records: Iterable[PublishedIndex],
    io: FileIO,
    root: str,
    schema: Schema,
    column: Column,
    values: Collection[Plain],
    planned: Iterable[str],
    partitioned: Mapping[int, Collection[str]] = EMPTY_DICT,
) -> Narrowed | None:
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
    ``None`` if no index applies: the column has none, it is unreadable, or there are too many values.
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
    files: dict[str, Groups] = {}
    covered = 0
    for file in planned:
        place = None if file in apart else manifest.part_of.get(file)
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


def left_of(
    records: Sequence[PublishedIndex],
    io: FileIO,
    root: str,
    schema: Schema,
    predicate: Predicate,
    planned: Collection[str],
    partitioned: Mapping[int, Collection[str]],
) -> Left | None:
    """What is to be opened of planned files, for a filter; parameters as of :func:`narrow`.

    ``None``: all of them, no index says anything.
    """

    def ask(column: Column, values: Collection[Plain]) -> Left | None:
        found = narrow(records, io, root, schema, column, values, planned, partitioned)
        return None if found is None else found.files

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
