"""The step that publishes a deletion: files with deleted rows are replaced by their remaining rows.

It builds on the table's present content; concurrent appends stay and are not examined: the rows to delete are
those of the snapshot that the operation began on. If one of their files is gone, or rows of it were deleted
or restored, the state of the rows is unknown: nothing is published, and the operation fails with a conflict.
"""

from __future__ import annotations

from base64 import b85decode, b85encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import FileScanTask

from distop.commit.contract import Contribution, FinishContext
from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.iceberg.append import IcebergStep, SnapshotContent
from distop.lake.iceberg.snapshots import Draft
from distop.lake.iceberg.takeover import JobsOutput, take_over
from distop.lake.layout.model import Layout
from distop.lake.rewriting.plan import Concerned, Leaving, SnapshotPlan, concerned, snapshot_plan
from distop.lake.rewriting.replace_partitions import (
    Deletes,
    FilePartitions,
    Located,
    areas_of,
    files_changed,
    live_manifests,
)
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

    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """Replaces the files that contain rows of the predicate by those of the jobs."""
        arg = self._view.arg
        plan = snapshot_plan(arg)
        affected = concerned(arg) if plan.snapshot else Concerned()
        changed = Changed.of(self._view, [*affected.jobs, *self.without_files], plan)
        leaving = {file.path: file for file in (*affected.whole, *changed.files)}
        if not leaving and output.empty:
            return None
        live = live_manifests(draft.base.current_snapshot(), draft.io)
        areas = areas_of(draft.base, [file.partition for file in leaving.values()])
        located = Located(draft, live, leaving.keys(), areas)
        if located.there.keys() != leaving.keys() or not _rows_are_those_of(draft, live, affected, changed):
            raise files_changed(
                arg, draft, plan.snapshot_id, f"in which {arg.id} has found rows", "nothing was changed"
            )
        replaced = located.take_out(leaving.keys(), snapshot_id)
        if replaced.files != len(leaving) or output.rows + changed.removed != changed.read + changed.added:
            raise PreconditionFailed(
                f"{arg.id} had to replace {len(leaving)} files, and found {replaced.files}; of "
                f"{changed.read} rows it has removed {changed.removed}, and it has written {output.rows}"
            )
        added = take_over(draft, layout, output, snapshot_id)
        return replaced.replaced_by(draft, output, added, snapshot_id, self.row_facts(affected, changed))

    def row_facts(self, affected: Concerned, changed: Changed) -> dict[str, Any]:
        """Facts about the rows."""
        return {
            "removedRows": changed.removed + sum(file.rows for file in affected.whole),
            "droppedFiles": len(affected.whole),
        }


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

    def row_facts(self, affected: Concerned, changed: Changed) -> dict[str, Any]:
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
    """Rows that jobs without files of the table have added."""

    @classmethod
    def of(cls, view: OperationView, jobs: Sequence[Sequence[FileScanTask]], plan: SnapshotPlan) -> Changed:
        """By the files of each job."""
        changed = cls()
        places = FilePartitions(plan.metadata) if any(jobs) else None
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
        places: FilePartitions | None,
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


def _rows_are_those_of(
    draft: Draft, live: Sequence[ManifestFile], affected: Concerned, changed: Changed
) -> bool:
    """Whether no rows of the files that were read were deleted or restored meanwhile."""
    now = Deletes(draft.base, draft.io, live)
    if not changed.delete_files <= now.paths:
        return False
    places = FilePartitions(draft.base)
    # Not as planned: the column of a partition may have been widened since.
    touched = {places.of(file) for file in changed.data_files}
    for entry in now.entries:
        file = entry.data_file
        if file.file_path in affected.delete_files or not touched:
            continue
        if now.is_everywhere(entry) or places.of(file) in touched:
            return False
    return True
