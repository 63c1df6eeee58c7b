"""A deletion: its plan, and its jobs. Each looks for the rows in some files, and rewrites the rest of those
that have any.

Each file is read twice. First the columns of the predicate: most files that may contain such a row contain
none, and stay as they are. Then the whole file, if some rows are deleted and others stay. Rows come in the
table's schema: by field id, whatever columns a file has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from distop.errors import JobFailed, PreconditionFailed
from distop.lake.iceberg.branches import branch_snapshot
from distop.lake.iceberg.metadata_files import only_appended, present_file
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.partitioning import Partitioner
from distop.lake.predicates.binding import chosen, others, predicate_of
from distop.lake.rewriting.plan import (
    Concerned,
    DeletePlan,
    concerned_by,
    concerned_shared,
    planned_on,
    snapshot_plan,
)
from distop.lake.rewriting.publish import READ, REMOVED, changed_files
from distop.lake.storage.storage import storage_of
from distop.lake.writing.file_lists import IcebergFileList
from distop.lake.writing.writer import StagedWriter
from distop.operations import JobContext, Plan, PlanRequest, convert
from distop.operations.plans import plan_of
from distop.spark_jobs.tables import PlannedFile, TableSnapshot

JOB_BYTES = 512 << 20
"""About how many bytes on disk a job reads; more if there would be too many jobs."""
WANTED_JOBS = 5000


def plan_deletion(request: PlanRequest, condition: str, branch: str | None) -> tuple[DeletePlan, Concerned]:
    """The plan, and the files that have or may have such rows. Raises as :meth:`.operation.Delete.plan`."""
    if (file := present_file(request)) is None:
        return DeletePlan(where=condition), Concerned()
    metadata = file.metadata
    layout = Layout.of(metadata)
    Partitioner(layout.schema, layout.spec)  # raises if it cannot split rows as the table does
    where = predicate_of(condition, layout.schema, "where")
    # An empty name is refused: it may be a variable that was not set, and never means the table itself.
    snapshot = metadata.current_snapshot() if branch is None else branch_snapshot(request, branch)
    nothing = DeletePlan(where=condition, branch=branch or "")
    if snapshot is None:
        return nothing, Concerned()
    job_bytes = bytes_per_job(snapshot)
    io = file_io(metadata.location, storage_of(request.table))
    concerned = concerned_by(metadata, snapshot, io, where, job_bytes)
    if not concerned.whole and not concerned.jobs:
        nothing.snapshot_id = str(snapshot.snapshot_id)
        return nothing, concerned
    fixed = {**planned_on(metadata, snapshot), "layout": layout.to_json(), "digest": concerned.digest}
    return msgspec.structs.replace(nothing, **fixed, job_bytes=job_bytes), concerned


def plan_holds(plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
    """Whether a plan may be started on another head: only appends were published since."""
    if made_on.head is None or (file := present_file(request)) is None:
        return False
    made = convert(plan.argument, DeletePlan)
    since = None if made.snapshot_id is None else int(made.snapshot_id)
    snapshot = branch_snapshot(request, made.branch) if made.branch else file.metadata.current_snapshot()
    return only_appended(file, snapshot, since)


def bytes_per_job(snapshot: Snapshot) -> int:
    """About how many bytes of a snapshot a job reads."""
    total = str(snapshot.summary["total-files-size"] if snapshot.summary else "")
    return max(JOB_BYTES, int(total) // WANTED_JOBS if total.isdecimal() else 0)


def files_of(job: JobContext) -> Concerned:
    """The files of its operation. Raises :class:`~distop.errors.JobFailed` if they no longer exist."""
    try:
        return concerned_shared(job.operation)
    except PreconditionFailed as error:
        raise JobFailed(error.message, hint=error.hint) from error


class TableRows:
    """Reads files of the snapshot that an operation began on.

    Parameters
    ----------
    layout:
        The output: whole rows come with its columns.
    """

    def __init__(self, job: JobContext, layout: Layout) -> None:
        self._job = job
        self._plan = snapshot_plan(job.operation)
        # Files are read; their snapshot does not matter for that.
        self._snapshot = TableSnapshot(self._plan.metadata, None, job.operation.storage)
        self._wanted = layout.arrow_schema

    @property
    def metadata(self) -> TableMetadata:
        """The metadata of the table when the operation began."""
        return self._plan.metadata

    @property
    def schema(self) -> Schema:
        return self._snapshot.schema

    def columns(self, task: FileScanTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows.

        Raises :class:`~distop.errors.JobFailed` if the file is missing, or holds more or fewer than the table
        says.
        """
        rows = 0
        for batch in self._batches(task, names):
            rows += batch.num_rows
            yield batch
        if not task.delete_files and rows != task.file.record_count:
            raise JobFailed(
                f"{task.file.file_path} holds {rows} rows, but the table says {task.file.record_count}",
                hint="distop cluster doctor --deep; nothing was changed",
            )

    def whole(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """All columns of all rows. Raises :class:`~distop.errors.JobFailed` if the file is missing."""
        return self._batches(task, None)

    def as_written(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Files of different writers differ in the types for texts and lists."""
        if batch.schema.equals(self._wanted):
            return batch
        columns = [batch.column(column.name).cast(column.type) for column in self._wanted]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _batches(self, task: FileScanTask, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        names = None if columns is None else list(columns)
        try:
            for batch in self._snapshot.batches([PlannedFile.of(task)], columns=names):
                self._job.raise_if_cancelled()
                yield batch
        except FileNotFoundError as error:
            raise JobFailed(
                f"a file is missing that snapshot {self._plan.snapshot_id} names: {error}",
                hint="was the snapshot expired, or the file removed? start the operation again",
                details={"file": task.file.file_path},
            ) from error


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``run_job`` for its result."""
    plan = plan_of(job.operation, DeletePlan, "plan of a deletion")
    layout = Layout.from_json(plan.layout)
    reading = _MatchedRows(job, plan, layout)
    tasks = files_of(job).jobs[int(job.partition)]

    def path_for(suffix: str, folder: str) -> str:
        return job.staging_path(suffix, folder=folder)

    writer = StagedWriter(
        layout, path_for, storage=job.operation.storage, files=IcebergFileList(layout), inline=True
    )
    changed: list[int] = []
    read = removed = 0
    with writer:
        for at, task in enumerate(tasks):
            rows, matching = reading.counts(task)
            if not matching:
                continue
            changed.append(at)
            read += rows
            removed += matching
            if matching == rows:
                continue
            for batch in reading.remaining(task):
                writer.write(batch)
            if writer.rows != read - removed:
                raise JobFailed(
                    f"of {rows} rows of {task.file.file_path} {matching} match, "
                    "but another number was removed",
                    hint="distop cluster doctor --deep; nothing was changed",
                )
        return writer.finish() | {READ: read, REMOVED: removed, **changed_files(changed, len(tasks))}


class _MatchedRows:
    """Evaluates a predicate on the rows of files."""

    def __init__(self, job: JobContext, plan: DeletePlan, layout: Layout) -> None:
        self._rows = TableRows(job, layout)
        self._where = predicate_of(plan.where, self._rows.schema, "where")
        # A predicate without columns needs one column that every file has, for counting rows.
        self._columns = self._where.columns or [self._rows.schema.columns[0].name]

    def counts(self, task: FileScanTask) -> tuple[int, int]:
        """The number of rows in a file, and of rows to delete."""
        rows = matching = 0
        for batch in self._rows.columns(task, self._columns):
            rows += batch.num_rows
            matching += chosen(self._where, batch).num_rows
        return rows, matching

    def remaining(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The remaining rows, as they are written."""
        for batch in self._rows.whole(task):
            if (left := others(self._where, batch)).num_rows:
                yield self._rows.as_written(left)
