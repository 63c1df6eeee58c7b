"""Scratch: folders on a worker's own disk, in which attempts keep what need not outlive them.

An attempt's folder is private to it. Only where a job is resumed the next attempt on the same host takes over
what its predecessor left, and only if that is what the job's checkpoint speaks of: it is noted beside the
folder up to which checkpoint it was made, since another host may have gone on in between. Taking over renames
the folder, so that an attempt which does not know yet that it lost its claim writes nowhere.

    <scratch>/<operation>/<job>/a-<attempt>          private
                               /k<claim>-<attempt>   kept for the next attempt
                               /job                  whose these are
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from distop.errors import Cancelled
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.structs import from_json

NOTE = "job"
_KEPT = re.compile(r"k([0-9]+)-(.+)")
_PRIVATE = "a-"


class JobNote(msgspec.Struct):
    """Whose the folders of a job are, and what the one that is kept was made up to."""

    partition: str
    checkpoints: list[str] = []
    """Digests. Two while a checkpoint is being saved: which of them stands is not known then."""
    boot: str = ""
    """Of the host: what was written before it crashed may be there in part."""


class Scratch:
    """The local files of the attempts on this host.

    Parameters
    ----------
    place:
        Where its sidecar is, which removes what attempts that were killed have left.
    """

    def __init__(self, place: SidecarFolder) -> None:
        self._place = place

    def private(self, operation: OperationId, partition: str, attempt: str) -> Path:
        """Make a folder for one attempt alone."""
        job = self._job(operation, partition)
        if not (job / NOTE).exists():
            _write(job, JobNote(partition))
        folder = job / f"{_PRIVATE}{attempt}"
        folder.mkdir(mode=0o700)
        return folder

    def kept(
        self, operation: OperationId, partition: str, attempt: str, claim: int, checkpoint: bytes | None
    ) -> Path:
        """Make a folder for a job that is resumed from ``checkpoint``; with what an earlier attempt on this
        host has left in it, if that is as old.

        Raises
        ------
        Cancelled
            A later attempt has it: this one has lost its claim.
        """
        job = self._job(operation, partition)
        mine, stands = job / f"k{claim}-{attempt}", digest(checkpoint)
        left = sorted((kept[0], path) for path in job.iterdir() if (kept := kept_by(path.name)))
        if left and left[-1][0] > claim:
            raise Cancelled(f"job {partition} of {operation} has a later attempt on this host")
        note = read_note(job)
        if left and note is not None and note.boot == _boot_id() and stands in note.checkpoints:
            with suppress(FileNotFoundError):  # a sweep was faster
                os.rename(left.pop()[1], mine)
        for _, path in left:
            shutil.rmtree(path, ignore_errors=True)
        # The note comes before the first folder: one that stands alone would be taken for older than it is.
        _write(job, JobNote(partition, [stands], _boot_id()))
        mine.mkdir(mode=0o700, exist_ok=True)
        return mine

    def made_up_to(self, folder: Path, partition: str, *checkpoints: bytes | None) -> None:
        """Note which checkpoint a kept folder belongs to now: before one is saved the present one and the new
        one, afterwards the new one."""
        if folder.exists():  # else a later attempt has taken it over
            _write(folder.parent, JobNote(partition, [digest(one) for one in checkpoints], _boot_id()))

    def remove(self, operation: OperationId, partition: str, attempt: str = "") -> None:
        """Remove the folder of one attempt, or all of a job that has its result."""
        job = self._place.scratch_folder(operation) / _job_folder(partition)
        if attempt:
            shutil.rmtree(job / f"{_PRIVATE}{attempt}", ignore_errors=True)
        else:
            shutil.rmtree(job, ignore_errors=True)

    def _job(self, operation: OperationId, partition: str) -> Path:
        folder = self._place.prepare().scratch_of(operation) / _job_folder(partition)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def _job_folder(partition: str) -> str:
    return hashlib.sha256(partition.encode()).hexdigest()[:16]


def kept_by(name: str) -> tuple[int, str] | None:
    """Claim and attempt of a folder that is kept, from its name."""
    found = _KEPT.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def private_to(name: str) -> str:
    """The attempt of a private folder, from its name; empty: it is none."""
    return name.removeprefix(_PRIVATE) if name.startswith(_PRIVATE) else ""


def digest(checkpoint: bytes | None) -> str:
    """What stands for a checkpoint in a note."""
    return "" if checkpoint is None else hashlib.sha256(checkpoint).hexdigest()


def read_note(job: Path) -> JobNote | None:
    """The note of a job's folder; ``None``: there is none that can be read."""
    try:
        return from_json((job / NOTE).read_bytes(), JobNote)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(job: Path, note: JobNote) -> None:
    aside = job / f".{NOTE}-{secrets.token_hex(6)}"
    aside.write_bytes(msgspec.json.encode(note))
    os.replace(aside, job / NOTE)


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
