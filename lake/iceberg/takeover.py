"""From the results of an operation's jobs to the manifests of a snapshot.

The tasks of a write through Spark's own interface know of no operation: Spark decides at the end whether
there will be one. So they write into folders named after the *write*, a name made when it begins. At the end
one list of the valid output is written there, and an operation without jobs publishes that. Its ``uuid`` is
the name of the write, so the folders are those of the operation: code that reports or removes the files of
operations works with them as well.

Before that operation starts, etcd does not know the files. The age in the name identifies them: the search
for orphans skips folders of recent writes, and old writes are not published.
"""

from __future__ import annotations

import binascii
import re
import secrets
import zlib
from base64 import b85decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from distop.commit.partial import Selection
from distop.errors import CorruptRecord
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.model import Layout, file_io
from distop.lake.storage.storage import FILES_AT_ONCE
from distop.lake.writing.manifests import (
    InlineManifest,
    ManifestBuilder,
    TaskManifest,
    adopt,
    join,
    open_manifest,
    summaries_from_json,
)
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import from_json
from distop.operations.job import staging_folder

TYPE = "write"
"""The type of operation that publishes them."""
LIST = "prepared"
"""Field of its argument: the name of the list, in the operation's folder for metadata."""

MAX_AGE_S = 3 * 86_400.0
"""A write that began longer ago is not published."""
SPARED_S = MAX_AGE_S + 2 * 3600.0
"""The folders of more recent writes are kept. The difference allows for clock skew."""

_NAME = re.compile(r"w(\d{8}T\d{6})-[0-9a-f]{12}")
_TIME = "%Y%m%dT%H%M%S"


class PreparedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The output of one task."""

    stem: str
    """Prefix of its files' names, as of an attempt at a job."""
    result: dict[str, Any]
    """Result of its :class:`~distop.lake.writing.writer.StagedWriter`."""


# -- names -------------------------------------------------------------------------------------------


def new_write(now: float) -> str:
    """A name for a write that begins now (seconds since the Unix epoch)."""
    began = datetime.fromtimestamp(now, UTC).strftime(_TIME)
    return f"w{began}-{secrets.token_hex(6)}"


def age_of(write: str, now: float) -> float | None:
    """Seconds since a write began; ``None`` if this is not the name of one."""
    matched = _NAME.fullmatch(write)
    if matched is None:
        return None
    began = datetime.strptime(matched[1], _TIME).replace(tzinfo=UTC)
    return now - began.timestamp()


def folder_of(write: str) -> str:
    """The folder of a write, below ``data`` and ``metadata``: the staging folder of its operation."""
    return f"{TYPE}-{write}"


def is_spared(folder: str, now: float) -> bool:
    """Whether a write may still use this folder, although no operation is known for it."""
    prefix, _, write = folder.partition("-")
    age = age_of(write, now) if prefix == TYPE else None
    return age is not None and age < SPARED_S


# -- the list ----------------------------------------------------------------------------------------


# A sweep may remove a folder that an earlier attempt published, between its creation and the file's.
@retry(retry=retry_if_exception_type(FileNotFoundError), stop=stop_after_attempt(5), reraise=True)
def write_list(io: FileIO, path: str, tasks: Sequence[PreparedTask]) -> None:
    """Write the list of the valid tasks. Its name must not have been used before."""
    with io.new_output(path).create(overwrite=True) as stream:
        stream.write(msgspec.json.encode(tasks))


def read_list(arg: OperationArg) -> list[PreparedTask]:
    """The list that an operation publishes; empty if it publishes none.

    Raises :class:`~distop.errors.CorruptRecord` if it is missing or damaged.
    """
    name = arg.argument.get(LIST)
    if not name:
        return []
    path = f"{staging_folder(arg, 'metadata')}/{name}"
    io = file_io(path, arg.storage)
    try:
        with io.new_input(path).open() as stream:
            return from_json(stream.read(), list[PreparedTask])
    except FileNotFoundError as error:
        raise CorruptRecord(f"the list {path} of what {arg.id} publishes is missing") from error
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{path} is not the list of what {arg.id} publishes: {error}") from error


M = TypeVar("M")

ADOPT_AT_MOST = 4
"""Up to this many task manifests are adopted as they are; more are merged, so readers open few files."""
ADOPT_FROM_BYTES = 1 << 20
"""A task manifest of this size is adopted as it is, however many there are."""
JOINED_BYTES = 8 << 20
"""Target size of a merged manifest, as Iceberg's ``commit.manifest.target-size-bytes``."""


