"""One job of a deletion: look for the rows in some files, and write anew what remains of those that have any.

Each file is read twice. First the columns that the predicate speaks of: most files that may hold such a row
hold none, and stay as they are. Then the whole file, if some rows go and others stay.
"""

from __future__ import annotations

from base64 import b85encode
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import FileScanTask

from distop.commit.deleting.plan import DeletePlan, concerned_shared
from distop.commit.deleting.publish import CHANGED, READ, REMOVED
from distop.commit.writing.file_lists import IcebergFileList
from distop.commit.writing.writer import StagedWriter
from distop.errors import JobFailed, PreconditionFailed
from distop.operations.job import JobContext
from distop.spark_jobs.tables.filters import arrow_filter, filter_columns, parse_filter
from distop.spark_jobs.tables.snapshot import PlannedFile, TableSnapshot


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``start_or_resume_job`` for its result."""
    reading = _Reading(job)
    layout = reading.plan.table_layout

    def path_for(suffix: str, folder: str) -> str:
        return job.staging_path(suffix, folder=folder)

    writer = StagedWriter(
        layout, path_for, storage=job.operation.storage, files=IcebergFileList(layout), inline=True
    )
    changed = read = removed = 0
    with writer:
        for at, task in enumerate(reading.tasks):
            rows, matching = reading.counts(task)
            if not matching:
                continue
            changed |= 1 << at
            read += rows
            removed += matching
            if matching == rows:
                continue
            for batch in reading.remaining(task):
                writer.write(batch)
            if writer.rows != read - removed:
                raise JobFailed(
                    f"of {rows} rows of {task.file.file_path} {matching} were to go, and others are left",
                    hint="distop doctor --deep; nothing was changed",
                )
        packed = changed.to_bytes((len(reading.tasks) + 7) // 8, "little")
        return writer.finish() | {READ: read, REMOVED: removed, CHANGED: b85encode(packed).decode()}


class _Reading:
    """The rows of a job's files as the table has them: by field id, whatever columns a file has."""

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self.plan = DeletePlan.of(job.operation)
        try:
            found = concerned_shared(job.operation)
        except PreconditionFailed as error:
            raise JobFailed(error.message, hint=error.hint) from error
        self.tasks: Sequence[FileScanTask] = found.jobs[int(job.partition)]
        # Files are read; which snapshot they are of is of no matter to that.
        self._snapshot = TableSnapshot(self.plan.metadata, None, job.operation.storage)
        where = parse_filter(self.plan.where)
        # What the predicate does not say of a row, one column that every file has can be counted by.
        names = filter_columns(where) or {self._snapshot.schema.columns[0].name}
        self._columns = sorted(names)
        self._matches = arrow_filter(where, self._snapshot.schema)
        self._stays = pc.coalesce(pc.invert(self._matches), pc.scalar(True))
        self._wanted = self.plan.table_layout.arrow_schema

    def counts(self, task: FileScanTask) -> tuple[int, int]:
        """How many rows a file has, and how many of them go."""
        rows = matching = 0
        for batch in self._batches(task, self._columns):
            rows += batch.num_rows
            matching += _chosen(batch, self._matches).num_rows
        if not task.delete_files and rows != task.file.record_count:
            raise JobFailed(
                f"{task.file.file_path} holds {rows} rows, the table says {task.file.record_count}",
                hint="distop doctor --deep; nothing was changed",
            )
        return rows, matching

    def remaining(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The rows that stay, as they are written."""
        for batch in self._batches(task, None):
            for left in _chosen(batch, self._stays).to_batches():
                yield _as(left, self._wanted)

    def _batches(self, task: FileScanTask, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._snapshot.batches([PlannedFile.of(task)], columns=columns):
                self._job.raise_if_cancelled()
                yield batch
        except FileNotFoundError as error:
            raise JobFailed(
                f"a file is missing that snapshot {self.plan.snapshot_id} names: {error}",
                hint="was the snapshot expired, or the file removed? start the operation again",
                details={"file": task.file.file_path},
            ) from error


def _chosen(batch: pa.RecordBatch, condition: pc.Expression) -> pa.Table:
    return pa.Table.from_batches([batch]).filter(condition)


def _as(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Files of different writers differ in how they hold texts and lists."""
    if batch.schema.equals(wanted):
        return batch
    columns = [batch.column(column.name).cast(column.type) for column in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
