"""The rows of a job's files in the table's schema: by field id, whatever columns a file has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from distop.errors import JobFailed, PreconditionFailed
from distop.lake.layout.model import Layout
from distop.lake.rewriting.plan import Concerned, concerned_shared, snapshot_plan
from distop.operations.job import JobContext
from distop.spark_jobs.tables.snapshot import PlannedFile, TableSnapshot


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
        """Of the table, when the operation began."""
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
                hint="distop doctor --deep; nothing was changed",
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
