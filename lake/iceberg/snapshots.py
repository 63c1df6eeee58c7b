"""Makes a new snapshot of an Iceberg table (manifest list, metadata file), and removes it again.

A commit reads and writes the list of all manifests, so their number must not grow with every commit. When
``commit.manifest.min-count-to-merge`` manifests list about equally many files, they are merged into one: a
table of n files has about log(n) manifests, and each entry was rewritten about log(n) times. (Iceberg's own
writers put everything into one bin instead and rewrite all of it each time.)
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate, update_table_metadata
from pyiceberg.typedef import Properties
from pyiceberg.utils.properties import property_as_bool, property_as_int

from distop.errors import PreconditionFailed
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import schema_of, schema_with
from distop.lake.layout.properties import FORMAT_VERSION, inert
from distop.lake.writing.manifests import ManifestBuilder
from distop.metastore.crashpoints import reached

MIN_COUNT = 10
"""Default: merging by size is cheap, so it may happen earlier than Iceberg's 100."""


def merged(draft: Draft, manifests: Sequence[ManifestFile], snapshot_id: int) -> list[ManifestFile]:
    """The manifests of a snapshot, some of them merged into new ones.

    Delete manifests stay as they are, and so do manifests of the target size.
    """
    properties = draft.base.properties
    if not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, True):
        return list(manifests)
    replaced: dict[str, ManifestFile | None] = {}
    specs = draft.base.specs()
    for group in _groups(manifests, properties):
        if schema_with(draft.base, specs[group[0].partition_spec_id]) is None:
            continue  # they stay readable, but cannot be written again
        replaced |= dict.fromkeys(manifest.manifest_path for manifest in group)
        replaced[group[0].manifest_path] = _joined(draft, group, snapshot_id)
    kept = (replaced.get(manifest.manifest_path, manifest) for manifest in manifests)
    return [manifest for manifest in kept if manifest is not None]


def _groups(manifests: Sequence[ManifestFile], properties: Properties) -> Iterator[list[ManifestFile]]:
    """The manifests to merge, in groups of one partition spec and about one size."""
    fewest = max(2, _number(properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, MIN_COUNT))
    target = _number(
        properties,
        TableProperties.MANIFEST_TARGET_SIZE_BYTES,
        TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
    )
    alike: dict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and manifest.manifest_length < target:
            alike[manifest.partition_spec_id, _tier(manifest, fewest)].append(manifest)
    for group in alike.values():
        together: list[ManifestFile] = []
        size = 0
        for manifest in group if len(group) >= fewest else ():
            if together and size + manifest.manifest_length > target:
                yield together
                together, size = [], 0
            together.append(manifest)
            size += manifest.manifest_length
        if len(together) > 1:
            yield together


def _tier(manifest: ManifestFile, base: int) -> int:
    """The logarithm to ``base`` of its number of files, rounded down: 0 for fewer than ``base``."""
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    tier = 0
    while files >= base:
        files //= base
        tier += 1
    return tier


def _joined(draft: Draft, manifests: Sequence[ManifestFile], snapshot_id: int) -> ManifestFile:
    """One manifest of all files that the given ones list; entries state what they inherited so far."""
    builder = draft.new_manifest(manifests[0].partition_spec_id, snapshot_id)
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(draft.io):
            builder.keep(entry)
    return builder.write(draft.io, draft.new_manifest_path())


def _number(properties: Properties, name: str, default: int) -> int:
    value = property_as_int(properties, name, default)
    return default if value is None else value


log = logging.getLogger(__name__)

_VERSION = re.compile(r"(\d+)-")


