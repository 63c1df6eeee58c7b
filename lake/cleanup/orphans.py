"""Finds and removes orphans: files below a table's location that nothing refers to.

A file is an orphan if no known snapshot and no known metadata file of the table refers to it, it is not in a
folder of an operation that still has keys, and it is older than a grace period. Files of operations are safe
with any grace period: their folders are known, and so are those of writes through Spark
(:mod:`distop.lake.iceberg.takeover`). The grace period is for programs that write files first and commit
later.

Nothing is removed from a folder that is not the table's own (:mod:`distop.lake.layout.staging`).

In three stages, each safe against crashes, pauses and repetition:

- The *job* lists the folders and writes down candidates.
- The *commit* removes candidates that are known by now, and touches the head: everything prepared before must
    be prepared again, so from then on nothing can refer to the remaining ones.
- The *sweep* then removes those, except files that were written again under the same name.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import CorruptRecord
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.takeover import is_spared
from distop.lake.layout.model import file_io, load_metadata
from distop.lake.layout.properties import check_may_remove
from distop.lake.layout.staging import owners
from distop.lake.storage.storage import FILES_AT_ONCE, entries, inside, remove_files
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head
from distop.operations.job import staging_folder


@dataclass
class Files:
    """Locations, by what refers to them: lists name manifests, manifests name data and delete files."""

    lists: set[str] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    """Metadata and statistics files."""

    def all(self) -> set[str]:
        return self.lists | self.manifests | self.data | self.others

    def below(self, location: str) -> Files:
        """Those that are certainly in a folder, of any kind."""
        lists, manifests, data, others = (
            set(inside(locations, location))
            for locations in (self.lists, self.manifests, self.data, self.others)
        )
        return Files(lists, manifests, data, others)

    def without(self, kept: Files) -> Files:
        """Those that are not in ``kept``, of any kind."""
        there = {path_of(location) for location in kept.all()}

        def left(locations: set[str]) -> set[str]:
            return {location for location in locations if path_of(location) not in there}

        return Files(left(self.lists), left(self.manifests), left(self.data), left(self.others))


def files_of(
    metadata: TableMetadata, snapshots: Iterable[Snapshot], io: FileIO, *, torn: bool = False
) -> Files:
    """All files that some snapshots of a table refer to.

    Parameters
    ----------
    torn:
        Whether lists and manifests may be missing because their removal has begun; the files that they named
        are then omitted.
    """
    files = Files()
    manifests: dict[str, ManifestFile] = {}
    chosen = list(snapshots)
    ids = {snapshot.snapshot_id for snapshot in chosen}
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in ids:
            files.others.add(statistics.statistics_path)

    def listed(snapshot: Snapshot) -> list[ManifestFile]:
        with _forgiving(torn):
            return snapshot.manifests(io)
        return []

    def named(manifest: ManifestFile) -> list[str]:
        with _forgiving(torn):
            return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)]
        return []

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="reachable") as pool:
        for snapshot, each in zip(chosen, pool.map(listed, chosen), strict=True):
            files.lists.add(snapshot.manifest_list)
            manifests |= {manifest.manifest_path: manifest for manifest in each}
        files.manifests.update(manifests)
        for paths in pool.map(named, manifests.values()):
            files.data.update(paths)
    return files


def files_of_table(metadata: TableMetadata, location: str, io: FileIO) -> Files:
    """All files that a table refers to: of every snapshot, and the metadata files that its log names."""
    files = files_of(metadata, metadata.snapshots, io)
    files.others.add(location)
    files.others.update(entry.metadata_file for entry in metadata.metadata_log)
    return files


def _forgiving(torn: bool) -> AbstractContextManager[object]:
    return suppress(FileNotFoundError) if torn else nullcontext()


def path_of(location: str) -> str:
    """The path of a location, without scheme and host: one key for different spellings of a file.

    Two locations that differ only in scheme, host or doubled slashes count as one file: in doubt a file is
    known.
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        path = location.removeprefix("file:")
    else:
        path = rest if scheme == "file" else rest.partition("/")[2]
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


log = logging.getLogger(__name__)

FOLDERS = ("data", "metadata")
"""Folders that are searched for orphans. Quarantine files are for people."""
KNOWN_FROM = "orphansUnknownTo"
"""Fact of the commit: the metadata file that the orphans were checked against; empty: there was none."""
REPORT = "orphanReports"
"""Fact of the commit: the reports of the jobs, below the operation's staging folder for metadata."""
SHOWN = 20
"""Most orphans that the history names."""
MAX_ORPHANS = 1_000_000


def find_orphans(
    operation: OperationArg,
    *,
    metadata_location: str | None,
    older_than: float,
    busy: Sequence[str],
    now: float,
) -> list[str]:
    """Paths below the table's location of files that nothing refers to.

    Parameters
    ----------
    metadata_location:
        The table's metadata file; ``None`` if it has none yet.
    older_than:
        Seconds since the Unix epoch; files modified later are skipped.
    busy:
        Names of the staging folders of operations that still have keys.
    now:
        Seconds since the Unix epoch, when ``busy`` was read. Writes that were recent then may have become
        operations since.
    """
    known = _known(operation, metadata_location)
    passed_over = {*busy, staging_folder(operation).rpartition("/")[2]}
    orphans = []
    for top in FOLDERS:
        for path, modified_at in _walk(operation, top, passed_over, now):
            if modified_at <= older_than and path_of(f"{operation.location}/{path}") not in known:
                orphans.append(path)
                if len(orphans) >= MAX_ORPHANS:
                    return orphans
    return orphans


