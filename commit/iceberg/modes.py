"""The modes of publishing that look at what the table holds: replace some of it, or leave it alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries

from distop.commit.iceberg.append import Change, IcebergAppend, IcebergStep, added_counts, head_conflict
from distop.commit.iceberg.content import data_of, is_ignored, not_empty, only_replaced
from distop.commit.iceberg.merging import merged
from distop.commit.iceberg.replace_partitions import Key, changed_since, partitions_in, replace_partitions
from distop.commit.iceberg.snapshots import Draft
from distop.commit.iceberg.takeover import JobsOutput, take_over
from distop.commit.layout.model import Layout
from distop.commit.steps.contract import Contribution, FinishContext
from distop.commit.steps.facts import ADOPTED_FROM, IGNORED
from distop.metastore.etcd.txn import Txn, unchanged
from distop.metastore.records.operation import OperationArg


class IcebergOverwritePartitions(IcebergStep):
    """Replaces the partitions that the operation's files have values in; the others stay as they are.

    Refusing what others have written meanwhile (``expectedSnapshotId``) goes by partition as well: a commit
    that left these partitions as they were is built upon (P6).
    """

    def check(self, draft: Draft, layout: Layout, output: JobsOutput, arg: OperationArg) -> None:
        """Remember who asks: what is refused is known once the partitions are."""
        self._arg = arg

    def change(self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int) -> Change | None:
        """See :class:`IcebergStep`."""
        if output.empty:
            return None
        added = take_over(draft, layout, output, snapshot_id)
        keys = partitions_in(draft.io, added, layout.spec)
        self._check_partitions(draft, layout, keys)
        replaced = replace_partitions(draft, layout, keys, snapshot_id)
        parent = draft.base.current_snapshot()
        summary = update_snapshot_summaries(
            Summary(operation=Operation.OVERWRITE, **added_counts(output), **replaced.counts()),
            parent.summary if parent else None,
        )
        manifests = [*added, *replaced.rewritten, *merged(draft, replaced.untouched, snapshot_id)]
        facts: dict[str, Any] = {
            ADOPTED_FROM: output.adopt_from,
            "replacedPartitions": len(keys),
            "removedFiles": replaced.files,
            "removedRows": replaced.rows,
        }
        return Change(manifests=manifests, summary=summary, facts=facts)

    def _check_partitions(self, draft: Draft, layout: Layout, keys: Collection[Key]) -> None:
        """Refuse a table whose partitions in question have changed since the operation began."""
        current = draft.base.current_snapshot()
        if not self.refuses or only_replaced(draft.file, current, self.expected):
            return
        then = None if self.expected is None else draft.file.snapshot(self.expected)
        if self.expected is not None and then is None:
            # Expired: what was there is no longer known.
            raise head_conflict(self._arg, self.expected, current)
        changed = changed_since(draft, layout, keys, then)
        if changed is not None:
            raise head_conflict(self._arg, self.expected, draft.file.snapshot(changed) or current)


class IcebergAppendIfEmpty(IcebergAppend):
    """Adds the operation's files to a table without data; any other is refused (P5, error-if-exists).

    What others have changed otherwise, such as the table's properties, is built upon.
    """

    def check(self, draft: Draft, layout: Layout, output: JobsOutput, arg: OperationArg) -> None:
        """Refuse a table with data."""
        found = data_of(draft.file, draft.io)
        if found is not None:
            raise not_empty(arg.table, found)


class IcebergAppendOrIgnore(IcebergAppend):
    """Adds the operation's files to a table without data, and does nothing to any other (P5, ignore)."""

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`IcebergStep`."""
        if not is_ignored(context):
            return super().prepare(context)
        # That there was data when the operation ended is to be true in that very transaction.
        return Contribution(
            txn=Txn((unchanged(context.head),)), facts={IGNORED: True, "rows": 0, "files": 0, "bytes": 0}
        )
