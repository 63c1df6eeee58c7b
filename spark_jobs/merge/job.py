"""The jobs of a merge: those that examine files of the table, and the one that looks for new keys.

A job reads the whole batch, and first the keys of its files: most contain none of the batch's, and stay as
they are, unread if their statistics prove it. The others are rewritten. Only one job can find the new keys in
the batch: it reads the keys of all files that may contain some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import FileScanTask

from distop.errors import JobFailed
from distop.lake.layout.model import Layout
from distop.lake.predicates.binding import within
from distop.lake.predicates.proofs import Pruning
from distop.lake.rewriting.publish import ADDED, READ, REMOVED, changed_files
from distop.lake.writing.writer import StagedWriter
from distop.operations.job import JobContext
from distop.spark_jobs.delete.reading import TableRows, files_of
from distop.spark_jobs.merge.batch import Batch, Places
from distop.spark_jobs.merge.plan import MergePlan


class Merging:
    """One job.

    Parameters
    ----------
    check:
        Checks rows of the batch before they are written; raises if they are not allowed.
    facts:
        About the source of the batch, which all jobs read; one reports them.
    """

    def __init__(
        self,
        job: JobContext,
        plan: MergePlan,
        layout: Layout,
        batch: Batch,
        writer: StagedWriter,
        check: Callable[[pa.Table], None],
        facts: Mapping[str, int],
    ) -> None:
        self._batch, self._writer, self._check = batch, writer, check
        self._facts = {"rowsRead": batch.read, **facts}
        self._jobs: list[list[FileScanTask]] = []
        if plan.snapshot:
            self._jobs = files_of(job).jobs
            self._rows = TableRows(job, layout)
            self._may_hold = Pruning(self._rows.metadata, within(self._rows.schema, batch.bounds())).file

    def run(self, job: int) -> dict[str, Any]:
        """Run it; return its part of the result.

        Raises :class:`~distop.errors.JobFailed` if a file of the table is missing, or differs from the
        table's metadata.
        """
        return self._change(self._jobs[job]) if job < len(self._jobs) else self._insert()

    def _change(self, tasks: Sequence[FileScanTask]) -> dict[str, Any]:
        changed: list[int] = []
        read = removed = added = 0
        for at, task in enumerate(tasks):
            if not self._concerned(task):
                continue
            rows = self._read(task, self._batch.compared)
            go, come = self._batch.changes(rows)
            if not len(go):
                continue
            changed.append(at)
            read, removed = read + rows.num_rows, removed + len(go)
            if len(go) < rows.num_rows:
                for batch in _remaining(self._rows.whole(task), go):
                    self._writer.write(self._rows.as_written(batch))
            if self._writer.rows != read - removed + added:
                raise JobFailed(
                    f"of {rows.num_rows} rows of {task.file.file_path} {len(go)} match, "
                    "but another number was removed",
                    hint="distop doctor --deep; nothing was changed",
                )
            added += self._write(come)
        return {READ: read, REMOVED: removed, ADDED: added, **changed_files(changed, len(tasks))}

    def _insert(self) -> dict[str, Any]:
        tasks = [task for tasks in self._jobs for task in tasks if self._concerned(task)]
        added = self._write(self._batch.without(self._read(task, self._batch.keys) for task in tasks))
        return {READ: 0, REMOVED: 0, ADDED: added, **changed_files((), 0), **self._facts}

    def _concerned(self, task: FileScanTask) -> bool:
        return len(self._batch) > 0 and self._may_hold(task.file)

    def _read(self, task: FileScanTask, columns: pa.Schema) -> pa.Table:
        """Some columns of a file; their types are those of its writer."""
        batches = [batch.select(columns.names) for batch in self._rows.columns(task, columns.names)]
        return pa.Table.from_batches(batches, batches[0].schema if batches else columns)

    def _write(self, places: Places) -> int:
        for rows in self._batch.rows(places):
            self._check(rows)
            self._writer.write(rows)
        return len(places)


def _remaining(batches: Iterator[pa.RecordBatch], go: Places) -> Iterator[pa.RecordBatch]:
    """The remaining rows; ``go`` are the positions of the others, in order."""
    first = 0
    for batch in batches:
        begin, end = np.searchsorted(go, [first, first + batch.num_rows])
        stays = np.ones(batch.num_rows, dtype=bool)
        stays[go[begin:end] - first] = False
        first += batch.num_rows
        yield batch if begin == end else batch.filter(pa.array(stays))
