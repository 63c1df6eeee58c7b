"""One job of a deletion: look for the rows in some files, and rewrite the rest of those that have any.

Each file is read twice. First the columns of the predicate: most files that may contain such a row contain
none, and stay as they are. Then the whole file, if some rows are deleted and others stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.table import FileScanTask

from distop.errors import JobFailed
from distop.lake.layout.model import Layout
from distop.lake.predicates.binding import predicate_of
from distop.lake.predicates.rows import chosen, others
from distop.lake.rewriting.plan import DeletePlan
from distop.lake.rewriting.publish import READ, REMOVED, changed_files
from distop.lake.writing.file_lists import IcebergFileList
from distop.lake.writing.writer import StagedWriter
from distop.operations.job import JobContext
from distop.operations.plans import plan_of
from distop.spark_jobs.delete.reading import TableRows, files_of


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``start_or_resume_job`` for its result."""
    plan = plan_of(job.operation, DeletePlan, "plan of a deletion")
    layout = Layout.from_json(plan.layout)
    reading = _Reading(job, plan, layout)
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
                    hint="distop doctor --deep; nothing was changed",
                )
        return writer.finish() | {READ: read, REMOVED: removed, **changed_files(changed, len(tasks))}


class _Reading:
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
