"""One job of an ingest: read a split, or a partition of a DataFrame; convert, check and write its rows, or
merge all rows of the source with some of the table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from distop.errors import CorruptRecord, JobFailed, OffsetsLost
from distop.lake.layout.model import file_io
from distop.lake.layout.staging import quarantine_folder
from distop.lake.predicates.binding import ALL, Always, Predicate, chosen, predicate_of, truth
from distop.lake.rows import output_of
from distop.lake.storage.storage import StorageOptions
from distop.lake.writing.casts import check_never_empty
from distop.operations import JobContext
from distop.sources.formats.avro import AvroReader
from distop.sources.formats.bad_rows import (
    BadRowPolicy,
    Fail,
    FilePosition,
    QuarantineRows,
    RowPosition,
    Rows,
    Unconvertible,
    convert_good_rows,
)
from distop.sources.formats.conversion import from_epoch
from distop.sources.formats.csv import CsvReader
from distop.sources.formats.files import OpenFile, while_complete
from distop.sources.formats.jsonl import JsonLinesReader
from distop.sources.formats.parquet import ParquetReader
from distop.sources.formats.reader import FileUnusable, FormatReader, fitting, writable
from distop.sources.kafka.client import Cluster, RangeReader
from distop.sources.kafka.ranges import ANEW_HINT, OffsetRange
from distop.sources.kafka.records import RecordPlace, RecordReader, Records
from distop.sources.quarantine import KeptFile, KeptRows, QuarantineReader, table_file
from distop.spark_jobs.ingest.files import constants
from distop.spark_jobs.ingest.plan import FileEntry, IngestPlan, KafkaSource, Piece, TargetPlan
from distop.spark_jobs.merge import DELETE, INSERT, UPDATE, MergeBatch, MergePlan, Merging
from distop.spark_jobs.rules.gate import JobChecks

R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows in the table's schema.

    Parameters
    ----------
    read:
        How many there were before the filter.
    source:
        Their origin: the URL of a file, or of a topic.
    """

    read: int
    table: pa.Table
    source: str = ""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts the rows that were read.

    Parameters
    ----------
    schema:
        Schema of the resulting rows.
    targets:
        The columns of the source to write.
    filter:
        Only rows for which this is true.
    never_empty:
        Columns in which an empty text is no value.
    epoch_units:
        Columns whose numbers count from 1970, and their units.
    """

    schema: pa.Schema
    targets: list[str]
    filter: Predicate = ALL
    never_empty: Sequence[str] = ()
    epoch_units: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def to_table(cls, plan: IngestPlan) -> Self:
        """Rows of the table."""
        where = ALL
        if plan.filter is not None:
            where = predicate_of(plan.filter, Schema.model_validate(plan.columns))
        layout = plan.table_layout
        never_empty = output_of(plan.output).never_empty(layout)
        return cls(layout.arrow_schema, plan.targets, where, never_empty, plan.epoch_units)

    def of(self, source: pa.Table) -> Converted:
        """These rows. Raises :class:`~distop.sources.formats.bad_rows.Unconvertible`."""
        return Converted(source.num_rows, self.written(self.kept(source), self.schema))

    def kept(self, source: pa.Table) -> pa.Table:
        """The rows that pass the filter."""
        return source if self.filter == ALL else chosen(self.filter, source)

    def written(self, kept: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows that are kept, as rows of a table."""
        rows = kept.select(self.targets)
        for at, name in enumerate(rows.column_names):
            if unit := self.epoch_units.get(name):
                moments = from_epoch(rows.column(name), unit, schema.field(name).type, name)
                rows = rows.set_column(at, name, moments)
        rows = writable(rows, schema)
        try:
            check_never_empty(rows, self.never_empty)
        except pa.ArrowInvalid as error:
            raise Unconvertible(str(error)) from None
        return rows


class GoodRows:
    """Converts blocks of raw rows; the policy handles bad ones.

    Parameters
    ----------
    look:
        Called now and then; raises if the rows are no longer needed.
    """

    def __init__(self, conversion: Conversion, policy: BadRowPolicy, look: Callable[[], None]) -> None:
        self._conversion = conversion
        self._policy = policy
        self._look = look

    def of(
        self, block: R, source: str, convert: Callable[[R], pa.Table], position: Callable[[R], RowPosition]
    ) -> Converted:
        """The good rows of a block.

        Parameters
        ----------
        source:
            Their origin.
        convert:
            Raw rows to the columns of the source.
        place:
            The position of the first of some rows.

        Raises
        ------
        BadRow, Cancelled
        """

        def whole(rows: R) -> Converted:
            return replace(self._conversion.of(convert(rows)), source=source)

        def reject(rows: R, reason: str) -> None:
            # One at a time, since these take long if many rows are bad.
            self._look()
            self._policy.reject(position(rows), reason, rows.kept())

        parts = list(convert_good_rows(block, whole, reject))
        if len(parts) == 1:
            return parts[0]
        tables = [part.table for part in parts] or [self._conversion.schema.empty_table()]
        return Converted(sum(part.read for part in parts), pa.concat_tables(tables).combine_chunks(), source)


