"""The steps that publish a branch of an Iceberg table, or drop it."""

from __future__ import annotations

from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from distop.commit.branches import unpublished
from distop.commit.content import recorded_properties, writer_of
from distop.commit.iceberg_steps import dropped_metadata
from distop.commit.layout import file_io
from distop.commit.metadata_files import TableFile
from distop.commit.snapshots import Draft
from distop.commit.step import Contribution, FinishContext, TransactionalStep
from distop.errors import HeadConflict, PreconditionFailed
from distop.metastore.records import Head, OperationArg, decode, decode_watermarks, encode, encode_plain
from distop.metastore.txn import Put, Txn, unchanged


class _OfBranch(TransactionalStep):
    """A step about one branch. Argument: ``branch``; ``snapshotId``, optional: the snapshot it must be at."""

    def _read(self, context: FinishContext) -> tuple[TableFile, int]:
        """The table, and the snapshot the branch is at."""
        arg, branch = context.view.arg, self.argument["branch"]
        if not context.head.exists:
            raise _no_branch(arg, branch)
        location = decode(context.head.value, Head, context.head.key).metadata_location
        file = TableFile.read(location, recorded_properties(arg), arg.storage)
        ref = file.metadata.refs.get(branch)
        if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise _no_branch(arg, branch)
        expected = self.argument.get("snapshotId")
        if expected is not None and str(ref.snapshot_id) != expected:
            by = writer_of(file.snapshot(ref.snapshot_id))
            raise HeadConflict(
                f"branch {branch!r} of table {arg.table!r} is at snapshot {ref.snapshot_id} by now, written "
                f"by {by}, and not at {expected}",
                hint="look at it again, as it is now",
                details={"expected": expected, "snapshot": str(ref.snapshot_id), "by": by},
            )
        return file, ref.snapshot_id

    def _moved(
        self, context: FinishContext, file: TableFile, updates: list[Any], current: int | None, also: Txn
    ) -> tuple[Txn, Draft]:
        arg, base = context.view.arg, file.metadata
        io = file_io(base.location, {**recorded_properties(arg), **base.properties}, arg.storage)
        draft = Draft(io, file)
        try:
            location = draft.write(*updates)
        except BaseException:
            draft.discard()
            raise
        head = Head(metadata_location=location, snapshot_id=current, operation=str(arg.id))
        return Txn((unchanged(context.head),), (Put(context.keys.head, encode(head)),)) + also, draft


class PublishBranch(_OfBranch):
    """Makes what a branch holds what the table holds, and forgets the branch.

    Watermarks that its snapshots carry move in the same transaction.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        HeadConflict
            Somebody has written to the table since the branch began, or the branch is not where it should be.
        WatermarkConflict
            Another operation has ingested one of its sources into the table meanwhile.
        PreconditionFailed
            There is no such branch.
        """
        arg, branch = context.view.arg, self.argument["branch"]
        file, snapshot_id = self._read(context)
        found = unpublished(file, branch)
        current = file.metadata.current_snapshot_id
        if found.snapshots and not found.ahead:
            by = writer_of(file.snapshot(current) if current is not None else None)
            raise HeadConflict(
                f"table {arg.table!r} has moved to snapshot {current}, written by {by}, since its branch "
                f"{branch!r} began",
                hint="drop the branch, and write it again on what the table holds now",
                details={"snapshot": str(current), "by": by, "branch": branch},
            )
        updates: list[Any] = [RemoveSnapshotRefUpdate(**{"ref-name": branch})]
        marks = Txn()
        if found.snapshots:
            main: dict[str, Any] = {
                "ref-name": MAIN_BRANCH,
                "type": SnapshotRefType.BRANCH,
                "snapshot-id": snapshot_id,
            }
            updates.insert(0, SetSnapshotRefUpdate(**main))
            current = snapshot_id
            present = decode_watermarks(context.watermarks.value)
            after = found.watermarks(present)
            # Compared even if none moves: what they were worked out from is to hold.
            puts = (Put(context.keys.watermarks, encode_plain(after)),) if after != present else ()
            marks = Txn((unchanged(context.watermarks),), puts)
        txn, draft = self._moved(context, file, updates, current, marks)
        facts = {
            "branch": branch,
            "publishedSnapshots": len(found.snapshots),
            "snapshotId": str(snapshot_id),
        }
        return Contribution(txn=txn, facts=facts | dropped_metadata(draft), discard=draft.discard)


class DropBranch(_OfBranch):
    """Forgets a branch; its files go when snapshots are expired."""

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`; ``PreconditionFailed`` if there is no such branch."""
        branch = self.argument["branch"]
        file, _ = self._read(context)
        found = unpublished(file, branch)
        updates = [RemoveSnapshotRefUpdate(**{"ref-name": branch})]
        txn, draft = self._moved(context, file, updates, file.metadata.current_snapshot_id, Txn())
        facts = {"branch": branch, "droppedSnapshots": len(found.snapshots)}
        return Contribution(txn=txn, facts=facts | dropped_metadata(draft), discard=draft.discard)


def _no_branch(arg: OperationArg, branch: str) -> PreconditionFailed:
    return PreconditionFailed(f"table {arg.table!r} has no branch {branch!r}", details={"field": "branch"})
