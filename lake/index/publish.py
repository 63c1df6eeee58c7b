"""A build of an index: its plan; a manifest of its parts and one pointer to that in etcd.

Nothing is merged here, and no part is read. The pointer moves in the transaction that finishes the build, if
it is unchanged since the build began. The later sweep removes replaced files, parts first and their manifest
last, so that a repeated sweep finds the rest.

The plan does not list the data files: there may be a hundred thousand, and etcd stores the plan. It names the
manifest list of one snapshot, which never changes, and where the sorted file names are split. A process that
needs the files computes them from that, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

import msgspec
from pydantic import TypeAdapter, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.types import IcebergType, PrimitiveType

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import Conflict, CorruptRecord
from distop.lake.index.lookup import (
    FOLDER,
    IndexManifest,
    IndexPart,
    load_manifest,
    read_manifest,
    write_manifest,
)
from distop.lake.layout.model import file_io
from distop.lake.storage.storage import FILES_AT_ONCE, entries, inside, remove_files, remove_if_empty
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import HistoryRecord, JobRecord, OperationArg
from distop.metastore.records.record import convert, decode, encode
from distop.metastore.records.table import IndexRecord
from distop.operations.job import staging_folder
from distop.operations.plans import plan_of


@dataclass(frozen=True, slots=True)
class DataFileSeen:
    """A data file of a snapshot."""

    path: str
    format: str
    """``PARQUET``, ``ORC`` or ``AVRO``."""
    rows: int


class IndexPlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The argument of ``build_index``."""

    column: str
    field_id: int
    type: str
    """Type of the column, as Iceberg writes it."""
    names: list[str] = []
    """Names of the column in files without field ids."""
    encoding: str
    snapshot_id: str
    """Text: other JSON readers would lose the last digits of a number."""
    sequence_number: int = 0
    manifest_list: str
    """Manifest list of that snapshot."""
    replaces: str = ""
    """The manifest of the present index when this build starts; empty: there is none."""
    base: str = ""
    """The same if its parts are kept; empty: all files are indexed again."""
    cuts: list[int]
    """Where the sorted list of files to index is split: job ``n`` has those from ``cuts[n]`` on."""
    rebuilt: list[int] = []
    """Positions of the parts of ``base`` that are not kept: their files are indexed again."""
    layout: dict[str, Any] = {}
    """Only ``properties``: how to reach the table's files."""

    def to_argument(self) -> dict[str, Any]:
        """The plan in the form of the operation's argument."""
        argument: dict[str, Any] = msgspec.to_builtins(self)
        return argument

    @classmethod
    def of(cls, arg: OperationArg) -> IndexPlan:
        """The plan of an operation that builds an index. Raises :class:`~distop.errors.CorruptRecord`."""
        return plan_of(arg, cls, "plan of an index")

    @property
    def slices(self) -> int:
        """The number of jobs that index files."""
        return len(self.cuts) - 1

    def iceberg_type(self) -> IcebergType:
        """The column's type."""
        return parse_type(self.type)


def parse_type(text: str) -> IcebergType:
    """A primitive type by its Iceberg name."""
    try:
        parsed: IcebergType = TypeAdapter(PrimitiveType).validate_python(text)
        return parsed
    except (ValidationError, ValueError) as error:
        raise CorruptRecord(f"{text!r} is not a column type") from error


class Build:
    """A build of an index and its files."""

    def __init__(self, arg: OperationArg) -> None:
        self.arg = arg
        self.plan = IndexPlan.of(arg)
        self.root = arg.location.rstrip("/")
        self.io: FileIO = file_io(arg.location, arg.storage)

    @cached_property
    def base(self) -> IndexManifest | None:
        """The index to continue, with the retained parts.

        Raises :class:`~distop.errors.CorruptRecord` if it can no longer be read.
        """
        if not self.plan.base:
            return None
        manifest = load_manifest(self.io, self.plan.base, self.root)
        if manifest is None:
            raise CorruptRecord(
                f"the index that {self.arg.id} continues cannot be read: {self.plan.base}",
                hint=f"distop operation cancel {self.arg.id}; then "
                f"distop table build-index {self.arg.table} {self.plan.column} --full",
            )
        return manifest.without(self.plan.rebuilt)

    @cached_property
    def present(self) -> list[DataFileSeen]:
        """All data files of the snapshot, by name."""
        return snapshot_files(self.io, self.plan.manifest_list)

    @cached_property
    def to_index(self) -> list[DataFileSeen]:
        """The files that jobs index, in order."""
        return not_covered(self.present, self.base)

    def slice(self, number: int) -> list[DataFileSeen]:
        """The files of one job."""
        start, end = self.plan.cuts[number : number + 2]
        return self.to_index[start:end]


