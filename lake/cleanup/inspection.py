"""Reads a table's files without changing any: staged files, files of the head, missing files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from distop.lake.iceberg.metadata_files import goes_back, is_live
from distop.lake.iceberg.provenance import WATERMARKS, rolled_back
from distop.lake.iceberg.takeover import manifests_of
from distop.lake.iceberg.watermarks import is_after
from distop.lake.index.lookup import FOLDER as INDEX
from distop.lake.layout.model import file_io, load_metadata, schema_with
from distop.lake.layout.partitioning import has_doubles, is_rounded
from distop.lake.layout.staging import ICEBERG, PRIVATE
from distop.lake.storage.storage import Entry, StorageOptions, entries, storage_of
from distop.metastore.records.table import TableRecord, Watermarks

_STAGING = {ICEBERG: ("data", "metadata", INDEX)}
"""Folders for staging, by table format. Files committed to a Delta table stay where they were staged, and may
exist there although the operation was aborted later."""


def staged_folders(table: TableRecord) -> list[str]:
    """Folders below a table's location that operations may have staged into: ``data/ingest-599c42802da9``.

    Blocking.
    """
    tops = _STAGING.get(table.format, (PRIVATE,))
    return [
        f"{top}/{entry.name}"
        for top in tops
        for entry in entries(f"{table.location}/{top}", storage_of(table))
        if entry.is_folder
    ]


def staged_files(table: TableRecord, folder: str) -> list[Entry]:
    """The files in one of them. Blocking."""
    listed = entries(f"{table.location}/{folder}", storage_of(table))
    return [entry for entry in listed if not entry.is_folder]


@dataclass(frozen=True, kw_only=True)
class TableView:
    """What a table's metadata says."""

    snapshots: frozenset[int]
    current: int | None
    current_at: float = 0.0
    """When the present snapshot was made, seconds since the epoch."""
    watermarks: Watermarks = field(default_factory=dict)
    """The watermarks of the present snapshot's rows, as far as its ancestors record them."""
    live: tuple[Snapshot, ...] = ()
    """Its history, the newest first."""
    gone: tuple[Snapshot, ...] = ()
    """Snapshots that were part of it before a rollback, the newest first."""
    missing: tuple[str, ...] = ()
    """Missing data and manifest files of the snapshot; only after a deep look."""
    rounded: tuple[str, ...] = ()
    """Its data files that are listed under a rounded partition value; only after a deep look."""
    goes_back: bool = False
    """Whether Iceberg's Java library refuses it, since times in it go back."""
    referred: frozenset[str] | None = None
    """Names of all files of all snapshots; only after a deep look."""


def view_table(metadata_location: str, *, deep: bool, storage: StorageOptions | None = None) -> TableView:
    """Read a table's metadata; ``deep``: also its manifests, and whether its data files exist. Blocking.

    Raises :class:`~distop.errors.CorruptRecord` if the metadata file is missing or invalid.
    """
    metadata = load_metadata(metadata_location, storage=storage)
    current = metadata.current_snapshot()
    missing: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    referred: frozenset[str] | None = None
    if deep:
        io = file_io(metadata.location, storage)
        missing, rounded, referred = _deep(metadata, current, io, storage)
    live, gone = rolled_back(metadata)
    return TableView(
        live=tuple(live),
        gone=tuple(gone),
        snapshots=frozenset(snapshot.snapshot_id for snapshot in metadata.snapshots),
        current=current.snapshot_id if current is not None else None,
        current_at=current.timestamp_ms / 1000 if current is not None else 0.0,
        watermarks=_watermarks_of(metadata, current),
        missing=missing,
        rounded=rounded,
        goes_back=goes_back(metadata),
        referred=referred,
    )


def _watermarks_of(metadata: TableMetadata, current: Snapshot | None) -> Watermarks:
    """The highest value that each source and partition was brought to by the ancestors of a snapshot."""
    marks: Watermarks = defaultdict(dict)
    for snapshot in ancestors_of(current, metadata):
        text = snapshot.summary[WATERMARKS] if snapshot.summary and WATERMARKS in _names(snapshot) else None
        for source, partitions in _decoded(text).items():
            if not isinstance(partitions, dict):
                continue  # many are stored as a number only
            for partition, value in partitions.items():
                before = marks[source].get(partition)
                if before is None or is_after(str(value), before):
                    marks[source][partition] = str(value)
    return dict(marks)


def _names(snapshot: Snapshot) -> Iterable[str]:
    return snapshot.summary.additional_properties if snapshot.summary else ()


def _decoded(text: str | None) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _deep(
    metadata: TableMetadata, current: Snapshot | None, io: FileIO, storage: StorageOptions | None
) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """The missing files of the present snapshot, those listed under rounded partition values, and the names
    of all files that any snapshot refers to."""
    missing: set[str] = set()
    rounded: set[str] = set()
    specs = metadata.specs()
    doubles = {
        spec_id: schema
        for spec_id, spec in specs.items()
        if (schema := schema_with(metadata, spec)) is not None and has_doubles(spec, schema)
    }
    referred: set[str] = set()
    wanted: dict[str, set[str]] = defaultdict(set)
    read: set[str] = set()
    for snapshot in metadata.snapshots:
        is_current = current is not None and snapshot.snapshot_id == current.snapshot_id
        try:
            manifests = manifests_of(snapshot, io)
        except FileNotFoundError:
            missing.add(snapshot.manifest_list)
            continue
        for manifest in manifests:
            referred.add(manifest.manifest_path.rpartition("/")[2])
            if manifest.manifest_path in read and not is_current:
                continue
            read.add(manifest.manifest_path)
            try:
                listed = manifest.fetch_manifest_entry(io, discard_deleted=True)
            except FileNotFoundError:
                missing.add(manifest.manifest_path)
                continue
            for entry in listed:
                folder, _, name = entry.data_file.file_path.rpartition("/")
                referred.add(name)
                if is_current and is_live(manifest):
                    wanted[folder].add(name)
                    schema = doubles.get(spec_id := manifest.partition_spec_id)
                    if schema is not None and is_rounded(entry.data_file, specs[spec_id], schema):
                        rounded.add(entry.data_file.file_path)
    for folder, names in wanted.items():
        there = {entry.name for entry in entries(folder, storage) if not entry.is_folder}
        missing |= {f"{folder}/{name}" for name in names - there}
    return tuple(sorted(missing)), tuple(sorted(rounded)), frozenset(referred)