@dataclass(frozen=True, kw_only=True)
class JobsOutput:
    """The output of all jobs of an operation."""

    manifests: list[TaskManifest]
    inline: list[InlineManifest] = field(default_factory=list)
    """File lists from the records of jobs."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    withheld: int = 0
    """Jobs whose output is left out, since they share a watermark with a failed job."""

    @property
    def empty(self) -> bool:
        return not (self.manifests or self.inline)

    @property
    def adopt_from(self) -> int:
        """Task manifests of at least this many bytes become manifests of the table; smaller ones are
        merged."""
        return 0 if len(self.manifests) <= ADOPT_AT_MOST else ADOPT_FROM_BYTES


def output_of_jobs(arg: OperationArg, selected: Selection) -> JobsOutput:
    """Sum up the results (see ``finish``) of the jobs that are published, and those of tasks
    that wrote before the operation began."""
    folder = staging_folder(arg, "metadata")
    output = JobsOutput(manifests=[], withheld=len(selected.withheld))
    results = [(f"job {partition}", job.result) for partition, job in selected.jobs.items()]
    results += [(f"task {task.stem}", task.result) for task in read_list(arg)]
    rows = files = size = 0
    for who, result in results:
        if not (result.get("files") or result.get("rows")):
            continue
        try:
            if "entries" in result:
                output.inline.append(_inline(result))
            else:
                output.manifests.append(_manifest(result, folder))
            rows += int(result["rows"])
            files += int(result["files"])
            size += int(result["bytes"])
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise CorruptRecord(f"{who} of {arg.id} reports an invalid writer result: {error!r}") from error
    return replace(output, rows=rows, files=files, bytes=size)


def _manifest(result: Mapping[str, Any], folder: str) -> TaskManifest:
    summaries = result.get("partitions")
    return TaskManifest(
        path=f"{folder}/{result['manifest']}",
        length=int(result["manifestLength"]),
        files=int(result["files"]),
        rows=int(result["rows"]),
        summaries=None if summaries is None else summaries_from_json(summaries),
    )


def _inline(result: Mapping[str, Any]) -> InlineManifest:
    return InlineManifest(
        entries=b85decode(result["entries"]),
        header=str(result["header"]),
        files=int(result["files"]),
        rows=int(result["rows"]),
        summaries=summaries_from_json(result["partitions"]),
    )


def manifests_of(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    return snapshot.manifests(io) if snapshot is not None else []


def take_over(draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int) -> list[ManifestFile]:
    """The jobs' manifests as manifests of a snapshot: few or large ones as they are, many small ones merged.

    Merging copies encoded entries: it reads and writes a few hundred bytes per file; for lists in the jobs'
    records it only writes.
    """
    adopted = [m for m in output.manifests if m.length >= output.adopt_from]
    small = [m for m in output.manifests if m.length < output.adopt_from]
    io = draft.io
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="manifests") as pool:
        taken = list(pool.map(lambda m: adopt(io, m, layout.spec.spec_id, snapshot_id), adopted))
        for together in _bins(small, lambda manifest: manifest.length):
            opened = list(pool.map(partial(open_manifest, io), together))
            taken += join(io, opened, layout, snapshot_id, draft.new_manifest_path)
    for held in _bins(output.inline, lambda manifest: len(manifest.entries)):
        taken.append(_written(draft, layout, held, snapshot_id))
    return taken


def _written(
    draft: Draft, layout: Layout, manifests: Sequence[InlineManifest], snapshot_id: int
) -> ManifestFile:
    builder = ManifestBuilder(layout.schema, layout.spec, snapshot_id=snapshot_id)
    header = builder.header_digest()
    for manifest in manifests:
        if manifest.header != header:
            raise CorruptRecord(
                "a job listed its files in an encoding that this coordinator does not know",
                hint="run the same versions of distop and pyiceberg on coordinators and executors",
            )
        try:
            builder.take(manifest)
        except zlib.error as error:
            raise CorruptRecord(f"the list of files in a job's record cannot be read: {error}") from error
    return builder.write(draft.io, draft.new_manifest_path())


def _bins(manifests: Sequence[M], length: Callable[[M], int]) -> Iterator[list[M]]:
    """In order, grouped into manifests of the usual size; this bounds memory as well."""
    together: list[M] = []
    size = 0
    for manifest in manifests:
        together.append(manifest)
        size += length(manifest)
        if size >= JOINED_BYTES:
            yield together
            together, size = [], 0
    if together:
        yield together
