"""A job of ``build_index``: the keys of some data files, sorted and written as one part of the index.

Of each data file the job reads one column, row group by row group, and writes its keys as a sorted run;
then it saves a checkpoint that names the runs so far. They lie in the operation's own folder, so the next
attempt goes on behind the last finished file on whatever host. At the end the runs are merged into the
part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distop.commit.index.blooms import write_blooms
from distop.commit.index.keys import keys_of, text_of
from distop.commit.index.manifest import FOLDER, bloom_path
from distop.commit.index.plan import MERGE, Build, DataFileSeen
from distop.commit.index.publish import RUN, PartResult, Places
from distop.commit.index.runs import MERGED_AT_ONCE, RunWriter, Source, merge, sorted_entries
from distop.errors import CorruptRecord
from distop.metastore.crashpoints import reached
from distop.metastore.records.structs import ready
from distop.operations.job import JobContext, staging_folder, staging_stem

log = logging.getLogger(__name__)

BATCH_ROWS = 65_536
"""Rows of a column that are read at a time."""

SPILL_BYTES = 64 << 20
"""Keys of a data file are sorted and written once they take so much memory."""

MAX_ATTEMPTS_NAMED = 8
"""So many attempts may the runs of a checkpoint be of; before there are more, they are merged into one."""

_FIELD_ID = b"PARQUET:field_id"


class Runs(msgspec.Struct, array_like=True):
    """Runs of one attempt."""

    attempt: str
    first: int
    end: int
    """They are numbered from ``first`` up to, but without, this."""


class Checkpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far the job is. Under 1 KiB, however many attempts it took."""

    done: int = 0
    """Files that are finished."""
    runs: list[Runs] = []
    left_out: str = ""
    """The finished files that could not be indexed."""


def run_job(job: JobContext) -> dict[str, Any]:
    """Do it; see :class:`~distop.commit.index.publish.PartResult` for what it returns."""
    build = Build(job.operation)
    if job.partition.startswith(MERGE):
        files, sources = build.merged_files(int(job.partition.removeprefix(MERGE)))
        merging = [Source(path, numbers) for path, numbers in sources]
        return _part(job, build, merging, "") if files else msgspec.to_builtins(PartResult())
    work = _Slice(job, build)
    work.index()
    try:
        return _part(job, build, work.sources(), work.state.left_out)
    except FileNotFoundError as error:
        # Somebody has removed a run: nothing that was done before can be relied upon.
        job.save_checkpoint(msgspec.json.encode(Checkpoint()))
        raise CorruptRecord(f"a run of {job.operation.id} is missing: {error}") from error


