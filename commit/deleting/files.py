"""Finding the files that a deletion concerns: those that go as a whole, and those that must be read.

A file goes unread if its statistics prove the predicate of all its rows, and stays untouched if they, or its
partition, exclude it. The others are read, with the files of deleted rows that belong to them: a row that
somebody has deleted must not come back with what is written anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from distop.commit.deleting.predicate import certain, provable
from distop.commit.iceberg.content import is_live
from distop.commit.iceberg.rewrite_plan import packed_values
from distop.commit.pyiceberg_private import proving
from distop.errors import PreconditionFailed

MANIFESTS_AT_A_TIME = 16
MAX_FILES_PER_JOB = 256
"""A job's record says of each file whether it was changed, in one bit."""
MAX_JOBS = 10_000

Place: TypeAlias = tuple[int, tuple[str | None, ...]]
"""A partition spec's id, and packed values of it."""


class Leaving(NamedTuple):
    """A file that the deletion takes out of the table, or may."""

    path: str
    place: Place
    rows: int
    """As the table has it, with those that delete files remove."""


@dataclass(frozen=True)
class Concerned:
    """The files of a snapshot that a predicate may be true in."""

    whole: list[Leaving] = field(default_factory=list)
    """All their rows go."""
    jobs: list[list[FileScanTask]] = field(default_factory=list)
    """To be read, by job."""
    delete_files: frozenset[str] = frozenset()
    """All files of deleted rows that the snapshot has."""

    @property
    def digest(self) -> str:
        """The same for the same files, cut into the same jobs."""
        digest = hashlib.sha256()
        for one in sorted(file.path for file in self.whole):
            digest.update(one.encode() + b"\n")
        for job in self.jobs:
            digest.update(b"\n")
            for task in job:
                deletes = sorted(file.file_path for file in task.delete_files)
                digest.update("\t".join([task.file.file_path, *deletes]).encode() + b"\n")
        return digest.hexdigest()[:32]


def concerned_by(
    metadata: TableMetadata,
    snapshot: Snapshot,
    io: FileIO,
    where: BooleanExpression,
    job_bytes: int,
    *,
    all_go: bool = True,
) -> Concerned:
    """The files of a snapshot that a predicate concerns.

    Parameters
    ----------
    job_bytes:
        About so many bytes are read by one job.
    all_go:
        Whether all rows go that the predicate is true of; else each file is read.

    Raises
    ------
    PreconditionFailed
        One of them must be read, and cannot be.
    """
    live = [manifest for manifest in snapshot.manifests(io) if is_live(manifest)]
    data = [manifest for manifest in live if manifest.content == ManifestContent.DATA]
    deletes = Deletes(io, live)
    planner = ManifestGroupPlanner(metadata, io, certain(where, metadata.schema()))
    proves = proving(metadata.schema(), provable(where, metadata.schema()))
    places = Places(metadata)
    whole: list[Leaving] = []
    read: list[tuple[Place, FileScanTask]] = []
    for entry in _entries(planner, data):
        file = entry.data_file
        place = places.of(file)
        applied = deletes.applied_to(entry, place)
        if all_go and not applied and proves(file):
            whole.append(Leaving(file.file_path, place, file.record_count))
            continue
        if file.file_format != FileFormat.PARQUET or file.key_metadata is not None:
            raise PreconditionFailed(
                f"{file.file_path} may hold rows that are to go, and is no Parquet file, or an encrypted one",
                hint="change it with the program that has written it",
            )
        read.append((place, FileScanTask(file, set(applied))))
    read.sort(key=lambda one: (one[0][0], [value or "" for value in one[0][1]], one[1].file.file_path))
    jobs = list(_jobs([task for _, task in read], job_bytes))
    if len(jobs) > MAX_JOBS:
        raise PreconditionFailed(
            f"{len(read):,} files may hold rows to be deleted, which are {len(jobs):,} jobs of at most "
            f"{MAX_JOBS:,}",
            hint="delete in parts, for example one partition after the other; or compact the table first",
        )
    return Concerned(whole, jobs, deletes.paths)


def _entries(planner: ManifestGroupPlanner, manifests: Sequence[ManifestFile]) -> Iterator[ManifestEntry]:
    rest = iter(manifests)
    while some := list(islice(rest, MANIFESTS_AT_A_TIME)):
        for entries in planner.plan_manifest_entries(some):
            yield from entries


def _jobs(tasks: Sequence[FileScanTask], job_bytes: int) -> Iterator[list[FileScanTask]]:
    together: list[FileScanTask] = []
    size = 0
    for task in tasks:
        more = task.file.file_size_in_bytes
        if together and (size + more > job_bytes or len(together) >= MAX_FILES_PER_JOB):
            yield together
            together, size = [], 0
        together.append(task)
        size += more
    if together:
        yield together


class Places:
    """Which partition a file is in, by the spec that it was written with."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._specs, self._schema = metadata.specs(), metadata.schema()
        self._columns = self._schema.field_ids

    def of(self, file: DataFile) -> Place:
        """Raises :class:`~distop.errors.PreconditionFailed` if that cannot be told any more."""
        spec = self._specs[file.spec_id]
        # The types of a spec's fields are those of their columns; one that was dropped has none any more.
        if any(one.source_id not in self._columns for one in spec.fields):
            raise PreconditionFailed(
                f"{file.file_path} was written with partition spec {spec.spec_id}, which goes by a column "
                "that the table does not have any more",
                hint="rewrite the files of that partitioning with the program that has written them",
            )
        return spec.spec_id, packed_values(spec, self._schema, file.partition)


class Deletes:
    """The files of deleted rows that a snapshot has: programs other than distop write such.

    All of them are looked at. Their own statistics say what rows they name, and not what else is in the files
    that these rows are taken from.
    """

    def __init__(self, io: FileIO, manifests: Sequence[ManifestFile]) -> None:
        self.entries = [
            entry
            for manifest in manifests
            if manifest.content == ManifestContent.DELETES
            for entry in manifest.fetch_manifest_entry(io)
        ]
        self.paths = frozenset(entry.data_file.file_path for entry in self.entries)
        self._positions = DeleteFileIndex()
        self._equalities: list[ManifestEntry] = []
        for entry in self.entries:
            if entry.data_file.content == DataFileContent.POSITION_DELETES:
                self._positions.add_delete_file(entry, partition_key=entry.data_file.partition)
            else:
                self._equalities.append(entry)

    def applied_to(self, entry: ManifestEntry, place: Place) -> set[DataFile]:
        """Those that say which rows of a file are gone.

        Raises :class:`~distop.errors.PreconditionFailed` if they cannot be read here.
        """
        file, age = entry.data_file, entry.sequence_number or 0
        for equality in self._equalities:
            same = equality.data_file.spec_id == place[0] and equality.data_file.partition == file.partition
            if (same or not len(equality.data_file.partition)) and (equality.sequence_number or 0) > age:
                raise PreconditionFailed(
                    f"{file.file_path} may hold rows to be deleted, and others that an equality delete "
                    f"({equality.data_file.file_path}) has removed already, which cannot be read here",
                    hint="rewrite it with the program that has written the equality deletes",
                )
        return self._positions.for_data_file(age, file, partition_key=file.partition)
