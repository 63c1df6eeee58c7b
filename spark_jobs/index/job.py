"""The build of an index: its plan, and a job: the keys of some data files, sorted, as one part of the index.

For each data file the job reads one column, row group by row group, and writes its keys as a *run*; then it
saves a checkpoint with the runs so far. They are in the folder of the operation, so the next attempt
continues after the last finished file, on any host. At the end the runs are merged into the part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.iceberg.metadata_files import present_file
from distop.lake.index.lookup import (
    FOLDER,
    EntriesWritten,
    IndexManifest,
    encoding_of,
    entry_schema,
    keys_of,
    load_manifest,
    read_entries,
    text_of,
    write_entries,
)
from distop.lake.index.publish import (
    RUN,
    Build,
    DataFileSeen,
    FilePositions,
    IndexPlan,
    PartResult,
    not_covered,
    snapshot_files,
)
from distop.lake.layout.model import file_io
from distop.lake.storage.storage import storage_of
from distop.lake.writing.sorting import Key, sort_rows
from distop.operations import JobContext, Plan, PlanRequest, from_json
from distop.operations.arguments import invalid
from distop.operations.job import staging_folder, staging_stem
from distop.operations.plans import Shared

ROWS_PER_JOB = 32_000_000
"""Most rows of a job with several files: it limits what is sorted again when a job is killed."""

MERGE_ABOVE = 16
"""Most small parts of an index; if there are more, the next build indexes their files again."""


def plan_index(request: PlanRequest, name: str, *, full: bool, files_per_job: int) -> Plan:
    """The plan of :class:`.operation.BuildIndex`: which files each job indexes."""
    file = present_file(request)
    if file is None or (snapshot := file.metadata.current_snapshot()) is None:
        raise PreconditionFailed(
            f"nothing has been published to table {request.table.name!r}",
            hint="ingest something first, then build the index",
        )
    metadata = file.metadata
    schema = metadata.schema()
    column = next((field for field in schema.columns if field.name == name), None)
    if column is None:
        known = ", ".join(field.name for field in schema.columns)
        raise invalid("column", f"the table has no column {name!r}; it has {known}")
    if column.initial_default is not None:
        raise invalid(
            "column",
            f"column {column.name!r} has a default value, which is not in files without the column",
            "index another column",
        )
    encoding = encoding_of(column.name, column.field_type)
    io = file_io(request.table.location, storage_of(request.table))
    published = request.index
    base: IndexManifest | None = None
    if published is not None and not full and published.field_id == column.field_id:
        base = load_manifest(io, published.manifest, request.table.location.rstrip("/"))
        if base is not None and not base.fits(schema, column.field_id):
            base = None
    present = snapshot_files(io, snapshot.manifest_list)
    rebuilt = [] if base is None else parts_to_rebuild(base, present, files_per_job)
    kept = None if base is None else base.without(rebuilt)
    mapping = metadata.name_mapping()
    plan = IndexPlan(
        column=column.name,
        field_id=column.field_id,
        type=str(column.field_type),
        names=[] if mapping is None else _names(mapping, column.field_id),
        encoding=encoding,
        snapshot_id=str(snapshot.snapshot_id),
        sequence_number=snapshot.sequence_number or 0,
        manifest_list=snapshot.manifest_list,
        replaces="" if published is None else published.manifest,
        base=published.manifest if published is not None and base is not None else "",
        cuts=cut_into_jobs(not_covered(present, kept), files_per_job),
        rebuilt=rebuilt,
        layout={"properties": dict(metadata.properties)},
    )
    return Plan(argument=plan.to_argument(), partition_count=plan.slices)


def cut_into_jobs(files: Sequence[DataFileSeen], most_files: int) -> list[int]:
    """Where to split a list of files, so that no job has too many of them, or (with more than one) too many
    rows."""
    cuts, rows = [0], 0
    for number, file in enumerate(files):
        if number > cuts[-1] and (number - cuts[-1] >= most_files or rows + file.rows > ROWS_PER_JOB):
            cuts.append(number)
            rows = 0
        rows += file.rows
    return [*cuts, len(files)] if files else cuts


def parts_to_rebuild(index: IndexManifest, present: Sequence[DataFileSeen], files_per_job: int) -> list[int]:
    """Positions of parts whose files are indexed again: small ones, if there are many; and those that have
    lost most files.

    A part is small if one job could index the files of two such parts: so it does not stay small for ever.

    Parameters
    ----------
    present:
        The files of the snapshot to cover.
    """
    rows_of = {file.path: file.rows for file in present}
    small, worn = [], []
    for number, part in enumerate(index.parts):
        rows = [rows_of[file] for file in part.files if file in rows_of]
        if rows and len(rows) * 2 < len(part.files):
            worn.append(number)
        elif rows and len(rows) * 2 <= files_per_job and sum(rows) * 2 <= ROWS_PER_JOB:
            small.append(number)
    return sorted(worn + small) if len(small) > MERGE_ABOVE else worn


def _names(mapping: Any, field_id: int) -> list[str]:
    return [name for field in mapping for name in field.names if field.field_id == field_id]


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
