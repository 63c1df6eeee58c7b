"""Publishing modes that depend on the table's content: replace it or parts of it, or leave it unchanged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from pyiceberg.table.snapshots import REMOVED_DELETE_FILES, Operation, Summary, update_snapshot_summaries

from distop.commit.contract import IGNORED, Contribution, FinishContext
from distop.lake.iceberg.append import (
    IcebergAppend,
    IcebergStep,
    SnapshotContent,
    added_counts,
    head_conflict,
)
from distop.lake.iceberg.metadata_files import data_of, is_ignored, not_empty, only_replaced
from distop.lake.iceberg.provenance import INSTEAD_OF
from distop.lake.iceberg.snapshots import Draft
from distop.lake.iceberg.takeover import JobsOutput, take_over
from distop.lake.layout.model import Layout
from distop.lake.rewriting import replace_partitions
from distop.metastore.etcd.txn import Txn, unchanged
from distop.metastore.records.operation import OperationArg


class IcebergOverwritePartitions(IcebergStep):
    """Replaces the partitions that the operation's files belong to; the others stay as they are.

    The conflict check (``expectedSnapshotId``) is per partition as well: the step builds on a concurrent
    commit that left these partitions unchanged (P6).
    """

    def check(self, draft: Draft, layout: Layout, output: JobsOutput, arg: OperationArg) -> None:
        """Store the view: the conflict check runs once the partitions are known."""
        self._arg = arg

    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """Adds the files of the jobs and removes those of the partitions that they belong to."""
        if output.empty:
            return None
        added = take_over(draft, layout, output, snapshot_id)
        keys = replace_partitions.partitions_in(draft.io, added, layout.spec)
        self._check_partitions(draft, layout, keys)
        replaced = replace_partitions.replace_partitions(draft, layout, keys, snapshot_id)
        facts = {"replacedPartitions": len(keys), "removedRows": replaced.rows}
        return replaced.replaced_by(draft, output, added, snapshot_id, facts)

    def _check_partitions(
        self, draft: Draft, layout: Layout, keys: Collection[replace_partitions.Key]
    ) -> None:
        """Refuse the table if these partitions have changed since the operation began."""
        current = draft.base.current_snapshot()
        if not self.refuses or only_replaced(draft.file, current, self.expected):
            return
        then = None if self.expected is None else draft.file.snapshot(self.expected)
        if self.expected is not None and then is None:
            # Expired: its content is unknown.
            raise head_conflict(self._arg, self.expected, current)
        changed = replace_partitions.changed_since(draft, layout, keys, then)
        if changed is not None:
            raise head_conflict(self._arg, self.expected, draft.file.snapshot(changed) or current)


class IcebergAppendInstead(IcebergStep):
    """Adds the operation's files in place of those that an earlier operation has added.

    What others have written before, after or meanwhile stays.

    Argument: ``operation``: the earlier one, which has only added files.
    """

    def check(self, draft: Draft, layout: Layout, output: JobsOutput, arg: OperationArg) -> None:
        """Find the snapshot of the earlier operation."""
        self._earlier = replace_partitions.added_by(draft.file, self.argument["operation"])

    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """See :class:`IcebergStep`.

        Raises :class:`~distop.errors.PreconditionFailed` if files of the earlier operation are gone.
        """
        replaced = replace_partitions.take_out_added(draft, self._earlier, snapshot_id)
        added = take_over(draft, layout, output, snapshot_id)
        facts = {"insteadOf": self.argument["operation"], "removedRows": replaced.rows}
        change = replaced.replaced_by(draft, output, added, snapshot_id, facts)
        change.summary.additional_properties[INSTEAD_OF] = self.argument["operation"]
        return change


class IcebergOverwrite(IcebergStep):
    """Replaces the table's whole content with the operation's files, in one snapshot.

    Without any files the table becomes empty.
    """

    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """Adds the files of the jobs and removes all others."""
        replaced, delete_files = replace_partitions.take_out_all(draft, snapshot_id)
        if output.empty and not (replaced.files or delete_files):
            return None
        added = take_over(draft, layout, output, snapshot_id)
        change = replaced.replaced_by(draft, output, added, snapshot_id, {"removedRows": replaced.rows})
        # No earlier content is left, so totals restart with the added files.
        operation = Operation.OVERWRITE if added else Operation.DELETE
        summary = update_snapshot_summaries(Summary(operation=operation, **added_counts(output)))
        summary.additional_properties.update(replaced.counts())
        if delete_files:
            summary.additional_properties[REMOVED_DELETE_FILES] = str(delete_files)
        return replace(change, summary=summary)


class IcebergAppendIfEmpty(IcebergAppend):
    """Adds the operation's files to an empty table; refuses any other (P5, error-if-exists).

    Other concurrent changes, such as of the table's properties, are kept.
    """

    dependent: ClassVar[bool] = True

    def check(self, draft: Draft, layout: Layout, output: JobsOutput, arg: OperationArg) -> None:
        """Refuse a table with data."""
        snapshot = data_of(draft.file, draft.io)
        if snapshot is not None:
            raise not_empty(arg.table, snapshot)


class IcebergAppendOrIgnore(IcebergAppend):
    """Adds the operation's files to an empty table, and changes no other (P5, ignore)."""

    dependent: ClassVar[bool] = True

    def prepare(self, context: FinishContext) -> Contribution:
        """Adds the files of the jobs, unless the table holds data."""
        if not is_ignored(context):
            return super().prepare(context)
        # The transaction must confirm that the table held data when the operation ended.
        return Contribution(
            txn=Txn((unchanged(context.head),)), facts={IGNORED: True, "rows": 0, "files": 0, "bytes": 0}
        )
