"""The step that publishes a deletion: files with deleted rows are replaced by their remaining rows.

It builds on the table's present content; concurrent appends stay and are not examined: the rows to delete are
those of the snapshot that the operation began on. If one of their files is gone, or rows of it were deleted
or restored, the state of the rows is unknown: nothing is published, and the operation fails with a conflict.
"""

from __future__ import annotations

from base64 import b85decode, b85encode
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries

from distop.commit.contract import ADOPTED_FROM, Contribution, FinishContext
from distop.errors import CorruptRecord, HeadConflict, PreconditionFailed
from distop.lake.iceberg.append import Change, IcebergStep, added_counts
from distop.lake.iceberg.content import is_live, removers, writer_of
from distop.lake.iceberg.snapshots import Draft, merged
from distop.lake.iceberg.takeover import JobsOutput, manifests_of, take_over
from distop.lake.layout.model import Layout
from distop.lake.rewriting.deletes import Deletes
from distop.lake.rewriting.plan import Concerned, Leaving, SnapshotPlan, concerned, snapshot_plan
from distop.lake.rewriting.replace_partitions import Replaced, areas_of, take_out
from distop.lake.rewriting.rewrite_plan import Places
from distop.lake.storage.storage import FILES_AT_ONCE
from distop.operations.api import OperationView

READ, REMOVED, CHANGED, ADDED = "read", "removed", "changed", "added"
"""Fields of a job's result: rows in the files it changed, rows deleted from them, which of its files these
are (a bit for each, in base 85), and new rows that it has written."""


class IcebergDelete(IcebergStep):
    """Deletes the rows for which the predicate of the plan is true.

    The operation's argument is a :class:`~distop.lake.rewriting.plan.DeletePlan`.
    """

    without_files: ClassVar[list[list[FileScanTask]]] = []
    """Further jobs, after those that read files of the table."""

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`IcebergStep`.

        Raises
        ------
        HeadConflict
            Others have removed a file meanwhile that holds rows to be deleted, or have changed which of its
            rows exist.
        PreconditionFailed
            The jobs' results contradict each other, or the snapshot that the operation began on is gone.
        """
        self._view = context.view
        none = {"removedRows": 0, "removedFiles": 0, "droppedFiles": 0, "rows": 0, "files": 0, "bytes": 0}
        if not snapshot_plan(context.view.arg).snapshot:
            return Contribution(facts=none)
        contribution = super().prepare(context)
        return replace(contribution, facts=none | dict(contribution.facts))

    def change(self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int) -> Change | None:
        """See :class:`IcebergStep`."""
        arg = self._view.arg
        plan = snapshot_plan(arg)
        found = concerned(arg) if plan.snapshot else Concerned()
        changed = Changed.of(self._view, [*found.jobs, *self.without_files], plan)
        leaving = {file.path: file for file in (*found.whole, *changed.files)}
        if not leaving and output.empty:
            return None
        standing = _Standing(draft, leaving)
        if not (standing.has_all and standing.rows_are_those_of(found, changed)):
            raise self._conflict(draft, plan)
        replaced = Replaced(untouched=standing.others)
        for spec_id, manifests in standing.holding.items():
            spec = draft.base.specs()[spec_id]
            take_out(
                draft, spec, manifests, lambda e: e.data_file.file_path in leaving, replaced, snapshot_id
            )
        if replaced.files != len(leaving) or output.rows + changed.removed != changed.read + changed.added:
            raise PreconditionFailed(
                f"{arg.id} had to replace {len(leaving)} files, and found {replaced.files}; of "
                f"{changed.read} rows it has removed {changed.removed}, and it has written {output.rows}"
            )
        added = take_over(draft, layout, output, snapshot_id)
        facts: dict[str, Any] = {
            ADOPTED_FROM: output.adopt_from,
            "removedFiles": replaced.files,
            **self.row_facts(found, changed),
        }
        return Change(
            manifests=[*added, *replaced.rewritten, *merged(draft, replaced.untouched, snapshot_id)],
            summary=_summary(draft, output, replaced),
            facts=facts,
        )

    def row_facts(self, found: Concerned, changed: Changed) -> dict[str, Any]:
        """Facts about the rows."""
        return {
            "removedRows": changed.removed + sum(file.rows for file in found.whole),
            "droppedFiles": len(found.whole),
        }

    def _conflict(self, draft: Draft, plan: SnapshotPlan) -> HeadConflict:
        current = draft.base.current_snapshot()
        first = next(iter(removers(draft.file, current, plan.snapshot_id)), None)
        arg, found = self._view.arg, "" if first is None else str(first.snapshot_id)
        return HeadConflict(
            f"files in which {arg.id} has found rows to delete, of snapshot {plan.snapshot_id} of table "
            f"{arg.table!r}, have changed: snapshot {found or 'none'}, written by "
            f"{writer_of(first)}, is newer",
            hint="nothing was changed; start the operation again, on the table's present content",
            details={"expected": str(plan.snapshot_id), "snapshot": found, "by": writer_of(first)},
        )


class IcebergMerge(IcebergDelete):
    """Replaces the rows whose keys came in by the new ones: for the files of an ingest in mode ``merge``. Its
    last job has looked for new keys."""

    without_files: ClassVar[list[list[FileScanTask]]] = [[]]

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`IcebergDelete`; an empty table is one without such keys."""
        self._view = context.view
        contribution = IcebergStep.prepare(self, context)
        none = {"insertedRows": 0, "updatedRows": 0, "deletedRows": 0, "removedFiles": 0}
        return replace(contribution, facts=none | dict(contribution.facts))

    def row_facts(self, found: Concerned, changed: Changed) -> dict[str, Any]:
        """Facts about the rows."""
        updated = changed.added - changed.inserted
        return {
            "insertedRows": changed.inserted,
            "updatedRows": updated,
            "deletedRows": changed.removed - updated,
        }


@dataclass(kw_only=True)
class Changed:
    """The files that the jobs have changed."""

    files: list[Leaving] = field(default_factory=list)
    delete_files: set[str] = field(default_factory=set)
    """How the jobs knew which of their rows were deleted before."""
    data_files: list[DataFile] = field(default_factory=list)
    read: int = 0
    removed: int = 0
    added: int = 0
    inserted: int = 0
    """Those of jobs without files."""

    @classmethod
    def of(cls, view: OperationView, jobs: Sequence[Sequence[FileScanTask]], plan: SnapshotPlan) -> Changed:
        """By the files of each job."""
        changed = cls()
        places = Places(plan.metadata) if any(jobs) else None
        for name, tasks in zip(view.arg.partition_names(), jobs, strict=True):
            job = view.jobs[name]
            if job.state == "success":
                changed._add(view, name, job.result, tasks, places)
        return changed

    def _add(
        self,
        view: OperationView,
        name: str,
        result: Mapping[str, Any],
        tasks: Sequence[FileScanTask],
        places: Places | None,
    ) -> None:
        try:
            chosen = chosen_of(str(result[CHANGED]), tasks)
            read, removed, written = int(result[READ]), int(result[REMOVED]), int(result["rows"])
            added = int(result.get(ADDED, 0))
        except (KeyError, ValueError) as error:
            raise CorruptRecord(
                f"job {name} of {view.arg.id} reports an invalid deletion result: {error!r}"
            ) from error
        held = sum(task.file.record_count for task in chosen)
        exact = not any(task.delete_files for task in chosen)
        if read + added != removed + written or read > held or (exact and read != held):
            raise PreconditionFailed(
                f"job {name} of {view.arg.id} has read {read} rows of files of {held}, removed {removed} and "
                f"written {written}"
            )
        for task in chosen:
            assert places is not None
            self.files.append(Leaving(task.file.file_path, places.of(task.file), task.file.record_count))
            self.data_files.append(task.file)
            self.delete_files |= {file.file_path for file in task.delete_files}
        self.read += read
        self.removed += removed
        self.added += added
        self.inserted += 0 if tasks else added


def changed_files(places: Iterable[int], files: int) -> dict[str, str]:
    """The bit field of a job's result that says which of its files it has changed."""
    bits = sum(1 << at for at in places)
    return {CHANGED: b85encode(bits.to_bytes((files + 7) // 8, "little")).decode()}


def chosen_of(packed: str, tasks: Sequence[FileScanTask]) -> list[FileScanTask]:
    """The files that a job's result names. Raises ``ValueError``."""
    bits = int.from_bytes(b85decode(packed), "little")
    if bits >> len(tasks):
        raise ValueError(f"it names more than {len(tasks)} files")
    return [task for at, task in enumerate(tasks) if bits >> at & 1]


class _Standing:
    """The files to replace that the table still has."""

    def __init__(self, draft: Draft, leaving: Mapping[str, Leaving]) -> None:
        self.holding: dict[int, list[ManifestFile]] = {}
        """Manifests that list some of them, by partition spec."""
        self.others: list[ManifestFile] = []
        self._draft = draft
        self._live = [one for one in manifests_of(draft.base.current_snapshot(), draft.io) if is_live(one)]
        areas = areas_of(draft.base, [file.place for file in leaving.values()])
        there: set[str] = set()

        def listed(manifest: ManifestFile) -> set[str]:
            area = areas.get(manifest.partition_spec_id)
            if manifest.content != ManifestContent.DATA or area is None or not area.may_hold(manifest):
                return set()
            entries = manifest.fetch_manifest_entry(draft.io)
            return leaving.keys() & {entry.data_file.file_path for entry in entries}

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="manifests") as pool:
            for manifest, paths in zip(self._live, pool.map(listed, self._live), strict=True):
                if paths:
                    self.holding.setdefault(manifest.partition_spec_id, []).append(manifest)
                else:
                    self.others.append(manifest)
                there |= paths
        self.has_all = there == leaving.keys()

    def rows_are_those_of(self, found: Concerned, changed: Changed) -> bool:
        """Whether no rows of the files that were read were deleted or restored meanwhile."""
        now = Deletes(self._draft.base, self._draft.io, self._live)
        if not changed.delete_files <= now.paths:
            return False
        places = Places(self._draft.base)
        # Not as planned: the column of a partition may have been widened since.
        touched = {places.of(file) for file in changed.data_files}
        for entry in now.entries:
            file = entry.data_file
            if file.file_path in found.delete_files or not touched:
                continue
            if now.is_everywhere(entry) or places.of(file) in touched:
                return False
        return True


def _summary(draft: Draft, output: JobsOutput, replaced: Replaced) -> Summary:
    parent = draft.base.current_snapshot()
    operation = Operation.DELETE
    if output.files:
        operation = Operation.OVERWRITE if replaced.files else Operation.APPEND
    return update_snapshot_summaries(
        Summary(operation=operation, **added_counts(output), **replaced.counts()),
        parent.summary if parent else None,
    )
