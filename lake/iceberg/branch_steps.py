"""The steps that publish a branch of an Iceberg table, or drop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.commit.facts import BRANCH, PUBLISHED, REBASED, SNAPSHOT
from distop.errors import HeadConflict, PreconditionFailed
from distop.lake.iceberg.append import dropped_metadata
from distop.lake.iceberg.branch_rebase import batches_of, joined_moves, only_appends, rebased
from distop.lake.iceberg.branches import unpublished
from distop.lake.iceberg.content import named, writer_of
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.provenance import provenance
from distop.lake.iceberg.snapshots import Draft, snapshot_id_of
from distop.lake.layout.model import file_io
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head


class _OfBranch(TransactionalStep):
    """A step on one branch. Argument: ``branch``; ``snapshotId``, optional: the snapshot it must be at."""

    def _read(self, context: FinishContext) -> tuple[TableFile, int]:
        """The table, and the snapshot the branch is at."""
        arg, branch = context.view.arg, self.argument["branch"]
        if not context.head.exists:
            raise _no_branch(arg, branch)
        location = decode(context.head.value, Head, context.head.key).metadata_location
        file = TableFile.read(location, arg.storage)
        ref = file.metadata.refs.get(branch)
        if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise _no_branch(arg, branch)
        expected = self.argument.get("snapshotId")
        if expected is not None and str(ref.snapshot_id) != expected:
            by = writer_of(file.snapshot(ref.snapshot_id))
            raise HeadConflict(
                f"branch {branch!r} of table {arg.table!r} is at snapshot {ref.snapshot_id}, written "
                f"by {by}, not at {expected}",
                hint="validate the branch again at its present snapshot",
                details={"expected": expected, "snapshot": str(ref.snapshot_id), "by": by},
            )
        return file, ref.snapshot_id

    def _written(
        self,
        context: FinishContext,
        file: TableFile,
        write: Callable[[Draft], str],
        *,
        current: int | None,
        also: Txn,
        facts: dict[str, Any],
    ) -> Contribution:
        """The step's contribution: a new metadata file.

        Parameters
        ----------
        current:
            The table's snapshot in it.
        """
        arg, base = context.view.arg, file.metadata
        io = file_io(base.location, arg.storage)
        draft = Draft(io, file)
        try:
            location = write(draft)
        except BaseException:
            draft.discard()
            raise
        head = Head(metadata_location=location, snapshot_id=current, operation=str(arg.id))
        moved = context.head_moved(head)
        return Contribution(txn=moved + also, facts=facts | dropped_metadata(draft), discard=draft.discard)


class IcebergPublishBranch(_OfBranch):
    """Publishes a branch: its content becomes the table's, and the branch is removed.

    Watermarks in its snapshots move in the same transaction. Further argument: ``onConflict``, for a table
    that was changed since the branch began: ``refuse``, or ``rebase``: the rows appended to the branch are
    appended to the table. ``alone``, optional: refuse a branch that would bring more than one snapshot.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        HeadConflict
            The table was changed since the branch began, or the branch is not where it should be; or
            snapshots that were rolled back would come back with it.
        WatermarkConflict
            Another operation has ingested one of its sources into the table meanwhile.
        PreconditionFailed
            There is no such branch.
        """
        branch = self.argument["branch"]
        file, snapshot_id = self._read(context)
        found = unpublished(file, branch)
        gone = RemoveSnapshotRefUpdate(**{"ref-name": branch})
        facts = {BRANCH: branch, PUBLISHED: len(found.snapshots)}
        # A rollback has taken back what they had applied; only another one brings that back with them.
        rolled_back = [one for one in found.snapshots if one.snapshot_id in file.was_present]
        if self.argument.get("alone"):
            rolled_back = list(found.snapshots[1:])
        if rolled_back:
            table, other = context.view.arg.table, rolled_back[0]
            raise HeadConflict(
                f"table {table!r} was rolled back since its branch {branch!r} began: with it "
                f"{named(other.snapshot_id)} would come back, written by {writer_of(other)}; to have it back "
                f"first: distop rollback {table} {other.snapshot_id}",
                hint="or drop the branch, and write it again on what the table holds now",
                details={"snapshot": str(other.snapshot_id), "branch": branch},
            )
        if not found.snapshots:
            current = file.metadata.current_snapshot_id
            facts[SNAPSHOT] = str(current)
            return self._written(
                context, file, lambda draft: draft.write(gone), current=current, also=Txn(), facts=facts
            )
        present = context.marks
        after = found.watermarks(present)
        # Compared even if none moves: the moves were computed from them.
        puts = (Put(context.keys.watermarks, after.encoded()),) if after.recent != present.recent else ()
        marks = Txn((unchanged(context.watermarks),), puts)
        if not found.ahead:
            return self._rebased(context, file, found.snapshots, gone, marks, facts)
        return self._written(
            context,
            file,
            lambda draft: draft.write(draft.moving(MAIN_BRANCH, snapshot_id), gone),
            current=snapshot_id,
            also=marks,
            facts=facts | {SNAPSHOT: str(snapshot_id)},
        )

    def _rebased(
        self,
        context: FinishContext,
        file: TableFile,
        snapshots: Sequence[Snapshot],
        gone: RemoveSnapshotRefUpdate,
        marks: Txn,
        facts: dict[str, Any],
    ) -> Contribution:
        arg, branch = context.view.arg, self.argument["branch"]
        rebases = self.argument.get("onConflict") == "rebase"
        if not rebases or not only_appends(snapshots):
            now = file.metadata.current_snapshot()
            at, by = None if now is None else now.snapshot_id, writer_of(now)
            why = ", and not all that was written to the branch are appends" if rebases else ""
            raise HeadConflict(
                f"table {arg.table!r} has moved to {named(at)}, written by {by}, since its branch "
                f"{branch!r} began{why}",
                hint="drop the branch, and write it again on what the table holds now"
                + ("" if rebases else "; or publish it with on_conflict=rebase"),
                details={"snapshot": str(at or ""), "by": by, "branch": branch},
            )
        new_id = snapshot_id_of(f"{arg.id}/{arg.uuid}")
        properties = provenance(arg, joined_moves(snapshots)) | batches_of(snapshots)

        def write(draft: Draft) -> str:
            made = rebased(draft, snapshots, new_id)
            made.summary.additional_properties.update(properties)
            facts.update(files=made.files, rows=made.rows)
            return draft.add_snapshot(new_id, made.manifests, made.summary, now=context.now(), updates=[gone])

        facts |= {SNAPSHOT: str(new_id), REBASED: True}
        return self._written(context, file, write, current=new_id, also=marks, facts=facts)


class IcebergDropBranch(_OfBranch):
    """Removes a branch; its files are removed when snapshots are expired."""

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`; ``PreconditionFailed`` if there is no such branch."""
        branch = self.argument["branch"]
        file, _ = self._read(context)
        found = unpublished(file, branch)
        gone = RemoveSnapshotRefUpdate(**{"ref-name": branch})
        return self._written(
            context,
            file,
            lambda draft: draft.write(gone),
            current=file.metadata.current_snapshot_id,
            also=Txn(),
            facts={BRANCH: branch, "droppedSnapshots": len(found.snapshots)},
        )


def _no_branch(arg: OperationArg, branch: str) -> PreconditionFailed:
    return PreconditionFailed(f"table {arg.table!r} has no branch {branch!r}", details={"field": "branch"})
