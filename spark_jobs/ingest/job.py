"""One job of an ingest: read the pieces of a split, convert, filter, write."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from pyiceberg.io import FileIO

from distop.commit.layout.model import file_io
from distop.commit.layout.staging import quarantine_folder
from distop.commit.outputs import output_of
from distop.errors import JobFailed
from distop.operations.job import JobContext
from distop.spark_jobs.formats.bad_rows import BadRowPolicy, Fail, Place, Quarantine, Rows
from distop.spark_jobs.formats.files import OpenFile
from distop.spark_jobs.formats.reader import FileUnusable
from distop.spark_jobs.formats.registry import reader_for
from distop.spark_jobs.ingest.plan import FileEntry, IngestPlan
from distop.spark_jobs.ingest.rows import Conversion, Converted, GoodRows
from distop.spark_jobs.ingest.splits import Piece
from distop.spark_jobs.rules.gate import JobAudit

MAX_RESULT_BYTES = 800
"""A job's record has room for 1 KiB, and holds the attempt's name and the time besides the result."""
QUARANTINE = "quarantine"
"""Field of the result: the file that bad rows are kept in, below the table's location."""


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``start_or_resume_job`` for its result."""
    plan = IngestPlan.of(job.operation)
    policy = _policy(plan, job)
    split = _split(plan, policy, job)
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
    result.update(split.facts)
    if policy.path is not None:
        result[QUARANTINE] = policy.path.removeprefix(job.operation.location).lstrip("/")
    if "manifest" in result and len(msgspec.json.encode(result)) > MAX_RESULT_BYTES:
        # The manifest says it, too; here it only saves the commit from opening it.
        result.pop("partitions", None)
    return result


class Split(Protocol):
    """What one job is to read."""

    facts: dict[str, int]
    """What there is to say about it besides the rows; complete when all have been read."""

    def rows(self) -> Generator[Converted, None, None]:
        """All rows, in blocks; stops between them once the job is cancelled."""


def _split(plan: IngestPlan, policy: BadRowPolicy, job: JobContext) -> Split:
    if plan.kafka is None:
        return SplitReader(plan, policy, job)
    from distop.spark_jobs.ingest.topic_split import TopicSplit

    return TopicSplit(plan, plan.kafka, policy, job)


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
    conversion:
        What the rows become; default: rows of the table.
    """

    def __init__(
        self,
        plan: IngestPlan,
        policy: BadRowPolicy,
        job: JobContext,
        conversion: Conversion | None = None,
    ) -> None:
        self._plan = plan
        self._job = job
        self._format = reader_for(plan.format, plan.csv, plan.wanted)
        self._good_rows = GoodRows(plan, policy, job, conversion)
        self.facts: dict[str, int] = {}

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
                    yield self._good_rows.of(
                        block, file.url, opened.convert, partial(self._place, url=file.url)
                    )
            # What was read is what was planned only if it is so until the end.
            _check_unchanged(file, entry)

    def _place(self, rows: Rows, url: str) -> Place:
        return Place(url, rows.number(), self._format.row_unit)


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
