"""Expires snapshots: one transaction removes them from the table, and then their files are removed.

Only files that only expired snapshots refer to are removed, after that transaction. No later commit can refer
to them again: it takes files only from snapshots that still exist. So the process that removes them may be
slow, paused, killed half-way, or repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemovePartitionStatisticsUpdate, RemoveSnapshotsUpdate, TableUpdate

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import CorruptRecord
from distop.lake.cleanup.orphans import files_of
from distop.lake.iceberg.append import dropped_metadata
from distop.lake.iceberg.branches import ids_of_branches
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import file_io, load_metadata
from distop.lake.layout.properties import check_may_remove
from distop.lake.layout.staging import owners
from distop.lake.storage.storage import remove_files
from distop.metastore.crashpoints import reached
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head

log = logging.getLogger(__name__)

EXPIRED_FROM, EXPIRED_TO = "expiredFrom", "expiredTo"
"""Facts of the commit: the metadata file that still has the snapshots, and the one that does not."""


def expired_snapshots(
    metadata: TableMetadata, *, older_than_ms: int, keep_last: int, now_ms: int
) -> list[Snapshot]:
    """The snapshots to expire.

    Never those that a branch or a tag names, nor the newest ``keep_last`` of each branch, nor more of them if
    the settings of the branch say so, nor any that only a branch has (they hold the watermarks that move when
    it is published), nor the one that these follow.

    Parameters
    ----------
    older_than_ms, now_ms:
        Milliseconds since the Unix epoch.
    keep_last:
        At least 1.
    """
    kept: set[int | None] = {ref.snapshot_id for ref in metadata.refs.values()}
    kept.add(metadata.current_snapshot_id)
    kept |= ids_of_branches(metadata)
    branches = (ref for ref in metadata.refs.values() if ref.snapshot_ref_type == SnapshotRefType.BRANCH)
    for ref in branches:
        newest = max(keep_last, ref.min_snapshots_to_keep or 0)
        since_ms = now_ms - (ref.max_snapshot_age_ms or 0)
        lineage = enumerate(_lineage(metadata, metadata.snapshot_by_id(ref.snapshot_id)))
        kept.update(
            snapshot.snapshot_id
            for at, snapshot in lineage
            if at < newest or snapshot.timestamp_ms >= since_ms
        )
    return [
        snapshot
        for snapshot in metadata.snapshots
        if snapshot.timestamp_ms < older_than_ms and snapshot.snapshot_id not in kept
    ]


def _lineage(metadata: TableMetadata, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    known = {each.snapshot_id: each for each in metadata.snapshots}
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else known.get(parent)


class IcebergExpire(TransactionalStep):
    """Removes snapshots from a table's metadata.

    Argument: ``olderThanMs``, ``keepLast``; see :func:`expired_snapshots`.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises :class:`~distop.errors.PreconditionFailed` if files may not be removed any more.
        """
        arg = context.view.arg
        if not context.head.exists:
            return Contribution(facts={"expiredSnapshots": 0})
        location = decode(context.head.value, Head, context.head.key).metadata_location
        metadata = load_metadata(location, arg.storage)
        check_may_remove(metadata.properties, arg.table)
        expired = expired_snapshots(
            metadata,
            older_than_ms=int(self.argument["olderThanMs"]),
            keep_last=int(self.argument["keepLast"]),
            now_ms=int(context.now() * 1000),
        )
        if not expired:
            return Contribution(facts={"expiredSnapshots": 0})
        ids = [snapshot.snapshot_id for snapshot in expired]
        of_partitions = {each.snapshot_id for each in metadata.partition_statistics}.intersection(ids)
        updates: list[TableUpdate] = [
            # pyiceberg removes only statistics of the other kind with their snapshots.
            *(RemovePartitionStatisticsUpdate(**{"snapshot-id": each}) for each in sorted(of_partitions)),
            RemoveSnapshotsUpdate(**{"snapshot-ids": ids}),
        ]
        draft = Draft(
            file_io(metadata.location, arg.storage),
            TableFile.of(metadata, location),
        )
        try:
            new = draft.write(*updates)
        except BaseException:
            draft.discard()
            raise
        head = Head(metadata_location=new, snapshot_id=metadata.current_snapshot_id, operation=str(arg.id))
        facts = {"expiredSnapshots": len(expired), EXPIRED_FROM: location, EXPIRED_TO: new}
        return Contribution(
            txn=context.head_moved(head),
            facts=facts | dropped_metadata(draft),
            discard=draft.discard,
        )


def remove_expired(operation: OperationArg, history: HistoryRecord) -> int:
    """Remove the files that only expired snapshots refer to, after their expiry; return how many.

    Data first, then manifests, then lists: a repetition after a crash finds the rest. If the old metadata is
    gone, or the folder is not the table's own, nothing is removed; the removal of orphans finds these files.
    """
    before, after = history.facts.get(EXPIRED_FROM), history.facts.get(EXPIRED_TO)
    if not before or not after:
        return 0
    if operation.argument.get("owner") not in owners(operation.location, operation.storage):
        log.warning(
            "expired_files_left", extra={"operation": str(operation.id), "error": "not the table's folder"}
        )
        return 0
    try:
        old = load_metadata(str(before), operation.storage)
        new = load_metadata(str(after), operation.storage)
        io = file_io(old.location, operation.storage)
        kept = files_of(new, new.snapshots, io)
    except (CorruptRecord, FileNotFoundError) as error:
        log.warning("expired_files_left", extra={"operation": str(operation.id), "error": str(error)})
        return 0
    retained = {snapshot.snapshot_id for snapshot in new.snapshots}
    gone = [snapshot for snapshot in old.snapshots if snapshot.snapshot_id not in retained]
    # Files elsewhere may be another table's, which this table refers to.
    victims = files_of(old, gone, io, torn=True).without(kept).below(operation.location)
    reached("expire.before")
    removed = remove_files(victims.data | victims.others, operation.storage)
    reached("expire.middle")
    removed += remove_files(victims.manifests, operation.storage)
    removed += remove_files(victims.lists, operation.storage)
    reached("expire.after")
    return removed
