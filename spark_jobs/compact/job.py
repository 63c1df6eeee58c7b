"""One job of a compaction: read some files of a partition, sort their rows if requested, write new files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.typedef import Record

from distop.errors import JobFailed
from distop.lake.layout.model import Layout
from distop.lake.rewriting.replace_files import DELETED, MISSING, RewriteDelete, RewriteJob, RewritePlan
from distop.lake.writing.sorting import keys_of, sort_rows
from distop.lake.writing.writer import ROW_GROUP_BYTES, StagedWriter
from distop.operations import JobContext
from distop.spark_jobs.compact.planning import file_count
from distop.spark_jobs.tables import PlannedFile, TableSnapshot

MAX_PATH_SHOWN = 400
SLACK = 1.05
"""Tolerance of file sizes, so that the last file is not tiny."""


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``run_job`` for its result."""
    plan = RewritePlan.of(job.operation)
    order = plan.order
    layout = plan.table_layout if order is None else replace(plan.table_layout, sort_order=order)
    task = plan.by_name(job.operation)[job.partition]
    reading = _CompactedRows(job, plan, task, layout)

    def path_for(suffix: str, folder: str) -> str:
        return job.staging_path(suffix, folder=folder)

    target = _target(task, plan.target_file_bytes)
    writer = StagedWriter(
        layout,
        path_for,
        storage=job.operation.storage,
        inline=True,
        in_order=order is not None,
        target_file_bytes=target,
        # Files end where a row group does.
        row_group_bytes=min(ROW_GROUP_BYTES, target),
    )
    with writer:
        try:
            rows = reading.batches()
            if order is not None:
                scratch = job.scratch_path()
                rows = sort_rows(rows, keys_of(order, layout.schema) or (), scratch)
            for batch in rows:
                job.raise_if_cancelled()
                writer.write(batch)
        except _Gone as error:
            # The process that removed it from the table may also have deleted it: the commit checks that.
            writer.abort()
            return {"rows": 0, "files": 0, "bytes": 0, MISSING: str(error)[-MAX_PATH_SHOWN:]}
        return {**writer.finish(), DELETED: reading.deleted}


def _target(task: RewriteJob, target: int) -> int:
    """File size that gives files of about equal size for a job."""
    size = sum(file.size for file in task.files)
    return max(1, int(SLACK * size / file_count(size, target)))


class _Gone(Exception):
    """A file to read does not exist."""


class _CompactedRows:
    """The rows of a job's files in the table's schema: by field id, whatever columns a file has."""

    def __init__(self, job: JobContext, plan: RewritePlan, task: RewriteJob, layout: Layout) -> None:
        self._job, self._plan, self._task, self._layout = job, plan, task, layout
        self.deleted = 0
        """Rows of the files read so far that their delete files have removed."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        layout, location = self._layout, self._job.operation.location
        # A reader needs only the layout from the table's metadata, and the partition specs of its files.
        specs = [each.spec for each in self._plan.layouts.values()]
        metadata = layout.new_metadata(location).model_copy(update={"partition_specs": specs})
        snapshot = TableSnapshot(metadata, None, self._job.operation.storage)
        spec, values = self._plan.values(self._plan.partitions[self._task.partition])
        wanted = layout.arrow_schema
        deletes = [_delete_file(delete, layout.spec.spec_id) for delete in self._plan.deletes]
        for file, path in zip(self._task.files, self._plan.paths(self._task), strict=True):
            data_file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=path,
                file_format=FileFormat.PARQUET,
                partition=values,
                record_count=file.rows,
                file_size_in_bytes=file.size,
            )
            data_file.spec_id = spec.spec_id
            applied = {deletes[number] for number in file.delete_numbers}
            batches = snapshot.batches([PlannedFile.of(FileScanTask(data_file, applied))])
            rows = 0
            while (batch := _next(batches, path)) is not None:
                self._job.raise_if_cancelled()
                rows += batch.num_rows
                yield _as(batch, wanted)
            if rows > file.rows or (rows < file.rows and not applied):
                raise JobFailed(
                    f"{path} holds {rows} rows, but the table says {file.rows}",
                    hint="distop cluster doctor --deep; nothing was changed",
                )
            self.deleted += file.rows - rows


def _delete_file(delete: RewriteDelete, spec_id: int) -> DataFile:
    content = DataFileContent.EQUALITY_DELETES if delete.fields else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content,
        file_path=delete.path,
        file_format=FileFormat(delete.format),
        partition=Record(),
        equality_ids=delete.fields or None,
    )
    file.spec_id = spec_id
    return file


def _next(batches: Iterator[pa.RecordBatch], path: str) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except FileNotFoundError as error:
        raise _Gone(path) from error


def _as(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Files of different writers differ in the types for texts and lists; runs of a sort may not."""
    if batch.schema.equals(wanted):
        return batch
    columns = [batch.column(column.name).cast(column.type) for column in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
