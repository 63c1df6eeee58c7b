"""One job of an ingest: read a split, or a partition of a DataFrame; convert, check and write its rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from distop.errors import CorruptRecord, JobFailed, OffsetsLost
from distop.lake.layout.model import file_io
from distop.lake.layout.staging import quarantine_folder
from distop.lake.outputs import output_of
from distop.lake.storage.storage import StorageOptions
from distop.operations.job import JobContext
from distop.sources.formats.avro import AvroReader
from distop.sources.formats.bad_rows import BadRowPolicy, Fail, FilePosition, Quarantine, RowPosition, Rows
from distop.sources.formats.conversion import fitting
from distop.sources.formats.csv import CsvReader
from distop.sources.formats.files import OpenFile, while_complete
from distop.sources.formats.jsonl import JsonLinesReader
from distop.sources.formats.parquet import ParquetReader
from distop.sources.formats.reader import FileUnusable, FormatReader
from distop.sources.kafka.client import Cluster
from distop.sources.kafka.offsets import OffsetRange
from distop.sources.kafka.ranges import ANEW_HINT
from distop.sources.kafka.reader import RangeReader
from distop.sources.kafka.records import RecordPlace, RecordReader, Records
from distop.sources.quarantine import KeptFile, KeptRows, QuarantineReader, table_file
from distop.spark_jobs.ingest.path_columns import constants
from distop.spark_jobs.ingest.plan import FileEntry, IngestPlan, KafkaSource, TargetPlan
from distop.spark_jobs.ingest.rows import Conversion, Converted, GoodRows
from distop.spark_jobs.ingest.splits import Piece
from distop.spark_jobs.rules.staged import JobChecks

MAX_RESULT_BYTES = 800
"""Limit of the result: a job's record of 1 KiB also holds the attempt's name and the time."""
BLOCK_ROWS = 1 << 16
"""Rows of a DataFrame that are converted and written together: Spark's own batches are small."""
QUARANTINE = "quarantine"
"""Field of the result: the file of bad rows, below the table's location."""


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``start_or_resume_job`` for its result."""
    if job.operation.dynamic:
        target = TargetPlan.of(job.operation)
        return _written(job, target, FrameRows(target, job), Fail())
    plan = IngestPlan.of(job.operation)
    policy = _policy(plan, job)
    rows = GoodRows(Conversion.to_table(plan), policy, job.raise_if_cancelled)
    return _written(job, plan, split_of(plan, job.partition, rows, job), policy)


class Split(Protocol):
    """The input of one job."""

    facts: dict[str, int]
    """Facts about it; complete when all rows have been read."""

    def rows(self) -> Generator[Converted, None, None]:
        """All rows, in blocks; stops between them once the job is cancelled."""


def split_of(plan: IngestPlan, split: str, rows: GoodRows, job: JobContext) -> Split:
    """One split of the source, which a job reads: of files, or of a topic."""
    if plan.kafka is not None:
        return TopicSplit(plan, plan.kafka, split, rows, job.raise_if_cancelled)
    return FilesSplit(plan, split, rows, job.raise_if_cancelled, job.operation.storage)


def _written(job: JobContext, plan: TargetPlan, split: Split, policy: BadRowPolicy) -> dict[str, Any]:
    """Check and write the rows of a split; return the job's result."""
    with (
        output_of(plan.output).writer(plan.table_layout, job) as writer,
        JobChecks(plan.rules, job) as checks,
    ):
        try:
            read = 0
            with closing(split.rows()) as blocks:
                for rows in blocks:
                    read += rows.read
                    checks.check(rows.table, rows.source)
                    writer.write(rows.table)
            policy.close()
            found = checks.finish()
            result = writer.finish() | found
        except BaseException:
            policy.abort()
            raise
    result["rowsRead"] = read
    result["badRows"] = policy.count
    result.update(split.facts)
    if policy.path is not None:
        result[QUARANTINE] = policy.path.removeprefix(job.operation.location).lstrip("/")
    return bounded(result)


def bounded(result: dict[str, Any]) -> dict[str, Any]:
    """A result that fits into a job's record."""
    if "manifest" in result and len(msgspec.json.encode(result)) > MAX_RESULT_BYTES:
        # The manifest has it, too; here it only saves the commit from opening it.
        result.pop("partitions", None)
    return result


def _policy(plan: IngestPlan, job: JobContext) -> BadRowPolicy:
    if plan.on_bad_rows != "quarantine":
        return Fail()
    io = file_io(job.operation.location, job.operation.storage)
    path = job.staging_path(".jsonl", folder=quarantine_folder(plan.output))
    return Quarantine(io, path, most=plan.max_bad_rows)


class FrameRows:
    """The rows of one partition of a DataFrame."""

    def __init__(self, plan: TargetPlan, job: JobContext) -> None:
        self._schema = plan.table_layout.arrow_schema
        self._job = job
        self.facts: dict[str, int] = {}

    def rows(self) -> Generator[Converted, None, None]:
        """All rows, in blocks of useful size.

        Raises :class:`~distop.errors.BadRow` if a value does not fit its column.
        """
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in self._job.rows():
            self._job.raise_if_cancelled()
            waiting.append(batch)
            count += batch.num_rows
            if count >= BLOCK_ROWS:
                yield self._block(waiting)
                waiting, count = [], 0
        if waiting:
            yield self._block(waiting)

    def _block(self, batches: list[pa.RecordBatch]) -> Converted:
        rows = fitting(pa.Table.from_batches(batches), self._schema)
        return Converted(rows.num_rows, rows)


