"""Which files a table's snapshots refer to."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from distop.lake.storage.listing import inside
from distop.lake.storage.storage import FILES_AT_ONCE


@dataclass
class Files:
    """Locations, by what refers to them: lists name manifests, manifests name data and delete files."""

    lists: set[str] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    """Metadata and statistics files."""

    def all(self) -> set[str]:
        return self.lists | self.manifests | self.data | self.others

    def below(self, location: str) -> Files:
        """Those that are certainly in a folder, of any kind."""
        lists, manifests, data, others = (
            set(inside(locations, location))
            for locations in (self.lists, self.manifests, self.data, self.others)
        )
        return Files(lists, manifests, data, others)

    def without(self, kept: Files) -> Files:
        """Those that are not in ``kept``, of any kind."""
        there = {path_of(location) for location in kept.all()}

        def left(locations: set[str]) -> set[str]:
            return {location for location in locations if path_of(location) not in there}

        return Files(left(self.lists), left(self.manifests), left(self.data), left(self.others))


def files_of(
    metadata: TableMetadata, snapshots: Iterable[Snapshot], io: FileIO, *, torn: bool = False
) -> Files:
    """All files that some snapshots of a table refer to.

    Parameters
    ----------
    torn:
        Whether lists and manifests may be missing because their removal has begun; the files that they named
        are then omitted.
    """
    files = Files()
    manifests: dict[str, ManifestFile] = {}
    chosen = list(snapshots)
    ids = {snapshot.snapshot_id for snapshot in chosen}
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in ids:
            files.others.add(statistics.statistics_path)

    def listed(snapshot: Snapshot) -> list[ManifestFile]:
        with _forgiving(torn):
            return snapshot.manifests(io)
        return []

    def named(manifest: ManifestFile) -> list[str]:
        with _forgiving(torn):
            return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)]
        return []

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="reachable") as pool:
        for snapshot, each in zip(chosen, pool.map(listed, chosen), strict=True):
            files.lists.add(snapshot.manifest_list)
            manifests |= {manifest.manifest_path: manifest for manifest in each}
        files.manifests.update(manifests)
        for paths in pool.map(named, manifests.values()):
            files.data.update(paths)
    return files


def files_of_table(metadata: TableMetadata, location: str, io: FileIO) -> Files:
    """All files that a table refers to: of every snapshot, and the metadata files that its log names."""
    files = files_of(metadata, metadata.snapshots, io)
    files.others.add(location)
    files.others.update(entry.metadata_file for entry in metadata.metadata_log)
    return files


def _forgiving(torn: bool) -> AbstractContextManager[object]:
    return suppress(FileNotFoundError) if torn else nullcontext()


def path_of(location: str) -> str:
    """The path of a location, without scheme and host: one key for different spellings of a file.

    Two locations that differ only in scheme, host or doubled slashes count as one file: in doubt a file is
    known.
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        path = location.removeprefix("file:")
    else:
        path = rest if scheme == "file" else rest.partition("/")[2]
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