MAX_RESULT_BYTES = 800
"""Limit of the result: a job's record of 1 KiB also holds the attempt's name and the time."""
BLOCK_ROWS = 1 << 16
"""Rows of a DataFrame that are converted and written together: Spark's own batches are small."""
QUARANTINE = "quarantine"
"""Field of the result: the file of bad rows, below the table's location."""


def run_job(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``run_job`` for its result."""
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
            checked = checks.finish()
            result = writer.finish() | checked
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
    return QuarantineRows(io, path, most=plan.max_bad_rows)


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
                position: Callable[[Any], RowPosition] = partial(_file_position, file.url, opened.row_unit)
                if isinstance(opened, KeptFile):
                    position = KeptRows.first_position
                for block in opened.blocks(piece.start, end):
                    self._look()
                    yield self._rows.of(block, file.url, convert, position)
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
                        yield self._rows.of(
                            Records(kept), source.url, self._records.convert, self._record_position
                        )
            self._check_topic(cluster)
            if tombstones:
                self.facts["tombstones"] = tombstones
            if reader.skipped:
                self.facts["offsetsSkipped"] = reader.skipped

    def _check_topic(self, cluster: Cluster) -> None:
        """Refuse records of another topic of the same name. An id is not given twice: if the topic has the
        planned one after all records were read, they are its own."""
        planned = self._source.topic_id
        if planned and (topic_id := cluster.topic_id(self._source.topic)) not in ("", planned):
            raise OffsetsLost(
                f"the topic {self._source.topic!r} was created again since the operation started: its id was "
                f"{planned}, and is {topic_id}",
                hint=ANEW_HINT,
                details={"source": self._source.url},
            )

    def _record_position(self, records: Records) -> RecordPlace:
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


def _file_position(url: str, unit: str, rows: Rows) -> FilePosition:
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


def run_merge(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``run_job`` for its result."""
    plan = IngestPlan.of(job.operation)
    assert plan.merge is not None
    conversion = _Marked.for_merge(plan, plan.merge)
    facts: Counter[str] = Counter()
    rows = _rows(plan, conversion, job, facts)
    batch = MergeBatch(rows, conversion.schema, plan.merge.keys, plan.merge.order_by)
    with (
        output_of(plan.output).writer(plan.table_layout, job) as writer,
        JobChecks(plan.rules, job) as checks,
    ):
        check = partial(checks.check, source=plan.folder if plan.kafka is None else plan.kafka.url)
        merging = Merging(job, plan.merge, plan.table_layout, batch, writer, check, facts)
        counts = merging.run(int(job.partition))
        checked = checks.finish()
        return bounded(writer.finish() | checked | counts)


def _rows(
    plan: IngestPlan, conversion: Conversion, job: JobContext, facts: Counter[str]
) -> Iterator[pa.Table]:
    """All rows of the source; adds up the facts about it."""
    rows = GoodRows(conversion, Fail(), job.raise_if_cancelled)
    for number in range(len(plan.cuts) - 1):
        split = split_of(plan, str(number), rows, job)
        with closing(split.rows()) as blocks:
            for block in blocks:
                yield block.table
        facts.update(split.facts)


@dataclass(frozen=True, slots=True)
class _Marked(Conversion):
    """Rows of the table, each with its possible effects: see :class:`MergeBatch`."""

    marks: Mapping[str, Predicate] = field(default_factory=dict)

    @classmethod
    def for_merge(cls, plan: IngestPlan, merge: MergePlan) -> _Marked:
        columns = Schema.model_validate(plan.columns)

        def condition(where: str, otherwise: Predicate) -> Predicate:
            return predicate_of(where, columns) if where else otherwise

        plain = Conversion.to_table(plan)
        marks = {
            DELETE: condition(merge.delete_where, Predicate(Always(False))),
            UPDATE: condition(merge.update_where, ALL),
            INSERT: condition(merge.insert_where, ALL),
        }
        schema = pa.schema([*plain.schema, *(pa.field(name, pa.bool_()) for name in marks)])
        return cls(schema, plain.targets, plain.filter, epoch_units=plain.epoch_units, marks=marks)

    def of(self, source: pa.Table) -> Converted:
        """The rows as :class:`Conversion` makes them, with their marks."""
        kept = self.kept(source)
        rows = self.written(kept, pa.schema(list(self.schema)[: -len(self.marks)]))
        for name, condition in self.marks.items():
            rows = rows.append_column(name, pc.fill_null(truth(condition, kept), False))
        return Converted(source.num_rows, rows)