class FilesSplit:
    """Reads the ranges of files in one split.

    Parameters
    ----------
    look:
        Called between blocks; raises if the rows are no longer needed.
    storage:
        The table's storage options, for rows of its quarantine.
    """

    def __init__(
        self,
        plan: IngestPlan,
        split: str,
        rows: GoodRows,
        look: Callable[[], None],
        storage: StorageOptions | None = None,
    ) -> None:
        self._plan, self._split, self._rows, self._look = plan, split, rows, look
        self._storage = storage or {}
        self._format = _reader(plan)
        self.facts: dict[str, int] = {}

    def rows(self) -> Generator[Converted, None, None]:
        """All rows of the split, in blocks.

        Raises
        ------
        BadRow, JobFailed, Cancelled
        """
        with while_complete(self._plan.markers):
            for piece in self._plan.pieces(self._split):
                yield from self._rows_of(piece)

    def _rows_of(self, piece: Piece) -> Iterator[Converted]:
        entry = self._plan.files[piece.file]
        if self._plan.quarantined:
            file = table_file(self._plan.folder, entry.path, self._storage)
        else:
            file = OpenFile.at(self._plan.folder, entry.path)
        with _file_named(file):
            _check_unchanged(file, entry)
            with self._format.open(file) as opened:
                end = None if piece.end == entry.length else piece.end
                convert: Callable[[Any], pa.Table] = opened.convert
                if values := self._plan.path_values(entry):
                    convert = constants(convert, values, self._plan.source_columns)
                place: Callable[[Any], RowPosition] = partial(_place, file.url, opened.row_unit)
                if isinstance(opened, KeptFile):
                    place = KeptRows.place
                for block in opened.blocks(piece.start, end):
                    self._look()
                    yield self._rows.of(block, file.url, convert, place)
            # The rows are those of the plan only if the file is unchanged until the end.
            _check_unchanged(file, entry)


class TopicSplit:
    """Reads the records of a topic in one split; see :class:`FilesSplit`."""

    def __init__(
        self, plan: IngestPlan, source: KafkaSource, split: str, rows: GoodRows, look: Callable[[], None]
    ) -> None:
        self._source = source
        self._plan, self._split, self._rows, self._look = plan, split, rows, look
        self._records = RecordReader(
            source.value,
            plan.wanted,
            metadata=source.metadata,
            csv=plan.csv,
            value_column=source.value_column,
        )
        self.facts: dict[str, int] = {}

    def rows(self) -> Generator[Converted, None, None]:
        """All rows of the split.

        Raises
        ------
        BadRow, OffsetsLost, KafkaUnavailable, Cancelled
        """
        source, tombstones = self._source, 0
        with Cluster(source.servers, source.config, source.timeout_s) as cluster:
            reader = RangeReader(cluster, source.topic, skip_gaps=source.skip_gaps, look=self._look)
            for piece in self._plan.pieces(self._split):
                part = source.ranges[piece.file]
                wanted = OffsetRange(part.partition, part.start + piece.start, part.start + piece.end)
                for block in reader.blocks(wanted):
                    kept = block
                    if not source.keep_tombstones:
                        kept = [message for message in block if message.value() is not None]
                        tombstones += len(block) - len(kept)
                    if kept:
                        yield self._rows.of(Records(kept), source.url, self._records.convert, self._place)
            self._check_topic(cluster)
            if tombstones:
                self.facts["tombstones"] = tombstones
            if reader.skipped:
                self.facts["offsetsSkipped"] = reader.skipped

    def _check_topic(self, cluster: Cluster) -> None:
        """Refuse records of another topic of the same name. An id is not given twice: if the topic has the
        planned one after all records were read, they are its own."""
        planned = self._source.topic_id
        if planned and (found := cluster.topic_id(self._source.topic)) not in ("", planned):
            raise OffsetsLost(
                f"the topic {self._source.topic!r} was created again since the operation started: its id was "
                f"{planned}, and is {found}",
                hint=ANEW_HINT,
                details={"source": self._source.url},
            )

    def _place(self, records: Records) -> RecordPlace:
        return RecordPlace(self._source.url, records.messages[0].partition() or 0, records.number())


def _reader(plan: IngestPlan) -> FormatReader:
    if plan.quarantined:
        return QuarantineReader(plan.format, plan.csv, plan.wanted)
    match plan.format:
        case "csv":
            return CsvReader(plan.csv, plan.wanted)
        case "jsonl":
            return JsonLinesReader(plan.wanted)
        case "parquet":
            return ParquetReader(plan.wanted)
        case "avro":
            return AvroReader(plan.wanted)
    raise CorruptRecord(f"the plan names the format {plan.format!r}, which this version cannot read")


def _place(url: str, unit: str, rows: Rows) -> FilePosition:
    return FilePosition(url, rows.number(), unit)


@contextmanager
def _file_named(file: OpenFile) -> Iterator[None]:
    """Turn an error of a whole file into a permanent failure that names it."""
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
        hint="start the operation again, on files that do not change",
        details={"file": file.url},
    )
