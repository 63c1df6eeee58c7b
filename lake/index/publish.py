"""Publishes an index: a manifest of its parts, and one pointer in etcd to the manifest.

Nothing is merged here, and no part is read. The pointer moves in the transaction that finishes the build, if
it is unchanged since the build began. The later sweep removes replaced files, parts first and their manifest
last, so that a repeated sweep finds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec
from pyiceberg.io import FileIO

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import Conflict, CorruptRecord
from distop.lake.index.manifest import FOLDER, IndexManifest, IndexPart, read_manifest, write_manifest
from distop.lake.index.plan import Build
from distop.lake.storage.storage import entries, inside, remove_files, remove_if_empty
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import HistoryRecord, JobRecord, OperationArg
from distop.metastore.records.record import convert, decode, encode
from distop.metastore.records.table import IndexRecord
from distop.operations.job import staging_folder

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
