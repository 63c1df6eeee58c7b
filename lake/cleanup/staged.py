"""Removes staged files of an operation that were not published.

All attempts of an operation write into folders that only it uses, with the attempt as a prefix of names
(:func:`distop.operations.job.staging_stem`). So names alone say what to keep: all files of the attempts that
were marked successful, if the operation was published; nothing, if it was aborted.

The most important rule: no file of a published attempt is ever removed. It holds because the published
attempts are taken from the history of the operation and the records of its jobs, not from the table, which
others change; and because nothing is removed unless all of these are available. Sweeping is idempotent: a
repetition gives the same answer or does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from distop.commit.contract import ADOPTED_FROM, DROPPED_JOBS, DROPPED_METADATA, IGNORED, NOT_UNDONE
from distop.commit.partial import selection
from distop.errors import CorruptRecord
from distop.lake.cleanup.expiry import remove_expired
from distop.lake.cleanup.orphans import remove_orphans
from distop.lake.iceberg.takeover import LIST, read_list
from distop.lake.index.publish import sweep_index
from distop.lake.layout.model import file_io
from distop.lake.layout.staging import format_of, kept_folders, passing_folders_of
from distop.lake.storage.storage import entries, inside, remove_files, remove_if_empty
from distop.metastore.crashpoints import reached
from distop.metastore.records.operation import HistoryRecord, JobRecord, OperationArg
from distop.operations.job import JobContext, staging_folder, staging_stem

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """Which staged files of an operation belong to the table."""

    stems: frozenset[str]
    """Prefixes of all files and folders of the attempts that count, followed by ``-``, ``.``, ``_`` or
    nothing."""
    joined: frozenset[str] = frozenset()
    """Names of task manifests that no snapshot refers to, since their entries are in a merged one."""

    def __contains__(self, name: str) -> bool:
        if name in self.joined:
            return False
        if name in self.stems:
            return True
        # Every place where a stem may end is tried, since there may be many more stems than such places.
        return any(name[:end] in self.stems for end, letter in enumerate(name) if letter in "-._")


NOTHING = Published(frozenset())


def published(
    operation: OperationArg, history: HistoryRecord, jobs: Mapping[str, JobRecord]
) -> Published | None:
    """What was published, or ``None`` if that is unknown.

    Parameters
    ----------
    history:
        The operation's end. Its fact ``ADOPTED_FROM`` is the size from which task manifests became manifests
        of the table; without it all of them did.
    jobs:
        The records of all its jobs. Needed only if it succeeded.
    """
    if history.facts.get(NOT_UNDONE):
        return None
    if history.outcome != "success" or history.facts.get(IGNORED) or not operation.effect.keeps_files:
        return NOTHING
    if not all_known(operation, history, jobs):
        return None
    adopted_from = int(history.facts.get(ADOPTED_FROM, 0))
    names = operation.partition_names()
    dropped = (names[start:end] for start, end in history.facts.get(DROPPED_JOBS, ()))
    left_out = frozenset[str]().union(*dropped)
    counts = [
        (staging_stem(partition, job.attempt), job.result)
        for partition, job in selection(operation, jobs).jobs.items()
        if partition not in left_out
    ]
    if operation.argument.get(LIST):
        try:
            counts += [(task.stem, task.result) for task in read_list(operation)]
        except CorruptRecord:
            return None  # an earlier sweep removed the list itself
    stems, joined = set(), set()
    for stem, result in counts:
        stems.add(stem)
        manifest = result.get("manifest")
        if isinstance(manifest, str):
            stems.add(manifest.removesuffix(".avro"))
            if int(result.get("manifestLength", adopted_from)) < adopted_from:
                joined.add(manifest)
    return Published(frozenset(stems), frozenset(joined))


def all_known(operation: OperationArg, history: HistoryRecord, jobs: Mapping[str, JobRecord]) -> bool:
    """Whether these are the records of all its jobs. They are removed once everything is swept."""
    # Only the end of a dynamic plan says how many there were.
    return len(jobs) == (history.partition_count if operation.dynamic else operation.partition_count)


def sweep(operation: OperationArg, history: HistoryRecord, jobs: Mapping[str, JobRecord]) -> int:
    """Remove the staged files of an ended operation that were not published; return how many.

    Call it when no attempt of the operation runs any more. Idempotent; missing folders count as swept. Does
    nothing when the operation succeeded and the records of some jobs are gone: then an earlier sweep came
    this far, and unpublished files can no longer be distinguished from published ones.
    """
    if operation.builds_index:
        io = file_io(operation.location, operation.storage)
        return sweep_index(io, operation, history)
    dropped = inside(history.facts.get(DROPPED_METADATA, ()), operation.location)
    removed = remove_files((url for url in dropped if ".metadata.json" in url), operation.storage)
    removed += remove_expired(operation, history) + remove_orphans(operation, history)
    keep = published(operation, history, jobs)
    wanted = dict.fromkeys(passing_folders_of(operation), NOTHING)
    if keep is not None:
        wanted = {**dict.fromkeys(kept_folders(format_of(operation)), keep), **wanted}
    else:
        fields = {
            "operation": str(operation.id),
            "jobs": len(jobs),
        }
        log.info("sweep_skipped", extra=fields)
    if not wanted:
        return removed
    reached("sweep.before")
    for name, of_table in wanted.items():
        removed += _swept(operation, staging_folder(operation, name), of_table)
    reached("sweep.after")
    return removed


def _swept(operation: OperationArg, folder: str, of_table: Published) -> int:
    """How many files were removed from a folder, and from those in it that are no attempt's that counts."""
    unpublished = [entry for entry in entries(folder, operation.storage) if entry.name not in of_table]
    inner = (f"{folder}/{entry.name}" for entry in unpublished if entry.is_folder)
    removed = sum(_swept(operation, each, of_table) for each in inner)
    victims = (f"{folder}/{entry.name}" for entry in unpublished if not entry.is_folder)
    removed += remove_files(victims, operation.storage)
    reached("sweep.middle")
    remove_if_empty(folder)
    return removed


def remove_attempt(job: JobContext) -> None:
    """Remove all staged files of an attempt that does not count, whichever process wrote them."""
    operation, stem = job.operation, staging_stem(job.partition, job.attempt)
    table_format = format_of(operation)
    for name in (*kept_folders(table_format), *passing_folders_of(operation)):
        folder = staging_folder(operation, name)
        # After the stem comes a part that distinguishes the files of one attempt, never more of its name.
        theirs = (
            f"{folder}/{file}"
            for file, is_folder, _ in entries(folder, operation.storage)
            if not is_folder and file.startswith((f"{stem}-", f"{stem}."))
        )
        remove_files(theirs, operation.storage)
