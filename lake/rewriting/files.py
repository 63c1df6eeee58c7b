"""Finds the files that a deletion concerns: those removed unread, and those that must be read.

A file is removed unread if its statistics prove the predicate for all its rows, and skipped if they, or its
partition, exclude it. The others are read together with their delete files: a row that was deleted before
must not return when the file is rewritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from distop.errors import PreconditionFailed
from distop.lake.iceberg.content import is_live
from distop.lake.predicates.binding import Predicate
from distop.lake.predicates.proofs import Pruning
from distop.lake.rewriting.deletes import Deletes
from distop.lake.rewriting.rewrite_plan import Place, Places

MANIFESTS_AT_A_TIME = 16
MAX_FILES_PER_JOB = 256
"""Most files of a job: its record says of each, in one bit, whether it was changed."""
MAX_JOBS = 10_000


class Leaving(NamedTuple):
    """A file that the deletion removes from the table, or may remove."""

    path: str
    place: Place
    rows: int
    """Rows as the table counts them, including rows that delete files remove."""


@dataclass(frozen=True)
class Concerned:
    """The files of a snapshot that may contain rows of a predicate."""

    whole: list[Leaving] = field(default_factory=list)
    """Files whose rows are all deleted."""
    jobs: list[list[FileScanTask]] = field(default_factory=list)
    """To be read, by job."""
    delete_files: frozenset[str] = frozenset()
    """All delete files of the snapshot."""

    @property
    def digest(self) -> str:
        """Equal for the same files, split into the same jobs."""
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
    where: Predicate,
    job_bytes: int,
    *,
    all_go: bool = True,
) -> Concerned:
    """The files of a snapshot that a predicate concerns.

    Parameters
    ----------
    job_bytes:
        About how many bytes one job reads.
    all_go:
        Whether all rows of the predicate are deleted; otherwise each file is read.

    Raises
    ------
    PreconditionFailed
        One of them must be read, and cannot be.
    """
    live = [manifest for manifest in snapshot.manifests(io) if is_live(manifest)]
    data = [manifest for manifest in live if manifest.content == ManifestContent.DATA]
    deletes = Deletes(metadata, io, live)
    pruning = Pruning(metadata, where)
    places = Places(metadata)
    whole: list[Leaving] = []
    read: list[tuple[Place, FileScanTask]] = []
    for entry in entries_of(metadata, io, filter(pruning.manifest, data)):
        file = entry.data_file
        if not pruning.file(file):
            continue
        place = places.of(file)
        applied = deletes.applied_to(entry)
        if all_go and not applied and pruning.whole(file):
            whole.append(Leaving(file.file_path, place, file.record_count))
            continue
        if file.file_format != FileFormat.PARQUET or file.key_metadata is not None:
            raise PreconditionFailed(
                f"{file.file_path} may hold rows to delete, but is not a Parquet file, or is encrypted",
                hint="change it with the program that wrote it",
            )
        read.append((place, FileScanTask(file, set(applied))))
    read.sort(key=lambda one: (one[0][0], [value or "" for value in one[0][1]], one[1].file.file_path))
    jobs = list(_jobs([task for _, task in read], job_bytes))
    if len(jobs) > MAX_JOBS:
        raise PreconditionFailed(
            f"{len(read):,} files may hold rows to be deleted, which need {len(jobs):,} jobs of at most "
            f"{MAX_JOBS:,}",
            hint="delete in parts, for example one partition after the other; or compact the table first",
        )
    return Concerned(whole, jobs, deletes.paths)


def entries_of(
    metadata: TableMetadata, io: FileIO, manifests: Iterable[ManifestFile]
) -> Iterator[ManifestEntry]:
    """The files that some manifests list, read a few at a time; without those that hold no rows."""
    planner, rest = ManifestGroupPlanner(metadata, io), iter(manifests)
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
