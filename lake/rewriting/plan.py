"""The frozen plan of a deletion: the snapshot and the predicate, from which jobs and commit find the same
files.

A snapshot never changes. So the plan need not list its files, which may be many: the jobs and the commit find
them again in the snapshot's manifests, and a digest proves that they are those of the plan.

A file is removed unread if its statistics prove the predicate for all its rows, and skipped if they, or its
partition, exclude it. The others are read together with their delete files: a row that was deleted before
must not return when the file is rewritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.iceberg.metadata_files import is_live
from distop.lake.layout.model import file_io, schema_with
from distop.lake.predicates.binding import Predicate, predicate_of
from distop.lake.predicates.proofs import Pruning
from distop.lake.rewriting.replace_partitions import Deletes, FilePartition, FilePartitions
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import Shared, plan_of

MANIFESTS_AT_A_TIME = 16
MAX_FILES_PER_JOB = 256
"""Most files of a job: its record says of each, in one bit, whether it was changed."""
MAX_JOBS = 10_000


class Leaving(NamedTuple):
    """A file that the deletion removes from the table, or may remove."""

    path: str
    partition: FilePartition
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
        for path in sorted(file.path for file in self.whole):
            digest.update(path.encode() + b"\n")
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
    places = FilePartitions(metadata)
    whole: list[Leaving] = []
    read: list[tuple[FilePartition, FileScanTask]] = []
    for entry in entries_of(metadata, io, filter(pruning.manifest, data)):
        file = entry.data_file
        if not pruning.file(file):
            continue
        partition = places.of(file)
        applied = deletes.applied_to(entry)
        if all_go and not applied and pruning.whole(file):
            whole.append(Leaving(file.file_path, partition, file.record_count))
            continue
        if file.file_format != FileFormat.PARQUET or file.key_metadata is not None:
            raise PreconditionFailed(
                f"{file.file_path} may hold rows to delete, but is not a Parquet file, or is encrypted",
                hint="change it with the program that wrote it",
            )
        read.append((partition, FileScanTask(file, set(applied))))
    read.sort(key=lambda task: (task[0][0], [value or "" for value in task[0][1]], task[1].file.file_path))
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


class SnapshotPlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """The plan of an operation that rewrites files of one snapshot, as it is recorded."""

    where: str
    """Rows for which this is true may be deleted."""
    all_go: bool = True
    """Whether they all are, so that a file with only such rows need not be read."""
    snapshot_id: str | None = None
    """The snapshot to read. A string, since JSON readers' numbers are too small for it."""
    table: dict[str, Any] = {}
    """The table's metadata, without its past: enough to read the snapshot."""
    snapshot: dict[str, Any] = {}
    """Empty if no file is concerned."""
    job_bytes: int = 0
    """About how many bytes on disk one job reads."""
    digest: str = ""
    """Digest of the files; see :attr:`~distop.lake.rewriting.plan.Concerned.digest`."""

    @property
    def metadata(self) -> TableMetadata:
        """The table as it was when the deletion was planned. Raises :class:`~distop.errors.CorruptRecord`."""
        try:
            return TableMetadataUtil.parse_raw(msgspec.json.encode(self.table).decode())
        except ValueError as error:
            raise CorruptRecord(f"the plan of a deletion records no table: {error}") from error


class DeletePlan(SnapshotPlan, kw_only=True):
    """The plan of a deletion: the argument of its operation."""

    branch: str = ""
    """The branch to write to; empty: the table itself."""
    layout: dict[str, Any] = {}
    """What is written; see :meth:`distop.lake.layout.model.Layout.to_json`. """


class _Merging(msgspec.Struct):
    merge: SnapshotPlan


def snapshot_plan(operation: OperationArg) -> SnapshotPlan:
    """The plan of a deletion or of a merge. Raises :class:`~distop.errors.CorruptRecord`."""
    if "merge" in operation.argument:
        return plan_of(operation, _Merging, "plan of a merge").merge
    return plan_of(operation, DeletePlan, "plan of a deletion")


def planned_on(metadata: TableMetadata, snapshot: Snapshot) -> dict[str, Any]:
    """The fields of a plan that hold a snapshot, and the metadata needed to read it."""
    typing = [schema for spec in metadata.partition_specs if (schema := schema_with(metadata, spec))]
    slim: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "schemas": list({schema.schema_id: schema for schema in (*typing, metadata.schema())}.values()),
        "current_snapshot_id": None,
    }
    table = metadata.model_copy(update=slim)
    return {
        "snapshot_id": str(snapshot.snapshot_id),
        "table": msgspec.json.decode(table.model_dump_json()),
        "snapshot": msgspec.json.decode(snapshot.model_dump_json()),
    }


def concerned(operation: OperationArg) -> Concerned:
    """The files of an operation, found again.

    Raises
    ------
    PreconditionFailed
        The snapshot no longer exists, or its files are not those of the plan.
    """
    plan = snapshot_plan(operation)
    metadata = plan.metadata
    io = file_io(operation.location, operation.storage)
    try:
        snapshot = Snapshot.model_validate_json(msgspec.json.encode(plan.snapshot))
    except ValueError as error:
        raise CorruptRecord(f"the plan of {operation.id} records no snapshot: {error}") from error
    try:
        where = predicate_of(plan.where, metadata.schema(), "where")
        affected = concerned_by(metadata, snapshot, io, where, plan.job_bytes, all_go=plan.all_go)
    except FileNotFoundError as error:
        raise PreconditionFailed(
            f"snapshot {plan.snapshot_id}, which {operation.id} began on, no longer exists: {error}",
            hint="nothing was changed; start the operation again, and do not expire snapshots while it runs",
        ) from error
    if affected.digest != plan.digest:
        raise PreconditionFailed(
            f"the files found for {operation.id} are not those of its plan",
            hint="run the same distop on coordinators and executors, and start the operation again",
        )
    return affected


concerned_shared = Shared(concerned)
"""The same for jobs: those of one operation in one process share it."""