class _Slice:
    """The files of one job."""

    def __init__(self, job: JobContext, build: Build) -> None:
        self._job, self._build, self._plan = job, build, build.plan
        self._kind = build.plan.iceberg_type()
        saved = job.load_checkpoint()
        self.state = Checkpoint() if saved is None else msgspec.json.decode(saved, type=ready(Checkpoint))
        self._written = 0

    def index(self) -> None:
        """Write runs of all files that have none yet, with a checkpoint behind each file."""
        files = self._build.slice(int(self._job.partition))
        left_out = Places.read(self.state.left_out)
        for place in range(self.state.done, len(files)):
            self._job.raise_if_cancelled()
            if len(self.sources()) >= MERGED_AT_ONCE or len(self.state.runs) >= MAX_ATTEMPTS_NAMED:
                self._fold()
            first = self._written
            if not self._write_runs(files[place], place):
                left_out.add(place)
                self.state.left_out = str(left_out)
            if self._written > first:
                self._note(first)
            self.state.done = place + 1
            self._save()
        if len(self.sources()) > MERGED_AT_ONCE:
            self._fold()

    def sources(self) -> list[Source]:
        """All runs so far."""
        return [
            Source(self._location(runs.attempt, number))
            for runs in self.state.runs
            for number in range(runs.first, runs.end)
        ]

    def _location(self, attempt: str, number: int) -> str:
        folder = staging_folder(self._job.operation, FOLDER)
        return f"{folder}/{staging_stem(self._job.partition, attempt)}-{number}{RUN}"

    def _note(self, first: int) -> None:
        """Runs from ``first`` on are finished."""
        mine = self.state.runs[-1] if self.state.runs else None
        if mine is not None and mine.attempt == self._job.attempt and mine.end == first:
            mine.end = self._written
        else:
            self.state.runs.append(Runs(self._job.attempt, first, self._written))

    def _save(self) -> None:
        self._job.save_checkpoint(msgspec.json.encode(self.state))

    def _fold(self) -> None:
        """Make one run of all."""
        sources = self.sources()
        while len(sources) > 1:
            location = self._location(self._job.attempt, self._next_run())
            some, rest = sources[:MERGED_AT_ONCE], sources[MERGED_AT_ONCE:]
            merge(self._build.io, some, location, self._plan.encoding, with_blooms=False)
            sources = [*rest, Source(location)]
        self.state.runs = [Runs(self._job.attempt, self._written - 1, self._written)]
        self._save()

    def _next_run(self) -> int:
        number, self._written = self._written, self._written + 1
        return number

    def _write_runs(self, file: DataFileSeen, place: int) -> bool:
        """Index one file; ``False`` if it has to be left out."""
        first = self._written
        try:
            for entries in self._entries(file, place):
                location = self._location(self._job.attempt, self._next_run())
                writer = RunWriter(self._build.io, location, self._plan.encoding, expected=entries.num_rows)
                try:
                    writer.write(entries)
                    writer.close()
                except BaseException:
                    writer.abort()
                    raise
        except (FileNotFoundError, pa.ArrowInvalid, pa.ArrowNotImplementedError, _UnknownColumn) as error:
            # Removed by another program, or not what Parquet files are: readers will meet it themselves.
            log.warning("file_not_indexed", extra={"path": file.path, "error": str(error)})
            self._written = first
            return False
        return True

    def _entries(self, file: DataFileSeen, place: int) -> Iterator[pa.Table]:
        if file.format.upper() != "PARQUET":
            raise _UnknownColumn(f"{file.path} is a file of format {file.format}")
        with open_data_file(self._build, file.path) as stream, pq.ParquetFile(stream) as parquet:
            name = column_in(parquet.schema_arrow, self._plan.field_id, self._plan.names)
            if name is None:
                return  # the column is younger than the file: nothing but NULL
            yield from self._sorted_keys(parquet, name, place)

    def _sorted_keys(self, parquet: pq.ParquetFile, name: str, place: int) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        size = 0
        for group in range(parquet.metadata.num_row_groups):
            keys: list[pa.Array] = []
            batches = parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False)
            for batch in batches:
                self._job.raise_if_cancelled()
                keys = _together([*keys, keys_of(batch.column(0), self._kind)])
                if size + sum(each.nbytes for each in keys) >= SPILL_BYTES:
                    yield _sorted(waiting, keys, place, group)
                    waiting, keys, size = [], [], 0
            for each in keys:
                waiting.append(sorted_entries(each, place, group))
                size += waiting[-1].nbytes
        if any(entries.num_rows for entries in waiting):
            yield _sorted(waiting, [], place, 0)


class _UnknownColumn(Exception):
    """Nobody can tell where a file has the column."""


def open_data_file(build: Build, path: str) -> Any:
    """A data file, to be read from."""
    return build.io.new_input(path).open()


def column_in(schema: pa.Schema, field_id: int, names: list[str]) -> str | None:
    """What a column is called in a file; ``None`` if the file does not have it.

    Told by field id; in files without any, by the names that the table gives for it.
    """
    ids = {
        int(column.metadata[_FIELD_ID]): column.name
        for column in schema
        if column.metadata and _FIELD_ID in column.metadata
    }
    if ids:
        return ids.get(field_id)
    if not names:
        raise _UnknownColumn("it has no field ids, and the table no names for them")
    return next((name for name in names if name in schema.names), None)


def _together(keys: list[pa.Array]) -> list[pa.Array]:
    """Keys of batches of a row group; joined now and then, since most stand in many batches."""
    if len(keys) < 8:
        return keys
    return [pc.unique(pa.concat_arrays(keys))]


def _sorted(waiting: list[pa.Table], keys: list[pa.Array], place: int, group: int) -> pa.Table:
    tables = [*waiting, *(sorted_entries(each, place, group) for each in keys)]
    entries = pa.concat_tables(tables).combine_chunks()
    return entries.sort_by([("key", "ascending"), ("group", "ascending")])


def _part(job: JobContext, build: Build, sources: list[Source], left_out: str) -> dict[str, Any]:
    """Merge runs, or parts, into the part that the job is for."""
    result = PartResult(left_out=left_out)
    if sources:
        reached("job.file.before")
        path = job.staging_path(".parquet", folder=FOLDER)
        written, blooms = merge(build.io, sources, path, build.plan.encoding)
        reached("job.file.middle")
        result.bloom_bytes = write_blooms(build.io, bloom_path(path), blooms)
        reached("job.file.after")
        result.part = path.rpartition("/")[2]
        result.entries, result.bytes = written.entries, written.bytes
        if written.least is not None and written.greatest is not None:
            result.least, result.greatest = text_of(written.least), text_of(written.greatest)
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain
