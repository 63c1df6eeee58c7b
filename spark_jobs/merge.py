"""Merging rows of a batch with rows of a table, by keys: the plan, the batch, and the jobs of ingest's mode
``merge``.

The plan says which rows of the table are examined, and their possible changes. Some jobs examine files of the
table, and one looks for new keys. A job reads the whole batch, and first the keys of its files: most contain
none of the batch's, and stay as they are, unread if their statistics prove it. The others are rewritten. Only
one job can find the new keys in the batch: it reads the keys of all files that may contain some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask

from distop.errors import JobFailed
from distop.lake.iceberg.metadata_files import present_file
from distop.lake.layout.model import Layout, file_io
from distop.lake.predicates.binding import ALL, at_least, within
from distop.lake.predicates.proofs import Pruning
from distop.lake.rewriting.plan import SnapshotPlan, concerned_by, planned_on
from distop.lake.rewriting.publish import ADDED, READ, REMOVED, changed_files
from distop.lake.storage.storage import storage_of
from distop.lake.writing.sorting import Key, positions
from distop.lake.writing.writer import StagedWriter
from distop.operations import JobContext, PlanRequest
from distop.operations.arguments import invalid
from distop.spark_jobs.delete.job import TableRows, bytes_per_job, files_of

_KEYS = (
    iceberg.BooleanType,
    iceberg.DateType,
    iceberg.DecimalType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.StringType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
)
"""Types whose values are exactly comparable."""
_ORDERED = (
    iceberg.DateType,
    iceberg.DecimalType,
    iceberg.DoubleType,
    iceberg.FloatType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.StringType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.TimeType,
)
"""Types whose values may say how new a row is."""


class MergePlan(SnapshotPlan, kw_only=True):
    """See the module. The conditions are predicates on the rows of the batch; NULL counts as false."""

    keys: list[str]
    """The key columns, which match rows of the batch with rows of the table."""
    delete_where: str = ""
    """Rows for which this is true delete those of the table; empty: none."""
    update_where: str = ""
    """Rows for which this is true replace those of the table; empty: all others."""
    insert_where: str = ""
    """Rows for which this is true are added if the table has none with their key; empty: all others."""
    order_by: str = ""
    """The column that says how new a row is; empty: the last row is the newest. See
    :class:`~distop.spark_jobs.merge.MergeBatch`."""


def plan_merge(request: PlanRequest, plan: MergePlan) -> tuple[MergePlan, int]:
    """The plan with the table's snapshot, and the number of its jobs: those that read the table's files, and
    one that looks for keys that the table does not have.

    Raises :class:`~distop.errors.PreconditionFailed` if a file of the table cannot be read here.
    """
    head, file = request.head, present_file(request)
    if head is None or file is None or head.snapshot_id is None:
        return plan, 1
    metadata, snapshot = file.metadata, file.snapshot(head.snapshot_id)
    assert snapshot is not None
    job_bytes = bytes_per_job(snapshot)
    io = file_io(metadata.location, storage_of(request.table))
    concerned = concerned_by(metadata, snapshot, io, ALL, job_bytes, all_go=plan.all_go)
    if not concerned.jobs:
        return plan, 1
    fixed = {**planned_on(metadata, snapshot), "job_bytes": job_bytes, "digest": concerned.digest}
    return msgspec.structs.replace(plan, **fixed), len(concerned.jobs) + 1


def check_merge(keys: list[str], order_by: str | None, schema: Schema) -> None:
    """Raises :class:`~distop.errors.InvalidArgument` unless a table can be merged by these columns."""
    known = {column.name: column.field_type for column in schema.columns}
    for key in keys:
        if key not in known:
            raise invalid("keys", f"there is no column {key!r}", f"the columns are {', '.join(known)}")
        if not isinstance(known[key], _KEYS):
            raise invalid(
                "keys",
                f"column {key!r} is {known[key]}, which cannot be a key",
                "keys must be integers, decimals, texts, booleans, dates or timestamps",
            )
    if order_by is None:
        return
    if order_by not in known:
        raise invalid(
            "order_by",
            f"the table has no column {order_by!r}, so nothing says how new its rows are",
            f"add it with distop table alter --add, or order by one of {', '.join(known)}",
        )
    if not isinstance(known[order_by], _ORDERED):
        raise invalid(
            "order_by",
            f"column {order_by!r} is {known[order_by]}, which has no order",
            "order by numbers, texts, dates, times or timestamps",
        )
    if order_by in keys:
        raise invalid("order_by", f"column {order_by!r} is a key: it is equal in all rows of a key")


MAX_BYTES = 1 << 30
"""Most bytes of a batch in memory: each running job has one."""

BLOCK_ROWS = 1 << 16
"""Rows that are written at a time."""

DELETE, UPDATE, INSERT = "\0delete", "\0update", "\0insert"
"""Columns after those of the table: the effect of a row on those with its key, or on a table without one."""

_OWN, _THEIRS = "\0own", "\0theirs"

Places: TypeAlias = NDArray[np.int64]


class MergeBatch:
    """See the module.

    Parameters
    ----------
    tables:
        All rows in their order, with the columns ``DELETE``, ``UPDATE`` and ``INSERT``.
    keys:
        Key columns; equal in all of them means the same key.
    order_by:
        Of the rows of a key, the one with the greatest value of this column counts, and of several such the
        last one. It changes no row of the table with a greater value. NULL is less than all values. Empty:
        the last row of a key counts.

    Raises
    ------
    JobFailed
        A row has no key, or there are too many rows.
    """

    def __init__(
        self, tables: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str], order_by: str = ""
    ) -> None:
        self._names, self._order_by = list(keys), order_by
        kept, size = [], 0
        self.read = 0
        """Number of rows before one of each key was chosen."""
        for table in tables:
            self.read += table.num_rows
            size += table.nbytes
            if size > MAX_BYTES:
                raise JobFailed(
                    f"the rows to be merged take more than {MAX_BYTES >> 20:,} MiB of memory",
                    hint="merge fewer files at a time, or give --kafka-max-records-per-partition",
                )
            kept.append(table)
        rows = pa.concat_tables([schema.empty_table(), *kept]).combine_chunks()
        for name in keys:
            if missing := rows[name].null_count:
                raise JobFailed(
                    f"{missing:,} rows have no value in column {name!r}, which is a key",
                    hint="exclude them: --filter '... is not null'",
                )
        rows = rows.take(np.sort(self._newest(rows)))
        deletes, updates, inserts = (
            rows[name].to_numpy(zero_copy_only=False).astype(bool) for name in (DELETE, UPDATE, INSERT)
        )
        self._deletes, self._changes = deletes, deletes | updates
        self._new = inserts & ~deletes
        self._keys = _numbered(rows.select(self._names), _OWN)
        self.keys = rows.select(self._names).schema
        self.compared = rows.select([*self._names, order_by] if order_by else self._names).schema
        """The columns that decide which rows of a table are changed."""
        self._rows = rows.drop_columns([DELETE, UPDATE, INSERT])

    def changes(self, rows: pa.Table) -> tuple[Places, Places]:
        """Which of these rows of a table are deleted, in order; and which of the batch replace them, some
        perhaps several times.

        Parameters
        ----------
        rows:
            The columns of ``compared``.
        """
        theirs, own = self._pairs(rows)
        go = self._changes[own]
        if self._order_by:
            order = rows[self._order_by].cast(self.compared.field(self._order_by).type)
            go = go & at_least(self._rows[self._order_by].take(own), order.take(theirs)).to_numpy()
        theirs, own = theirs[go], own[go]
        return theirs, own[~self._deletes[own]]

    def rows(self, places: Places) -> Iterator[pa.Table]:
        """Some of the rows, in the table's schema, this many at a time."""
        for first in range(0, len(places), BLOCK_ROWS):
            yield self._rows.take(places[first : first + BLOCK_ROWS])

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """The least and the greatest value of each key column; none without rows."""
        bounds_of = {name: pc.min_max(self._keys[name]).as_py() for name in self._names if len(self._keys)}
        return {name: (bounds["min"], bounds["max"]) for name, bounds in bounds_of.items()}

    def without(self, held: Iterable[pa.Table]) -> Places:
        """Which rows are added to a table with exactly these keys."""
        new = self._new.copy()
        for keys in held:
            _, own = self._pairs(keys)
            new[own] = False
            if not new.any():
                break
        return np.flatnonzero(new)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def _newest(self, rows: pa.Table) -> Places:
        """The positions of the rows that count: of each key the newest."""
        keys, order = rows.select(self._names), None
        if self._order_by:
            numbered = _numbered(rows.select([self._order_by]), _OWN)
            order = positions(numbered, [Key(self._order_by), Key(_OWN)]).to_numpy()
            keys = keys.take(order)
        last = _numbered(keys, _OWN).group_by(self._names, use_threads=False).aggregate([(_OWN, "max")])
        places: Places = last[f"{_OWN}_max"].to_numpy()
        return places if order is None else order[places]

    def _pairs(self, keys: pa.Table) -> tuple[Places, Places]:
        """Equal keys: position in the table's rows, and in these; in the order of the table's."""
        cast = keys.select(self._names).cast(self.keys)
        joined = _numbered(cast, _THEIRS).join(self._keys, keys=self._names, join_type="inner")
        theirs, own = joined[_THEIRS].to_numpy(), joined[_OWN].to_numpy()
        order = np.argsort(theirs)
        return theirs[order], own[order]


def _numbered(keys: pa.Table, name: str) -> pa.Table:
    return keys.append_column(name, pa.array(np.arange(keys.num_rows, dtype=np.int64)))


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
        batch: MergeBatch,
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
                    hint="distop cluster doctor --deep; nothing was changed",
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
