"""Merges manifests, so that a table has few of them after any number of commits.

A commit reads and writes the list of all manifests, so their number must not grow with every commit. When
``commit.manifest.min-count-to-merge`` manifests list about equally many files, they are merged into one: a
table of n files has about log(n) manifests, and each entry was rewritten about log(n) times. (Iceberg's own
writers put everything into one bin instead and rewrite all of it each time.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Properties
from pyiceberg.utils.properties import property_as_bool, property_as_int

from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import schema_with

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
