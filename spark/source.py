"""``format("distop")``: the Spark data source. It writes DataFrames and streaming queries to a table, and
streams what is published to a table; :mod:`distop.spark.source` reads a snapshot.

Tasks of a write stage Parquet files and return a description of them; nothing is visible. The driver
publishes the results of the attempts that Spark counts, one per partition. So retries, speculation and lost
executors only leave files to remove, and never change a row.

An offset of a stream that is read is a position in the table's history: a snapshot, and how many of its files
were read. Spark stores offsets in the query's checkpoint and requests the same range again after a crash;
snapshots and their files never change, so it gets the same rows.

The files are planned once, on the driver, from the table's metadata: so a query reads one snapshot, whatever
is published meanwhile. Spark's own filters are not pushed down here (in Spark 4.3 that leaks filters of one
query into the next); the option ``filter`` is.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from cachetools import FIFOCache
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from distop.client import Client, Index, Table
from distop.errors import Conflict, CorruptRecord, DistopError, InvalidArgument, PreconditionFailed
from distop.lake.iceberg.metadata_files import named
from distop.lake.iceberg.takeover import PreparedTask
from distop.lake.layout.model import Layout, file_io, load_metadata
from distop.lake.layout.schemas import parse_schema
from distop.sources.formats.reader import converted, fitting
from distop.spark.publication import GIVE_UP_S, Deadline, Publication, give_up, publish
from distop.spark.target import (
    ReadOptions,
    WriteOptions,
    WriteTarget,
    connect,
    find_table,
    open_target,
    read_options,
    storage_options,
    write_options,
)
from distop.spark_jobs.spark_types import spark_schema
from distop.spark_jobs.tables import PlannedFile, TableSnapshot, open_snapshot, snapshot_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FILES_PER_SPLIT = 200
"""Small files that one task reads one after the other."""


@dataclass
class FileSplit(InputPartition):
    """The part that one task reads."""

    files: list[PlannedFile]


def find_snapshot(client: Client, options: ReadOptions) -> TableSnapshot:
    """The snapshot selected by the options.

    Raises
    ------
    TableNotFound
        There is no such table.
    PreconditionFailed
        There is no such snapshot, or none at all: the table has no columns yet.
    """
    table = find_table(client, options)
    storage = storage_options(table, options)
    if not table.metadata_location:
        if options.snapshot_id is not None or options.as_of or options.branch is not None:
            raise PreconditionFailed(f"nothing has been published to table {table.name!r}")
        return _empty(table, storage)
    return open_snapshot(
        table.metadata_location,
        storage,
        snapshot_id=options.snapshot_id,
        as_of_ms=_milliseconds(options.as_of) if options.as_of else None,
        branch=options.branch,
        indexes=_indexes(client, table.name) if options.filter and options.use_indexes else (),
    )


def _indexes(client: Client, table: str) -> list[Index]:
    """The table's indexes. If they are unavailable, the table is read without them."""
    try:
        return list(client.table(table).indexes())
    except DistopError as error:
        log.warning("indexes_not_told", extra={"table": table, "error": str(error)})
        return []


def _empty(table: Table, storage: dict[str, object]) -> TableSnapshot:
    schema = table.options.get("schema")
    if schema is None:
        raise PreconditionFailed(
            f"nothing has been published to table {table.name!r}, so it has no columns",
            hint="write to it first, or create it with a schema",
        )
    layout = Layout.create(parse_schema(schema), table.options.get("partitionBy", ()))
    return TableSnapshot(layout.new_metadata(table.location), None, storage)


