"""Writes a DataFrame or a streaming query to a table, for Spark's data source interface.

Tasks stage Parquet files and return a description of them; nothing is visible. The driver publishes the
results of the attempts that Spark counts, one per partition. So retries, speculation and lost executors only
leave files to remove, and never change a row.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from distop.errors import PreconditionFailed
from distop.lake.writing.prepared import PreparedTask
from distop.sources.formats.conversion import fitting
from distop.spark.options import WriteOptions
from distop.spark.publication import GIVE_UP_S, Deadline, Publication, give_up, publish
from distop.spark.target import WriteTarget, connect, open_target

QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id of a streaming query, stored in its checkpoint."""


def stream_source(query_id: str) -> str:
    """The watermark source that counts the batches of a streaming query."""
    return f"stream:{query_id}"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
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


class BatchWriter(DataSourceArrowWriter):
    """One ``df.write``. Made on the driver; its copies write in tasks, and publish on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        with connect(options) as client:
            self._target = open_target(client, options, schema)

    @property
    def _publication(self) -> Publication:
        return Publication(
            target=self._target,
            request_id=self._options.request_id or self._target.write,
            mode=self._options.mode,
            on_conflict=self._options.on_conflict,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """See :meth:`DataSourceArrowWriter.write`."""
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


class StreamWriter(DataSourceStreamArrowWriter):
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
        """See :meth:`DataSourceStreamArrowWriter.write`."""
        if self._target is None:
            raise AssertionError("a writer has its target when it is sent to tasks")
        written = write_task(self._target, iterator)
        if not written.query_id:
            raise PreconditionFailed(f"Spark does not say which query this is: {QUERY_ID} is not set")
        return written

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """See :meth:`DataSourceStreamArrowWriter.commit`."""
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
            request_id=f"{first.query_id}.{batch_id}",
            mode=self._options.mode,
            on_conflict=self._options.on_conflict or "rebase",
            source=stream_source(first.query_id),
            batch=str(batch_id),
        )
