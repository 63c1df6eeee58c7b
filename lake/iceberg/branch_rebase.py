"""Rebases the appends of a branch onto the table's present state. No row is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

from distop.commit.partial import Moves
from distop.lake.iceberg.append import added_counts
from distop.lake.iceberg.content import is_live
from distop.lake.iceberg.merging import merged
from distop.lake.iceberg.provenance import BATCHES, moves_of
from distop.lake.iceberg.snapshots import Draft
from distop.lake.iceberg.takeover import JobsOutput, manifests_of
from distop.lake.writing.manifests import ManifestBuilder
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import encode_plain
from distop.metastore.records.structs import from_json


@dataclass(frozen=True)
class Rebased:
    """One snapshot that replaces several snapshots of a branch."""

    manifests: list[ManifestFile]
    summary: Summary
    files: int
    rows: int


def only_appends(snapshots: Sequence[Snapshot]) -> bool:
    """Whether all of them only added rows: then the rest of the table does not matter."""
    return all(one.summary is not None and one.summary.operation == Operation.APPEND for one in snapshots)


def rebased(draft: Draft, snapshots: Sequence[Snapshot], snapshot_id: int) -> Rebased:
    """The files that appends have added, as files that one new snapshot of the table adds.

    They are listed again: so they are newer than all row deletes that the table has seen meanwhile.
    """
    base, io = draft.base, draft.io
    builders: dict[int, ManifestBuilder] = {}
    files = rows = size = 0
    for snapshot in reversed(snapshots):
        for manifest in manifests_of(snapshot, io):
            if manifest.added_snapshot_id != snapshot.snapshot_id or manifest.content != ManifestContent.DATA:
                continue
            for entry in manifest.fetch_manifest_entry(io):
                # The snapshot also adds manifests merged from older ones; their files are not new.
                if entry.status != ManifestEntryStatus.ADDED or entry.snapshot_id != snapshot.snapshot_id:
                    continue
                spec_id = entry.data_file.spec_id
                if spec_id not in builders:
                    builders[spec_id] = draft.new_manifest(spec_id, snapshot_id)
                builders[spec_id].add(entry.data_file)
                files += 1
                rows += entry.data_file.record_count
                size += entry.data_file.file_size_in_bytes
    parent = base.current_snapshot()
    added = [builder.write(io, draft.new_manifest_path()) for builder in builders.values()]
    kept = [manifest for manifest in manifests_of(parent, io) if is_live(manifest)]
    counts = added_counts(JobsOutput(manifests=[], files=files, rows=rows, bytes=size))
    summary = update_snapshot_summaries(
        Summary(operation=Operation.APPEND, **counts), parent.summary if parent else None
    )
    return Rebased([*added, *merged(draft, kept, snapshot_id)], summary, files, rows)


def batches_of(snapshots: Sequence[Snapshot]) -> dict[str, str]:
    """The property of one snapshot that names the batches of several, the newest first."""
    told = [one.summary.additional_properties.get(BATCHES) for one in reversed(snapshots) if one.summary]
    names = [name for text in told if text for name in from_json(text.encode(), list[str])]
    return {BATCHES: encode_plain(list(dict.fromkeys(names))).decode()} if names else {}


def joined_moves(snapshots: Sequence[Snapshot]) -> Moves:
    """The watermark moves of several snapshots, the newest first, merged into one."""
    joined: Moves = {}
    for snapshot in reversed(snapshots):
        for source, partitions in moves_of(snapshot).items():
            standing = joined.setdefault(source, {})
            for partition, move in partitions.items():
                before = standing[partition].before if partition in standing else move.before
                standing[partition] = WatermarkMove(before=before, after=move.after)
    return joined