def _milliseconds(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a time", hint="write 2024-05-01T08:00:00Z", details={"field": "asOf"}
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def table_schema(options: ReadOptions) -> StructType:
    """The columns of a read."""
    with connect(options) as client:
        snapshot = find_snapshot(client, options)
    return spark_columns(snapshot.projection(options.columns))


def spark_columns(schema: Schema) -> StructType:
    """The columns of a table in Spark's types."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return spark_schema(columns, "columns", "read other columns, with the option columns")


def splits_of(files: Iterable[PlannedFile], split_bytes: int) -> list[FileSplit]:
    """Files for tasks: large ones alone, small ones together."""
    splits: list[FileSplit] = []
    room = 0
    for file in files:
        if not splits or file.size > room or len(splits[-1].files) >= FILES_PER_SPLIT:
            splits.append(FileSplit([]))
            room = split_bytes
        splits[-1].files.append(file)
        room -= file.size
    return splits


def read_files(
    snapshot: TableSnapshot,
    files: Sequence[PlannedFile],
    schema: StructType,
    where: str | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of some files, in Spark's form."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in snapshot.batches(files, columns=wanted.names, where=where):
        if batch.num_rows:
            yield from converted(pa.Table.from_batches([batch]), wanted).to_batches()


class TableReader(DataSourceReader):
    """One ``spark.read``. Its copies read in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        with connect(options) as client:
            self._snapshot = find_snapshot(client, options)

    def partitions(self) -> Sequence[InputPartition]:
        """See Spark's :meth:`DataSourceReader.partitions`."""
        files = self._snapshot.plan_files(self._options.filter)
        # Without any partition Spark would create an empty one.
        return list(splits_of(files, self._options.split_bytes)) or [FileSplit([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See Spark's :meth:`DataSourceReader.read`."""
        if not isinstance(partition, FileSplit):
            raise TypeError(f"{partition!r} is not a split of this reader")
        return read_files(self._snapshot, partition.files, self._schema, self._options.filter)


ALL = -1
"""In an offset: all files of its snapshot were read."""
MAX_REMEMBERED = 64
"""Snapshots whose files a query caches."""


@dataclass(frozen=True, kw_only=True)
class Offset:
    """How far a query has read."""

    snapshot: int | None = None
    """``None``: nothing yet."""
    files: int = ALL
    """How many of its files were read, in the order of their paths."""
    whole: bool = False
    """Whether these are all files of the snapshot; otherwise those that it has added."""

    def to_json(self) -> dict[str, Any]:
        # A string: not every JSON reader supports 64-bit numbers.
        snapshot = "" if self.snapshot is None else str(self.snapshot)
        return {"snapshot": snapshot, "files": self.files, "whole": self.whole}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        snapshot = str(value["snapshot"])
        return cls(
            snapshot=int(snapshot) if snapshot else None,
            files=int(value["files"]),
            whole=bool(value["whole"]),
        )


@dataclass
class StreamSplit(FileSplit):
    """The part of a batch that one task reads."""

    table: TableSnapshot


class History:
    """The snapshots of a table, from one metadata file."""

    def __init__(self, metadata: TableMetadata, storage: dict[str, Any], *, ignore_overwrites: bool) -> None:
        self.metadata = metadata
        self._storage = storage
        self._ignore_overwrites = ignore_overwrites
        self._files: FIFOCache[Offset, list[PlannedFile]] = FIFOCache(MAX_REMEMBERED)

    def between(self, start: int | None, end: int | None) -> list[Snapshot]:
        """The snapshots after ``start`` up to ``end``, oldest first.

        Raises :class:`~distop.errors.PreconditionFailed` if ``start`` is not an ancestor of ``end``, or if
        there may have been others between them.
        """
        following: list[Snapshot] = []
        at = end
        while at is not None and at != start:
            snapshot = self.metadata.snapshot_by_id(at)
            if snapshot is None:
                break
            following.append(snapshot)
            at = snapshot.parent_snapshot_id
        if at != start or (at is None and following and not self._is_first(following[-1])):
            raise PreconditionFailed(
                f"what was published to {self.metadata.location} since {named(start)} is unknown: "
                "the table was rolled back, or snapshots have expired",
                hint="start a new query, with a new checkpoint",
                details={"snapshot": str(start)},
            )
        return following[::-1]

    def _is_first(self, snapshot: Snapshot) -> bool:
        """Whether the table held nothing before it.

        A snapshot whose parent has expired has none, as the first one. But each snapshot takes the next
        sequence number (specification, "Sequence Numbers"): those before it must all be of snapshots that are
        known, and never were the table's. Snapshots of format 1 have none, and those of a later format are
        numbered from 1: it is the files of others that say what was there before.
        """
        if not snapshot.sequence_number:
            return self._is_first_by_log(snapshot)
        published = {entry.snapshot_id for entry in self.metadata.snapshot_log}
        others = (other for other in self.metadata.snapshots if other.snapshot_id not in published)
        aside = {other.sequence_number for other in others}
        if not all(number in aside for number in range(1, snapshot.sequence_number)):
            return False
        return all(
            manifest.added_snapshot_id == snapshot.snapshot_id
            and not (manifest.existing_files_count or manifest.deleted_files_count)
            for manifest in snapshot.manifests(file_io(self.metadata.location, self._storage))
        )

    def _is_first_by_log(self, snapshot: Snapshot) -> bool:
        """Whether the metadata files since the table was created say that a snapshot was the first.

        Programs keep some of the last metadata files (100, by default): if those from the beginning are
        gone, there is no proof.
        """
        try:
            for number, at in enumerate(self._versions()):
                if number == 0 and at.metadata_log:
                    return False
                if at.current_snapshot_id is not None:
                    lineage = ancestors_of(at.current_snapshot(), at)
                    return [ancestor.snapshot_id for ancestor in lineage][-1:] == [snapshot.snapshot_id]
        except CorruptRecord:  # missing, or it has what is not known here
            pass
        return False

    def _versions(self) -> Iterator[TableMetadata]:
        """The table's metadata since the earliest file that its log names."""
        for entry in self.metadata.metadata_log:
            yield load_metadata(entry.metadata_file, storage=self._storage)
        yield self.metadata

    def files(self, offset: Offset) -> list[PlannedFile]:
        """The files of an offset's snapshot, read or not."""
        key = replace(offset, files=ALL)
        if key not in self._files:
            self._files[key] = self._planned(key)
        return self._files[key]

    def _planned(self, offset: Offset) -> list[PlannedFile]:
        if offset.snapshot is None:
            return []
        snapshot = self.metadata.snapshot_by_id(offset.snapshot)
        if snapshot is None:
            raise PreconditionFailed(
                f"snapshot {offset.snapshot} of {self.metadata.location} has expired before it was read",
                hint="start a new query, with a new checkpoint",
                details={"snapshot": str(offset.snapshot)},
            )
        table = snapshot_of(self.metadata, snapshot, self._storage)
        if offset.whole:
            return table.plan_files()
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation is Operation.APPEND:
            return table.plan_added()
        if operation is Operation.REPLACE or self._ignore_overwrites:
            return []
        raise Conflict(
            f"snapshot {offset.snapshot} of {self.metadata.location} has changed or removed rows that were "
            "there before: a stream cannot show that",
            hint='option("ignoreOverwrites", "true") skips such snapshots',
            details={"snapshot": str(offset.snapshot)},
        )

    def advance(self, start: Offset, end: int | None, most: int | None) -> Offset:
        """The offset after the next files, at most this many, up to a snapshot."""
        offset, left = start, most
        for following in [None, *self.between(start.snapshot, end)]:
            if following is not None:
                offset = Offset(snapshot=following.snapshot_id, files=0)
            if offset.files == ALL:
                continue
            unread = len(self.files(offset)) - offset.files
            if left is not None and unread > left:
                return replace(offset, files=offset.files + left)
            offset = replace(offset, files=ALL)
            left = None if left is None else left - unread
        return offset

    def range(self, start: Offset, end: Offset) -> Iterator[PlannedFile]:
        """The files after one offset up to another."""
        for offset in self._places(start, end):
            first = offset.files if offset == start else 0
            if first == ALL:
                continue
            last = end.files if (offset.snapshot, offset.whole) == (end.snapshot, end.whole) else ALL
            yield from self.files(offset)[first : None if last == ALL else last]

    def _places(self, start: Offset, end: Offset) -> Iterator[Offset]:
        yield start
        for snapshot in self.between(start.snapshot, end.snapshot):
            yield Offset(snapshot=snapshot.snapshot_id, files=0)


class SnapshotStreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader behind ``spark.readStream``: the rows of snapshots that follow the first one."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, given in (("snapshotId", options.snapshot_id), ("asOf", options.as_of)):
            if given:
                raise PreconditionFailed(
                    f"{name} names one snapshot, but a stream reads later ones",
                    hint='name the start: option("startingSnapshot", ID)',
                    details={"field": name},
                )
        if options.branch is not None:
            raise PreconditionFailed(
                f"a stream reads what is published to the table, and not branch {options.branch!r}",
                hint='leave out the option "branch", or read the branch in a batch',
                details={"field": "branch"},
            )
        self._options, self._schema = options, schema
        self._forget()

    def _forget(self) -> None:
        self._client: Client | None = None
        self._read: tuple[str, History | None] = ("", None)
        self._storage: dict[str, Any] = {}
        self._until: tuple[int | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # -- where it stands -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See Spark's :meth:`DataSourceStreamReader.initialOffset`."""
        present, starting = self._present(), self._options.starting_snapshot
        if starting == "present":
            return Offset(snapshot=present, files=0, whole=True).to_json()
        return Offset(snapshot=present if starting == "latest" else int(starting)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See Spark's :meth:`DataSourceStreamReader.getDefaultReadLimit`."""
        return ReadMaxFiles(self._options.files_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """See Spark's :meth:`DataSourceStreamReader.latestOffset`."""
        present = self._present()
        history = self._read[1]
        if history is None:
            return start
        end = present if self._until is None else self._until[0]
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return history.advance(Offset.from_json(start), end, most).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See Spark's :class:`SupportsTriggerAvailableNow`."""
        self._until = (self._present(),)

    def _present(self) -> int | None:
        """The table's present snapshot; reads its metadata if it has changed."""
        if self._client is None:
            self._client = connect(self._options)
        table = find_table(self._client, self._options)
        if table.metadata_location and table.metadata_location != self._read[0]:
            self._storage = storage_options(table, self._options)
            metadata = load_metadata(table.metadata_location, storage=self._storage)
            history = History(metadata, self._storage, ignore_overwrites=self._options.ignore_overwrites)
            self._read = (table.metadata_location, history)
        return table.snapshot_id

    # -- rows ------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:
        """See Spark's :meth:`DataSourceStreamReader.partitions`."""
        self._present()
        history = self._read[1]
        if history is None:
            return []
        metadata = history.metadata
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return []
        table = snapshot_of(metadata, snapshot, self._storage)
        files = list(history.range(Offset.from_json(start), Offset.from_json(end)))
        return [StreamSplit(split.files, table) for split in splits_of(files, self._options.split_bytes)]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """See Spark's :meth:`DataSourceStreamReader.read`."""
        if not isinstance(partition, StreamSplit):
            raise TypeError(f"{partition!r} is not a split of this reader")
        return read_files(partition.table, partition.files, self._schema, self._options.filter)

    def commit(self, end: dict[str, Any]) -> None:
        """See :meth:`DataSourceStreamReader.commit`: the checkpoint has everything."""

    def stop(self) -> None:
        """See Spark's :meth:`DataSourceStreamReader.stop`."""
        if self._client is not None:
            self._client.close()
            self._client = None


QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id of a streaming query, stored in its checkpoint."""


def stream_source(query_id: str) -> str:
    """The watermark source that counts the batches of a streaming query."""
    return f"stream:{query_id}"


@dataclass(frozen=True)
class Written(datasource.WriterCommitMessage):
    """The output of one task."""

    task: PreparedTask
    target: WriteTarget
    """The same for all tasks of a write. At the end of a streaming query only this identifies it."""
    query_id: str = ""


def write_task(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of one task; remove its output if it fails."""
    context = TaskContext.get()
    # Spark's attempt ids are not unique after a stage is run again, hence the random part.
    attempt = 0 if context is None else context.taskAttemptId()
    partition = 0 if context is None else context.partitionId()
    stem = f"{partition}-{attempt}-{secrets.token_hex(6)}"
    schema = target.layout.arrow_schema
    with target.writer(stem) as writer:
        for batch in batches:
            writer.write(fitting(pa.Table.from_batches([batch]), schema))
        result = writer.finish()
    query_id = "" if context is None else context.getLocalProperty(QUERY_ID) or ""
    return Written(PreparedTask(stem=stem, result=result), target, query_id)


class BatchWriter(datasource.DataSourceArrowWriter):
    """One ``df.write``. Made on the driver; its copies write in tasks, and publish on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        with connect(options) as client:
            self._target = open_target(client, options, schema)

    @property
    def _publication(self) -> Publication:
        return Publication(
            target=self._target,
            run=self._options.run or self._target.write,
            mode=self._options.mode,
            on_conflict=self._options.on_conflict,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """See Spark's :meth:`DataSourceArrowWriter.write`."""
        return write_task(self._target, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """See :meth:`DataSourceArrowWriter.commit`; raises as :func:`publish`."""
        tasks = [message.task for message in messages if message is not None]
        with connect(self._options) as client:
            publish(client, self._publication, tasks, Deadline(self._options.commit_timeout_s))

    def abort(self, messages: Sequence[Any]) -> None:
        """See :meth:`DataSourceArrowWriter.abort`. May come after a commit that has happened."""
        with connect(self._options) as client:
            give_up(client, self._publication, Deadline(GIVE_UP_S))


class StreamWriter(datasource.DataSourceStreamArrowWriter):
    """A batch of one ``df.writeStream``. Spark makes one to write it, and another one to end it."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._target: WriteTarget | None = None

    def __getstate__(self) -> dict[str, Any]:
        # It is about to be sent to tasks: the target must be the same for all of them.
        if self._target is None:
            with connect(self._options) as client:
                self._target = open_target(client, self._options, self._schema)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """See Spark's :meth:`DataSourceStreamArrowWriter.write`."""
        if self._target is None:
            raise AssertionError("a writer has its target when it is sent to tasks")
        written = write_task(self._target, iterator)
        if not written.query_id:
            raise PreconditionFailed(f"Spark does not say which query this is: {QUERY_ID} is not set")
        return written

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """See Spark's :meth:`DataSourceStreamArrowWriter.commit`."""
        written = [message for message in messages if message is not None]
        if not written:
            return  # Spark ran no task: there are no rows
        with connect(self._options) as client:
            publication = self._publication(written, batchId)
            tasks = [message.task for message in written]
            publish(client, publication, tasks, Deadline(self._options.commit_timeout_s))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """See :meth:`DataSourceStreamArrowWriter.abort`. If no task has finished, the write is unknown here;
        its files are found by their age."""
        written = [message for message in messages if message is not None]
        if written:
            with connect(self._options) as client:
                give_up(client, self._publication(written, batchId), Deadline(GIVE_UP_S))

    def _publication(self, written: Sequence[Written], batch_id: int) -> Publication:
        first = written[0]
        if any(other.target.write != first.target.write for other in written):
            raise AssertionError(f"batch {batch_id} was written in several ways at once")
        return Publication(
            target=first.target,
            run=f"{first.query_id}.{batch_id}",
            mode=self._options.mode,
            on_conflict=self._options.on_conflict or "rebase",
            source=stream_source(first.query_id),
            batch=str(batch_id),
        )


class DistopDataSource(datasource.DataSource):
    """Tables of distop in Spark. See docs/spark-data-source.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "distop"

    def schema(self) -> StructType:
        """The columns of the table, or the requested ones."""
        return table_schema(read_options(self.options))

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        return TableReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802 - Spark's name
        return SnapshotStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        return BatchWriter(write_options(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(write_options(self.options, overwrite=overwrite), schema)


def register(session: SparkSession) -> None:
    """Register ``format("distop")`` in a session."""
    session.dataSource.register(DistopDataSource)
