"""Rolls a table back to an earlier snapshot, with its watermarks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.iceberg.append import dropped_metadata, head_conflict
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.provenance import as_of, difference_of_rollback
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import file_io, load_metadata
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head

MAX_NAMED = 100
"""Most batches, and requests, that a rollback lists."""


def target_of(metadata: TableMetadata, *, snapshot_id: int | None, as_of_ms: int | None) -> Snapshot:
    """The snapshot with this id, or the one that was present at a time.

    Raises :class:`~distop.errors.PreconditionFailed` if there is none.
    """
    if snapshot_id is not None:
        target = metadata.snapshot_by_id(snapshot_id)
    else:
        lineage = ancestors_of(metadata.current_snapshot(), metadata)
        target = next((snapshot for snapshot in lineage if snapshot.timestamp_ms <= (as_of_ms or 0)), None)
    if target is None:
        wanted = f"snapshot {snapshot_id}" if snapshot_id is not None else "snapshot of that time"
        raise PreconditionFailed(
            f"the table at {metadata.location} has no {wanted}",
            hint="it may have expired; distop snapshot list TABLE lists the existing ones",
            details={"field": "snapshot" if snapshot_id is not None else "as_of"},
        )
    return target


def _named(fact: str, names: Collection[str]) -> dict[str, Any]:
    """Some of these, for the history."""
    shown = sorted(names)[:MAX_NAMED]
    if len(names) > MAX_NAMED:
        shown.append(f"and {len(names) - MAX_NAMED:,} more")
    return {fact: shown} if shown else {}


class IcebergRollback(TransactionalStep):
    """Makes an earlier snapshot the present one.

    Argument: ``snapshotId``: the target. ``expectedSnapshotId``: the present one at the start; the step does
    not roll back what was written since. ``watermarks``: ``restore`` (in the same transaction they become
    what they were with that snapshot) or ``keep``.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        HeadConflict
            The table was changed since the start.
        PreconditionFailed
            The snapshot is gone; or watermarks are to be restored, and it is not known what they were.
        """
        arg = context.view.arg
        head = decode(context.head.value, Head, context.head.key) if context.head.exists else None
        if head is None:
            raise PreconditionFailed(f"nothing has been published to table {arg.table!r}")
        metadata = load_metadata(head.metadata_location, arg.storage)
        current, expected = metadata.current_snapshot(), self.argument.get("expectedSnapshotId")
        if (None if current is None else str(current.snapshot_id)) != expected:
            raise head_conflict(arg, None if expected is None else int(expected), current)
        target = target_of(metadata, snapshot_id=int(self.argument["snapshotId"]), as_of_ms=None)
        facts: dict[str, Any] = {"snapshotId": str(target.snapshot_id), "rolledBackFrom": expected}
        if current == target:
            return Contribution(facts=facts)
        undoes = difference_of_rollback(metadata, target)
        gone = undoes.gone
        if arg.batches or arg.unordered:
            raise InvalidArgument("a rollback cannot be a batch: it takes batches out of the table")
        facts |= _named("undoneBatches", [*gone.batches, *gone.unordered])
        facts |= _named("undoneRequests", gone.requests)
        txn = self._watermarks(context, metadata, target)
        io = file_io(metadata.location, arg.storage)
        draft = Draft(io, TableFile.of(metadata, head.metadata_location))
        try:
            location = draft.write(draft.moving(MAIN_BRANCH, target.snapshot_id))
        except BaseException:
            draft.discard()
            raise
        new = Head(metadata_location=location, snapshot_id=target.snapshot_id, operation=str(arg.id))
        return Contribution(
            txn=txn + context.head_moved(new),
            facts=facts | dropped_metadata(draft),
            undoes=undoes,
            discard=draft.discard,
        )

    def _watermarks(self, context: FinishContext, metadata: TableMetadata, target: Snapshot) -> Txn:
        if self.argument.get("watermarks") == "keep":
            return Txn()
        restored = as_of(target, metadata, context.marks)
        return Txn((unchanged(context.watermarks),), (Put(context.keys.watermarks, restored.encoded()),))