def snapshot_id_of(token: str) -> int:
    """The snapshot id of an operation: the same in every attempt at publishing it.

    So the id of a snapshot shows that an operation has been published before.
    """
    digest = hashlib.sha256(token.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Draft:
    """The metadata files of a publication that has not happened yet.

    Parameters
    ----------
    file:
        The present table.
    branch:
        The branch to write to; empty: the table itself.
    updates:
        Changes that precede all others, such as columns.
    """

    def __init__(
        self, io: FileIO, file: TableFile, branch: str = "", updates: Sequence[TableUpdate] = ()
    ) -> None:
        self.io = io
        self.file = file
        self.branch = branch
        self._updates = tuple(updates)
        changed = update_table_metadata(file.metadata, self._updates) if updates else file.metadata
        self.base = _seen_from(changed, branch)
        """The table as the branch sees it: a new snapshot follows its current one."""
        self.dropped: list[str] = []
        """Metadata files that the metadata log no longer names, after :meth:`write`."""
        self._uuid = uuid4()
        self._locations = load_location_provider(self.base.location, inert(self.base.properties))
        self._written: list[str] = []

    def new_manifest_path(self) -> str:
        """A path for a manifest of this publication; :meth:`discard` removes it."""
        return self._new_path(f"{self._uuid}-m{len(self._written)}.avro")

    def new_manifest(
        self, spec_id: int, snapshot_id: int, content: ManifestContent = ManifestContent.DATA
    ) -> ManifestBuilder:
        """For files of any partition spec of the table.

        Raises :class:`~distop.errors.PreconditionFailed` if the types of its values are no longer known.
        """
        spec = self.base.specs()[spec_id]
        return ManifestBuilder(schema_of(self.base, spec), spec, snapshot_id=snapshot_id, content=content)

    def _new_path(self, name: str) -> str:
        path: str = self._locations.new_metadata_location(name)
        self._written.append(path)
        return path

    def add_snapshot(
        self,
        snapshot_id: int,
        manifests: Sequence[ManifestFile],
        summary: Summary,
        *,
        now: float,
        updates: Sequence[TableUpdate] = (),
    ) -> str:
        """Write the table with one more snapshot; return the location of its metadata file.

        Parameters
        ----------
        updates:
            What else changes with it.
        now:
            See :meth:`snapshot`.
        """
        added = AddSnapshotUpdate(snapshot=self.snapshot(snapshot_id, manifests, summary, now=now))
        return self.write(*updates, added, self.moving(self.branch or MAIN_BRANCH, snapshot_id))

    def moving(self, branch: str, snapshot_id: int) -> SetSnapshotRefUpdate:
        """The update by which a branch gets this snapshot. It keeps its settings for expiring snapshots."""
        ref = self.base.refs.get(branch)
        kept = {} if ref is None else ref.model_dump(by_alias=True, exclude_none=True)
        moved: dict[str, Any] = {"type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
        return SetSnapshotRefUpdate(**{**kept, **moved, "ref-name": branch})

    def snapshot(
        self, snapshot_id: int, manifests: Sequence[ManifestFile], summary: Summary, *, now: float
    ) -> Snapshot:
        """Make one more snapshot and write its manifest list.

        Parameters
        ----------
        now:
            Seconds since the Unix epoch. A clock that went back is ignored: the snapshots of a table are
            ordered by time.
        """
        base = self.base
        parent = base.current_snapshot()
        sequence_number = base.next_sequence_number()
        list_path = self._new_path(f"snap-{snapshot_id}-0-{self._uuid}.avro")
        parent_id = parent.snapshot_id if parent is not None else None
        with write_manifest_list(
            FORMAT_VERSION, self.io.new_output(list_path), snapshot_id, parent_id, sequence_number, "deflate"
        ) as writer:
            writer.add_manifests(list(manifests))
        reached("snapshot.middle")
        fields: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(int(now * 1000), base.last_updated_ms),
            "manifest-list": list_path,
            "summary": summary,
            "schema-id": base.current_schema_id,
        }
        return Snapshot(**fields)

    def write(self, *updates: TableUpdate) -> str:
        """Write the metadata file of the base with the updates; return its location."""
        successor = self.file.successor((*self._updates, *updates))
        path = self._new_path(f"{self._next_version():05d}-{uuid4()}.metadata.json")
        reached("snapshot.before")
        with self.io.new_output(path).create() as stream:
            stream.write(successor.content)
        reached("snapshot.after")
        if successor.file is not None:
            successor.file.remember(path)
        self.dropped = successor.dropped
        return path

    def _next_version(self) -> int:
        if self.file.location is None:
            return 0
        match = _VERSION.match(self.file.location.rpartition("/")[2])
        return int(match[1]) + 1 if match else 0

    def discard(self) -> None:
        """Remove everything written here; best effort, never raises."""
        written, self._written = self._written, []
        for path in written:
            try:
                self.io.delete(path)
            except FileNotFoundError:
                pass
            except Exception as error:
                log.warning("draft_not_removed", extra={"path": path, "error": str(error)})


def _seen_from(metadata: TableMetadata, branch: str) -> TableMetadata:
    ref = metadata.refs.get(branch)
    if ref is None:
        return metadata  # where a branch begins
    if ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise PreconditionFailed(
            f"{branch!r} is a tag of the table at {metadata.location}, not a branch",
            details={"field": "branch"},
        )
    return metadata.model_copy(update={"current_snapshot_id": ref.snapshot_id})
