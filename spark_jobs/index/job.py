"""A job of ``build_index``: the keys of some data files, sorted and written as one part of the index.

For each data file the job reads one column, row group by row group, and writes its keys as a *run*; then it
saves a checkpoint with the runs so far. They are in the folder of the operation, so the next attempt
continues after the last finished file, on any host. At the end the runs are merged into the part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distop.errors import CorruptRecord
from distop.lake.index.lookup import EntriesWritten, entry_schema, read_entries, write_entries
from distop.lake.index.manifest import FOLDER, keys_of, text_of
from distop.lake.index.publish import RUN, Build, DataFileSeen, FilePositions, PartResult
from distop.lake.writing.sorting import Key
from distop.operations import JobContext, from_json
from distop.operations.job import staging_folder, staging_stem
from distop.operations.plans import Shared
from distop.spark_jobs.external_sort import sort_rows

log = logging.getLogger(__name__)

BATCH_ROWS = 65_536
"""Rows of a column that are read at a time."""
READ_BYTES = 1 << 20
"""Bytes of a file that are read at a time to see whether it can be read."""

MAX_ATTEMPTS_NAMED = 8
"""A checkpoint names the runs of this many attempts; before there are more, they are merged into one."""

_FIELD_ID = b"PARQUET:field_id"
_ORDER = (Key("key"), Key("file"), Key("group"))


class Runs(msgspec.Struct, array_like=True):
    """The runs of one attempt, numbered from 0."""

    attempt: str
    count: int


class Checkpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The progress of the job. Under 1 KiB after any number of attempts."""

    done: int = 0
    """Files that are finished."""
    runs: list[Runs] = []
    left_out: str = ""
    """The finished files that could not be indexed, see :class:`FilePositions`."""


_build = Shared(Build)


def run_job(job: JobContext) -> dict[str, Any]:
    """Do the job; see :class:`~distop.lake.index.publish.PartResult` for its result."""
    work = _Slice(job, _build(job.operation))
    try:
        work.index()
        return work.part()
    except FileNotFoundError as error:
        # A run was removed: earlier progress cannot be relied upon.
        job.save_checkpoint(msgspec.json.encode(Checkpoint()))
        raise CorruptRecord(f"a run of {job.operation.id} is missing: {error}") from error