def _io(operation: OperationArg) -> FileIO:
    return file_io(operation.location, operation.storage)


def _known(operation: OperationArg, metadata_location: str | None) -> set[str]:
    if not metadata_location:
        return set()
    metadata = load_metadata(metadata_location, operation.storage)
    io = file_io(metadata.location, operation.storage)
    return {path_of(location) for location in files_of_table(metadata, metadata_location, io).all()}


def _walk(
    operation: OperationArg, folder: str, passed_over: set[str], now: float
) -> Iterator[tuple[str, float]]:
    """Files of a folder and of those below it: path below the table's location, time of modification."""
    for name, is_folder, modified_at in entries(f"{operation.location}/{folder}", operation.storage):
        if not is_folder:
            yield f"{folder}/{name}", modified_at
        elif name not in passed_over and not is_spared(name, now):
            yield from _walk(operation, f"{folder}/{name}", passed_over, now)


# -- the report --------------------------------------------------------------------------------------


def write_report(operation: OperationArg, location: str, orphans: Iterable[str]) -> None:
    """Write candidates to the report that the commit reads."""
    with _io(operation).new_output(location).create(overwrite=True) as stream:
        stream.write(msgspec.json.encode(list(orphans)))


def _read_report(operation: OperationArg, name: str) -> list[str]:
    location = f"{staging_folder(operation, 'metadata')}/{name}"
    try:
        with _io(operation).new_input(location).open() as stream:
            report: list[str] = msgspec.json.decode(stream.read(), type=list[str])
            return report
    except FileNotFoundError as error:
        raise CorruptRecord(f"the report {location} of a finished job is missing") from error
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{location} is not the report of its job: {error}") from error


def _unknown_of_reports(operation: OperationArg, reports: Iterable[str], metadata_location: str) -> list[str]:
    candidates = [path for name in reports for path in _read_report(operation, name)]
    known = _known(operation, metadata_location) if candidates else set()
    return [path for path in candidates if path_of(f"{operation.location}/{path}") not in known]


class IcebergRemoveOrphans(TransactionalStep):
    """Decides which files are orphans. Argument: ``dryRun``."""

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises :class:`~distop.errors.PreconditionFailed` if files may not be removed any more.
        """
        arg = context.view.arg
        reports = [str(job.result["report"]) for job in context.view.jobs.values() if "report" in job.result]
        head = decode(context.head.value, Head, context.head.key) if context.head.exists else None
        location = "" if head is None else head.metadata_location
        orphans = _unknown_of_reports(arg, reports, location)
        facts: dict[str, Any] = {"orphans": len(orphans), "examples": sorted(orphans)[:SHOWN]}
        if self.argument.get("dryRun"):
            return Contribution(facts=facts | {"dryRun": True})
        if orphans and location:
            check_may_remove(TableFile.read(location, arg.storage).metadata.properties, arg.table)
        # The same value at a new revision: a commit that a coordinator or another program prepared before
        # finds that the head has moved, and starts again with files that exist.
        touched = (Put(context.head.key, context.head.value),) if context.head.exists and orphans else ()
        return Contribution(
            txn=Txn((unchanged(context.head),), touched),
            facts=facts | {KNOWN_FROM: location, REPORT: reports},
        )


def remove_orphans(operation: OperationArg, history: HistoryRecord) -> int:
    """Remove the orphans of an operation; return how many.

    If the metadata that it checked is gone, nothing is removed: another run will find them.
    """
    facts = history.facts
    if history.outcome != "success" or REPORT not in facts or not facts.get("orphans"):
        return 0
    if operation.argument.get("owner") not in owners(operation.location, operation.storage):
        log.warning("orphans_left", extra={"operation": str(operation.id), "error": "not the table's folder"})
        return 0
    try:
        orphans = _unknown_of_reports(operation, facts[REPORT], str(facts.get(KNOWN_FROM) or ""))
    except (CorruptRecord, FileNotFoundError) as error:
        log.warning("orphans_left", extra={"operation": str(operation.id), "error": str(error)})
        return 0
    older_than = float(operation.argument["olderThan"])
    folders: dict[str, set[str]] = defaultdict(set)
    for path in orphans:
        folder, _, name = path.rpartition("/")
        folders[folder].add(name)
    removed = 0
    reached("orphans.before")
    for folder, names in folders.items():
        location = f"{operation.location}/{folder}"
        # A program may have written a file with that name again.
        old = [
            f"{location}/{name}"
            for name, is_folder, modified_at in entries(location, operation.storage)
            if name in names and not is_folder and modified_at <= older_than
        ]
        reached("orphans.middle")
        removed += remove_files(old, operation.storage)
    reached("orphans.after")
    return removed
