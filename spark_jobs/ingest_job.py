"""One job of an ingest: read the pieces of a split, convert, filter, write."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from distop.commit.layout import file_io
from distop.commit.outputs import output_of
from distop.commit.staging import quarantine_folder
from distop.errors import JobFailed
from distop.operations.job import JobContext
from distop.spark_jobs.audit import JobAudit
from distop.spark_jobs.bad_rows import (
    BadRowPolicy,
    Fail,
    Place,
    Quarantine,
    Rows,
    Unconvertible,
    convert_good_rows,
)
from distop.spark_jobs.column_types import convert
from distop.spark_jobs.formats import FileReader, FileUnusable, reader_for
from distop.spark_jobs.ingest_plan import FileEntry, IngestPlan
from distop.spark_jobs.row_filter import arrow_filter, parse_filter
from distop.spark_jobs.sources import OpenFile
from distop.spark_jobs.splits import Piece

MAX_RESULT_BYTES = 800
"""A job's record has room for 1 KiB, and holds the attempt's name and the time besides the result."""
QUARANTINE = "quarantine"
"""Field of the result: the file that bad rows are kept in, below the table's location."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows as the table takes them.

    Parameters
    ----------
    read:
        How many there were before the filter.
    source:
        URL of the file they are from.
    """

    read: int
    table: pa.Table
    source: str = ""


class TableRows:
    """From the columns of a source to those of the table: filter, projection, types."""

    def __init__(self, plan: IngestPlan) -> None:
        self._plan = plan
        self._schema: pa.Schema = plan.table_layout.arrow_schema
        self._targets = frozenset(plan.targets)

    @cached_property
    def _filter(self) -> Any:
        if self._plan.filter is None:
            return None
        return arrow_filter(parse_filter(self._plan.filter), Schema.model_validate(self._plan.columns))

    def none(self) -> pa.Table:
        """No rows."""
        return self._schema.empty_table()

    def of(self, source: pa.Table) -> Converted:
        """Rows for the table.

        Raises
        ------
        Unconvertible
            A value does not fit its column, or is missing where the table requires one.
        """
        kept = source if self._filter is None else source.filter(self._filter)
        columns = [self._column(kept, field) for field in self._schema]
        return Converted(source.num_rows, pa.table(columns, schema=self._schema))

    def _column(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name not in self._targets:
            return pa.nulls(rows.num_rows, field.type)
        values = convert(rows.column(field.name), field.type, field.name)
        if not field.nullable and values.null_count:
            raise Unconvertible(f"column {field.name!r} is required and has no value")
        return values


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see :meth:`distop.spark_jobs.ingest.Ingest.start_or_resume_job` for its result."""
    plan = IngestPlan.of(job.operation)
    policy = _policy(plan, job)
    split = SplitReader(plan, policy, job)
    with output_of(plan.output).writer(plan.table_layout, job) as writer, JobAudit(plan.rules, job) as audit:
        try:
            read = 0
            with closing(split.rows()) as blocks:
                for rows in blocks:
                    read += rows.read
                    audit.check(rows.table, rows.source)
                    writer.write(rows.table)
            policy.close()
            found = audit.finish()
            result = writer.finish() | found
        except BaseException:
            policy.abort()
            raise
    result["rowsRead"] = read
    result["badRows"] = policy.count
    if policy.path is not None:
        result[QUARANTINE] = policy.path.removeprefix(job.operation.location).lstrip("/")
    if "manifest" in result and len(msgspec.json.encode(result)) > MAX_RESULT_BYTES:
        # The manifest says it, too; here it only saves the commit from opening it.
        result.pop("partitions", None)
    return result


def _table_io(job: JobContext) -> FileIO:
    """Access to the table's files, as its properties have it."""
    layout = IngestPlan.of(job.operation).table_layout
    return file_io(job.operation.location, layout.properties, job.operation.storage)


def _policy(plan: IngestPlan, job: JobContext) -> BadRowPolicy:
    if plan.on_bad_rows == "quarantine":
        return Quarantine(_table_io(job), job.staging_path(".jsonl", folder=quarantine_folder(plan.output)))
    return Fail()


class SplitReader:
    """Reads the split of one job.

    Parameters
    ----------
    policy:
        What becomes of bad rows.
    """

    def __init__(self, plan: IngestPlan, policy: BadRowPolicy, job: JobContext) -> None:
        self._plan = plan
        self._policy = policy
        self._job = job
        self._format = reader_for(plan)
        self._table_rows = TableRows(plan)

    def rows(self) -> Generator[Converted, None, None]:
        """All rows of the split, in blocks; stops between them once the job is cancelled.

        Raises
        ------
        BadRow, JobFailed, Cancelled
        """
        for piece in self._plan.pieces(self._job.partition):
            yield from self._rows_of(piece)

    def _rows_of(self, piece: Piece) -> Iterator[Converted]:
        entry = self._plan.files[piece.file]
        file = OpenFile.at(self._plan.folder, entry.path)
        with _file_named(file):
            _check_unchanged(file, entry)
            with self._format.open(file) as opened:
                end = None if piece.end == entry.length else piece.end
                for block in opened.blocks(piece.start, end):
                    self._job.raise_if_cancelled()
                    yield self._converted(opened, block, file.url)
            # What was read is what was planned only if it is so until the end.
            _check_unchanged(file, entry)

    def _converted(self, opened: FileReader[Any], block: Rows, url: str) -> Converted:
        def whole(rows: Rows) -> Converted:
            return replace(self._table_rows.of(opened.convert(rows)), source=url)

        def reject(rows: Rows, reason: str) -> None:
            # One at a time, these take long where many are bad.
            self._job.raise_if_cancelled()
            self._policy.reject(Place(url, rows.number(), self._format.row_unit), reason, rows.raw())

        parts = list(convert_good_rows(block, whole, reject))
        if len(parts) == 1:
            return parts[0]
        tables = [part.table for part in parts] or [self._table_rows.none()]
        return Converted(sum(part.read for part in parts), pa.concat_tables(tables).combine_chunks(), url)


@contextmanager
def _file_named(file: OpenFile) -> Iterator[None]:
    """Make what is wrong with a file as a whole a permanent failure that names it."""
    try:
        yield
    except FileUnusable as error:
        raise JobFailed(f"{file.url} {error}", details={"file": file.url}) from error
    except FileNotFoundError as error:
        raise _changed(file, "it has vanished") from error


def _check_unchanged(file: OpenFile, entry: FileEntry) -> None:
    size, version = file.identity()
    if (size, version) != (entry.size, entry.version):
        raise _changed(
            file, f"it had {entry.size} bytes (version {entry.version}), and now {size} ({version})"
        )


def _changed(file: OpenFile, how: str) -> JobFailed:
    return JobFailed(
        f"source changed since the operation started: {file.url}: {how}",
        hint="start the operation again, on files that stay as they are",
        details={"file": file.url},
    )