class _Slice:
    """The files of one job."""

    def __init__(self, job: JobContext, build: Build) -> None:
        self._job, self._build, self._plan = job, build, build.plan
        self._files = build.slice(int(job.partition))
        self._kind = build.plan.iceberg_type()
        saved = job.load_checkpoint()
        self._state = Checkpoint() if saved is None else from_json(saved, Checkpoint)

    def index(self) -> None:
        """Write a run of each file that has none yet, with a checkpoint after each file."""
        if len(self._state.runs) >= MAX_ATTEMPTS_NAMED:
            self._write(self._location(self._job.attempt, 0), self._sorted())
            self._state.runs = [Runs(self._job.attempt, 1)]
            self._save()
        left_out = FilePositions.read(self._state.left_out)
        for number in range(self._state.done, len(self._files)):
            self._job.raise_if_cancelled()
            try:
                self._write_run(self._files[number], number)
            except (FileNotFoundError, pa.ArrowInvalid, pa.ArrowNotImplementedError, _UnknownColumn) as error:
                # Removed by another program, or invalid Parquet: readers will find out themselves.
                log.warning("file_not_indexed", extra={"path": self._files[number].path, "error": str(error)})
                left_out.add(number)
                self._state.left_out = str(left_out)
            self._state.done = number + 1
            self._save()

    def part(self) -> dict[str, Any]:
        """Merge all runs into the job's part."""
        result = PartResult(left_out=self._state.left_out)
        if self._state.runs:
            path = self._job.staging_path(".parquet", folder=FOLDER)
            written = self._write(path, self._sorted())
            result.part = path.rpartition("/")[2]
            result.entries, result.bytes = written.entries, written.bytes
            if written.least is not None and written.greatest is not None:
                result.least, result.greatest = text_of(written.least), text_of(written.greatest)
        plain: dict[str, Any] = msgspec.to_builtins(result)
        return plain

    def _save(self) -> None:
        self._job.save_checkpoint(msgspec.json.encode(self._state))

    def _location(self, attempt: str, number: int) -> str:
        folder = staging_folder(self._job.operation, FOLDER)
        return f"{folder}/{staging_stem(self._job.partition, attempt)}-{number}{RUN}"

    def _write(self, location: str, entries: Iterable[pa.RecordBatch]) -> EntriesWritten:
        expected = sum(file.rows for file in self._files)
        return write_entries(self._build.io, location, self._plan.encoding, entries, expected=expected)

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        """The entries of all runs, in key order."""
        entries = (
            batch
            for runs in self._state.runs
            for number in range(runs.count)
            for batch in read_entries(self._build.io, self._location(runs.attempt, number))
        )
        return _without_repeats(sort_rows(entries, _ORDER, self._job.scratch_path()))

    # -- one data file -----------------------------------------------------------------------------------

    def _write_run(self, file: DataFileSeen, number: int) -> None:
        runs = self._state.runs
        if not runs or runs[-1].attempt != self._job.attempt:
            runs = [*runs, Runs(self._job.attempt, 0)]
        written = self._write(self._location(self._job.attempt, runs[-1].count), self._entries(file, number))
        if written.entries:
            runs[-1].count += 1
            self._state.runs = runs

    def _entries(self, file: DataFileSeen, number: int) -> Iterator[pa.RecordBatch]:
        """The keys of a file; a key may repeat if a row group is read in several batches. Raises
        ``pa.ArrowInvalid`` if the file is damaged."""
        try:
            yield from self._keys(file, number)
        except FileNotFoundError:
            raise
        except OSError as error:
            # Arrow raises the same for a page that it cannot decode and for a disk or a network that fails.
            with open_data_file(self._build, file.path) as stream:
                while stream.read(READ_BYTES):
                    self._job.raise_if_cancelled()
            raise pa.ArrowInvalid(f"it can be read, but not decoded: {error}") from error

    def _keys(self, file: DataFileSeen, file_number: int) -> Iterator[pa.RecordBatch]:
        if file.format.upper() != "PARQUET":
            raise _UnknownColumn(f"{file.path} is a file of format {file.format}")
        schema = entry_schema(self._plan.encoding)
        with (
            open_data_file(self._build, file.path) as stream,
            pq.ParquetFile(stream, coerce_int96_timestamp_unit="us") as parquet,  # as all readers of tables
        ):
            name = column_in(parquet.schema_arrow, self._plan.field_id, self._plan.names)
            if name is None:
                return  # the column is newer than the file: only NULL
            for group in range(parquet.metadata.num_row_groups):
                for batch in parquet.iter_batches(
                    BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False
                ):
                    self._job.raise_if_cancelled()
                    keys = keys_of(batch.column(0), self._kind)
                    numbers = (
                        pa.array(np.full(len(keys), number, np.int32)) for number in (file_number, group)
                    )
                    yield pa.RecordBatch.from_arrays([keys, *numbers], schema=schema)


class _UnknownColumn(Exception):
    """It is unknown where a file has the column."""


def open_data_file(build: Build, path: str) -> Any:
    """A data file to read."""
    return build.io.new_input(path).open()


def column_in(schema: pa.Schema, field_id: int, names: list[str]) -> str | None:
    """The name of a column in a file; ``None`` if the file does not have it.

    It is found by field id; in files without ids, by the table's name mapping.
    """
    ids = {
        int(column.metadata[_FIELD_ID]): column.name
        for column in schema
        if column.metadata and _FIELD_ID in column.metadata
    }
    if ids:
        return ids.get(field_id)
    if not names:
        raise _UnknownColumn("it has no field ids, and the table has no name mapping")
    return next((name for name in names if name in schema.names), None)


def _without_repeats(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted entries without duplicates."""
    last: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if last is None else pa.concat_batches([last, batch])
        differs = pa.array(np.zeros(len(rows) - 1, bool))
        for column in rows.columns:
            differs = pc.or_(differs, pc.not_equal(column[1:], column[:-1]))
        yield rows.filter(pa.concat_arrays([pa.array([last is None]), differs]))
        last = batch[-1:]