def not_covered(files: Sequence[DataFileSeen], base: IndexManifest | None) -> list[DataFileSeen]:
    """Files that an index does not cover."""
    return [file for file in files if base is None or file.path not in base.part_of]


# -- the files of a snapshot -------------------------------------------------------------------------


def snapshot_files(io: FileIO, manifest_list: str) -> list[DataFileSeen]:
    """All data files of a snapshot, by name.

    Raises :class:`~distop.errors.CorruptRecord` if the snapshot was expired meanwhile.
    """
    try:
        return sorted(_files_in(io, manifest_list), key=lambda file: file.path)
    except FileNotFoundError as error:
        raise CorruptRecord(
            f"the snapshot that is being indexed is gone: {error}",
            hint="was it expired by another program? cancel the operation and start it again",
        ) from error


def _files_in(io: FileIO, manifest_list: str) -> Iterator[DataFileSeen]:
    def listed(manifest: ManifestFile) -> list[DataFileSeen]:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        files = (entry.data_file for entry in entries)
        return [
            DataFileSeen(file.file_path, str(file.file_format.value), file.record_count) for file in files
        ]

    manifests = [
        manifest
        for manifest in read_manifest_list(io.new_input(manifest_list))
        # Deleted rows only make an answer larger than necessary.
        if manifest.content == ManifestContent.DATA
    ]
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="index-files") as pool:
        for files in pool.map(listed, manifests):
            yield from files


RUN = ".run"
"""Suffix of the names of runs; no manifest refers to runs."""

MANIFEST, REPLACED = "indexManifest", "replacedIndexManifest"
"""Facts of the commit: locations of the published manifest, and of the replaced one."""


class FilePositions(set[int]):
    """Some of a job's files, by position."""

    @classmethod
    def read(cls, text: str) -> FilePositions:
        """The inverse of ``str``."""
        bits = int(text or "0", 16)
        return cls(bit for bit in range(bits.bit_length()) if bits >> bit & 1)

    def __str__(self) -> str:
        """A bitmap, hexadecimal: short for any number of files. Empty: none."""
        return f"{sum(1 << bit for bit in self):x}" if self else ""


