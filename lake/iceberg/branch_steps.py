"""The steps that publish a branch of an Iceberg table, or drop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from distop.commit import contract
from distop.commit.partial import Moves
from distop.errors import HeadConflict, PreconditionFailed
from distop.lake.iceberg.append import added_counts, dropped_metadata
from distop.lake.iceberg.branches import unpublished
from distop.lake.iceberg.metadata_files import TableFile, is_live, named, writer_of
from distop.lake.iceberg.provenance import BATCHES, DEPENDENT, moves_of, provenance
from distop.lake.iceberg.snapshots import Draft, merged, snapshot_id_of
from distop.lake.iceberg.takeover import JobsOutput, manifests_of
from distop.lake.layout.model import file_io
from distop.lake.writing.manifests import ManifestBuilder
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import OperationArg, WatermarkMove
from distop.metastore.records.record import decode, encode_plain, from_json
from distop.metastore.records.table import Head


@dataclass(frozen=True)
class Rebased:
    """One snapshot that replaces several snapshots of a branch."""

    manifests: list[ManifestFile]
    summary: Summary
    files: int
    rows: int


def only_appends(snapshots: Sequence[Snapshot]) -> bool:
    """Whether all of them only added rows, and would have on any content of the table.

    Of snapshots of other programs Iceberg's operation is all that is known.
    """
    return all(
        snapshot.summary is not None
        and snapshot.summary.operation == Operation.APPEND
        and DEPENDENT not in snapshot.summary.additional_properties
        for snapshot in snapshots
    )


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
    listed = [
        snapshot.summary.additional_properties.get(BATCHES)
        for snapshot in reversed(snapshots)
        if snapshot.summary
    ]
    names = [name for text in listed if text for name in from_json(text.encode(), list[str])]
    return {BATCHES: encode_plain(list(dict.fromkeys(names))).decode()} if names else {}


def joined_moves(snapshots: Sequence[Snapshot]) -> Moves:
    """The watermark moves of several snapshots, the newest first, merged into one."""
    joined: Moves = {}
    for snapshot in reversed(snapshots):
        for source, partitions in moves_of(snapshot).items():
            moves = joined.setdefault(source, {})
            for partition, move in partitions.items():
                before = moves[partition].before if partition in moves else move.before
                moves[partition] = WatermarkMove(before=before, after=move.after)
    return joined


class _OfBranch(contract.TransactionalStep):
    """A step on one branch. Argument: ``branch``; ``snapshotId``, optional: the snapshot it must be at."""

    def _read(self, context: contract.FinishContext) -> tuple[TableFile, int]:
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
        context: contract.FinishContext,
        file: TableFile,
        write: Callable[[Draft], str],
        *,
        current: int | None,
        also: Txn,
        facts: dict[str, Any],
    ) -> contract.Contribution:
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
        return contract.Contribution(
            txn=moved + also, facts=facts | dropped_metadata(draft), discard=draft.discard
        )


class IcebergPublishBranch(_OfBranch):
    """Publishes a branch: its content becomes the table's, and the branch is removed.

    Watermarks in its snapshots move in the same transaction. Further argument: ``onConflict``, for a table
    that was changed since the branch began: ``refuse``, or ``rebase``: the rows appended to the branch are
    appended to the table. ``alone``, optional: refuse a branch that would bring more than one snapshot.
    """

    def prepare(self, context: contract.FinishContext) -> contract.Contribution:
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
        own = unpublished(file, branch)
        gone = RemoveSnapshotRefUpdate(**{"ref-name": branch})
        facts = {contract.BRANCH: branch, contract.PUBLISHED: len(own.snapshots)}
        # A rollback has taken back what they had applied; only another rollback restores that with them.
        rolled_back = [snapshot for snapshot in own.snapshots if snapshot.snapshot_id in file.was_present]
        if self.argument.get("alone"):
            rolled_back = list(own.snapshots[1:])
        if rolled_back:
            table, other = context.view.arg.table, rolled_back[0]
            raise HeadConflict(
                f"table {table!r} was rolled back since its branch {branch!r} began: with it "
                f"{named(other.snapshot_id)} would come back, written by {writer_of(other)}; to have it back "
                f"first: distop table rollback {table} {other.snapshot_id}",
                hint="or drop the branch, and write it again on what the table holds now",
                details={"snapshot": str(other.snapshot_id), "branch": branch},
            )
        if not own.snapshots:
            current = file.metadata.current_snapshot_id
            facts[contract.SNAPSHOT] = str(current)
            return self._written(
                context, file, lambda draft: draft.write(gone), current=current, also=Txn(), facts=facts
            )
        present = context.marks
        after = own.watermarks(present)
        # Compared even if none moves: the moves were computed from them.
        puts = (Put(context.keys.watermarks, after.encoded()),) if after.recent != present.recent else ()
        marks = Txn((unchanged(context.watermarks),), puts)
        if not own.ahead:
            return self._rebased(context, file, own.snapshots, gone, marks, facts)
        return self._written(
            context,
            file,
            lambda draft: draft.write(draft.moving(MAIN_BRANCH, snapshot_id), gone),
            current=snapshot_id,
            also=marks,
            facts=facts | {contract.SNAPSHOT: str(snapshot_id)},
        )

    def _rebased(
        self,
        context: contract.FinishContext,
        file: TableFile,
        snapshots: Sequence[Snapshot],
        gone: RemoveSnapshotRefUpdate,
        marks: Txn,
        facts: dict[str, Any],
    ) -> contract.Contribution:
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
                + ("" if rebases else "; or publish it with --on-conflict rebase"),
                details={"snapshot": str(at or ""), "by": by, "branch": branch},
            )
        new_id = snapshot_id_of(f"{arg.id}/{arg.uuid}")
        properties = provenance(arg, joined_moves(snapshots)) | batches_of(snapshots)

        def write(draft: Draft) -> str:
            made = rebased(draft, snapshots, new_id)
            made.summary.additional_properties.update(properties)
            facts.update(files=made.files, rows=made.rows)
            return draft.add_snapshot(new_id, made.manifests, made.summary, now=context.now(), updates=[gone])

        facts |= {contract.SNAPSHOT: str(new_id), contract.REBASED: True}
        return self._written(context, file, write, current=new_id, also=marks, facts=facts)


class IcebergDropBranch(_OfBranch):
    """Removes a branch; its files are removed when snapshots are expired."""

    def prepare(self, context: contract.FinishContext) -> contract.Contribution:
        """See :class:`TransactionalStep`; ``PreconditionFailed`` if there is no such branch."""
        branch = self.argument["branch"]
        file, _ = self._read(context)
        own = unpublished(file, branch)
        gone = RemoveSnapshotRefUpdate(**{"ref-name": branch})
        return self._written(
            context,
            file,
            lambda draft: draft.write(gone),
            current=file.metadata.current_snapshot_id,
            also=Txn(),
            facts={contract.BRANCH: branch, "droppedSnapshots": len(own.snapshots)},
        )


def _no_branch(arg: OperationArg, branch: str) -> PreconditionFailed:
    return PreconditionFailed(f"table {arg.table!r} has no branch {branch!r}", details={"field": "branch"})