class PartResult(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The result of a job: a part, without the names of its files, which follow from the plan."""

    part: str = ""
    """Name of the file below the operation's folder; empty: its files hold only NULL."""
    entries: int = 0
    bytes: int = 0
    least: int | str | None = None
    greatest: int | str | None = None
    left_out: str = ""
    """Files that could not be indexed, see :class:`FilePositions`."""


class IndexPublish(TransactionalStep):
    """Moves the pointer of an index to the built and retained parts."""

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        Conflict
            The index was published by another operation since the build began.
        CorruptRecord
            The snapshot, or the index to continue, is gone.
        """
        arg = context.view.arg
        build = Build(arg)
        published = (
            decode(context.index.value, IndexRecord, context.index.key) if context.index.exists else None
        )
        if (published.manifest if published is not None else "") != build.plan.replaces:
            raise Conflict(
                f"the index on {build.plan.column!r} of table {arg.table!r} has changed since {arg.id} began",
                hint="start it again",
            )
        manifest = manifest_of(build, context.view.jobs)
        location = f"{staging_folder(arg, FOLDER)}/{uuid4().hex}.index.json"
        record = IndexRecord(
            column=build.plan.column,
            field_id=build.plan.field_id,
            manifest=location,
            snapshot_id=manifest.snapshot_id,
            sequence_number=build.plan.sequence_number,
            files=len(manifest.part_of),
            left_out=len(manifest.left_out),
            parts=len(manifest.parts),
            entries=manifest.entries,
            bytes=manifest.bytes,
            operation=str(arg.id),
            at=context.now(),
        )

        def discard() -> None:
            with suppress(Exception):
                build.io.delete(location)

        try:
            write_manifest(build.io, location, manifest, build.root)
        except BaseException:
            discard()
            raise
        facts: dict[str, Any] = {
            "column": record.column,
            "snapshotId": str(record.snapshot_id),
            "files": record.files,
            "newFiles": build.plan.cuts[-1],
            "leftOut": record.left_out,
            "parts": record.parts,
            "entries": record.entries,
            "bytes": record.bytes,
            MANIFEST: location,
            REPLACED: build.plan.replaces,
        }
        pointer = Txn((unchanged(context.index),), (Put(context.index.key, encode(record)),))
        return Contribution(txn=pointer, facts=facts, discard=discard)


def manifest_of(build: Build, jobs: Mapping[str, JobRecord]) -> IndexManifest:
    """The index that results from a build's jobs."""
    plan, base = build.plan, build.base
    present = {file.path for file in build.present}
    parts: list[IndexPart] = []
    left_out: list[str] = []
    for part in base.parts if base is not None else ():
        files = [file if file in present else "" for file in part.files]
        if any(files):
            parts.append(msgspec.structs.replace(part, files=files))
    for number in range(plan.slices):
        files = [file.path for file in build.slice(number)]
        parts += _part(build, jobs, str(number), files, left_out)
    return IndexManifest(
        column=plan.column,
        field_id=plan.field_id,
        encoding=plan.encoding,
        snapshot_id=int(plan.snapshot_id),
        parts=parts,
        left_out=left_out,
    )


def _part(
    build: Build, jobs: Mapping[str, JobRecord], name: str, files: list[str], left_out: list[str]
) -> list[IndexPart]:
    job = jobs.get(name)
    if job is None or job.state != "success":
        left_out += files
        return []
    try:
        result = convert(job.result, PartResult)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"job {name} of {build.arg.id} has reported no part: {error}") from error
    missing = FilePositions.read(result.left_out)
    left_out += [file for number, file in enumerate(files) if number in missing]
    covered = ["" if number in missing else file for number, file in enumerate(files)]
    if not any(covered):
        return []
    part = IndexPart(
        path=f"{staging_folder(build.arg, FOLDER)}/{result.part}" if result.part else "",
        entries=result.entries,
        bytes=result.bytes,
        least=result.least,
        greatest=result.greatest,
        files=covered,
    )
    return [part]


# -- the sweep ---------------------------------------------------------------------------------------


def sweep_index(io: FileIO, operation: OperationArg, history: HistoryRecord) -> int:
    """Remove a build's temporary files, and the index that it replaced; return how many files.

    If the build's manifest cannot be read, only runs are removed: a later build has then replaced it, and may
    have kept its parts.
    """
    folder = staging_folder(operation, FOLDER)
    kept: set[str] = set()
    published: IndexManifest | None = None
    replaced = False
    if history.outcome == "success":
        location = str(history.facts.get(MANIFEST) or "")
        published = _read(io, location, operation)
        replaced = published is None
        kept = set() if published is None else published.paths() | {location}
    reached("sweep.before")
    own = {path.rpartition("/")[2] for path in kept}
    names = [entry.name for entry in entries(folder, operation.storage) if not entry.is_folder]
    victims = [name for name in names if (name.endswith(RUN) if replaced else name not in own)]
    removed = remove_files((f"{folder}/{name}" for name in victims), operation.storage)
    reached("sweep.middle")
    if published is not None:
        removed += _remove_replaced(io, operation, history, kept)
    remove_if_empty(folder)
    reached("sweep.after")
    return removed


def _remove_replaced(io: FileIO, operation: OperationArg, history: HistoryRecord, kept: set[str]) -> int:
    location = str(history.facts.get(REPLACED) or "")
    before = _read(io, location, operation) if location else None
    if before is None:
        return 0
    parts = inside(before.paths() - kept, f"{operation.location.rstrip('/')}/{FOLDER}")
    removed = remove_files(parts, operation.storage)
    removed += remove_files([location], operation.storage)
    for path in {path.rpartition("/")[0] for path in (*before.paths(), location)}:
        remove_if_empty(path)
    return removed


def _read(io: FileIO, location: str, operation: OperationArg) -> IndexManifest | None:
    try:
        return read_manifest(io, location, operation.location.rstrip("/"))
    except (FileNotFoundError, CorruptRecord):
        return None
