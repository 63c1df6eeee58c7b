"""Scratch: folders on a worker's own disk, for files of attempts that need not outlive them.

An attempt's folder is private to it. Only for resumable jobs the next attempt on the same host takes over the
files of its predecessor, and only if they belong to the job's checkpoint: a note next to the folder says up
to which checkpoint it was made, since another host may have continued in between. Taking over renames the
folder, so that an attempt that does not know yet that it lost its claim writes nowhere.

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
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import from_json

NOTE = "job"
_KEPT = re.compile(r"k([0-9]+)-(.+)")
_PRIVATE = "a-"


class JobNote(msgspec.Struct):
    """The owner of a job's folders, and the checkpoint of the one that is kept."""

    partition: str
    checkpoints: list[str] = []
    """Digests. Two while a checkpoint is being saved: then it is unknown which one is valid."""
    boot: str = ""
    """Boot id of the host: files written before a crash may be incomplete."""


class Scratch:
    """The local files of the attempts on this host.

    Parameters
    ----------
    place:
        The folder of its sidecar, which removes the remains of killed attempts.
    """

    def __init__(self, folder: SidecarFolder) -> None:
        self._sidecar_folder = folder

    def private(self, operation: OperationId, partition: str, attempt: str) -> Path:
        """Make a folder for one attempt."""
        job = self._job(operation, partition)
        if not (job / NOTE).exists():
            _write(job, JobNote(partition))
        folder = job / f"{_PRIVATE}{attempt}"
        folder.mkdir(mode=0o700)
        return folder

    def kept(
        self, operation: OperationId, partition: str, attempt: str, claim: int, checkpoint: bytes | None
    ) -> Path:
        """Make a folder for a job that is resumed from ``checkpoint``; with the files of an earlier attempt
        on this host, if they belong to that checkpoint.

        Raises
        ------
        Cancelled
            A later attempt has it: this one has lost its claim.
        """
        job = self._job(operation, partition)
        mine, saved = job / f"k{claim}-{attempt}", digest(checkpoint)
        left = sorted((kept[0], path) for path in job.iterdir() if (kept := kept_by(path.name)))
        if left and left[-1][0] > claim:
            raise Cancelled(f"job {partition} of {operation} has a later attempt on this host")
        note = read_note(job)
        if left and note is not None and note.boot == _boot_id() and saved in note.checkpoints:
            with suppress(FileNotFoundError):  # a sweep was faster
                os.rename(left.pop()[1], mine)
        for _, path in left:
            shutil.rmtree(path, ignore_errors=True)
        # The note comes before the first folder: a folder alone would be taken for older than it is.
        _write(job, JobNote(partition, [saved], _boot_id()))
        mine.mkdir(mode=0o700, exist_ok=True)
        return mine

    def made_up_to(self, folder: Path, partition: str, *checkpoints: bytes | None) -> None:
        """Note which checkpoint a kept folder belongs to: before one is saved the present one and the new
        one, afterwards the new one."""
        if folder.exists():  # else a later attempt has taken it over
            _write(
                folder.parent,
                JobNote(partition, [digest(checkpoint) for checkpoint in checkpoints], _boot_id()),
            )

    def remove(self, operation: OperationId, partition: str, attempt: str = "") -> None:
        """Remove the folder of one attempt, or all folders of a job with a result."""
        job = self._sidecar_folder.scratch_folder(operation) / _job_folder(partition)
        if attempt:
            shutil.rmtree(job / f"{_PRIVATE}{attempt}", ignore_errors=True)
        else:
            shutil.rmtree(job, ignore_errors=True)

    def _job(self, operation: OperationId, partition: str) -> Path:
        folder = self._sidecar_folder.prepare().scratch_of(operation) / _job_folder(partition)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def _job_folder(partition: str) -> str:
    return hashlib.sha256(partition.encode()).hexdigest()[:16]


def kept_by(name: str) -> tuple[int, str] | None:
    """Claim and attempt of a folder that is kept, from its name."""
    match = _KEPT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def private_to(name: str) -> str:
    """The attempt of a private folder, from its name; empty: it is none."""
    return name.removeprefix(_PRIVATE) if name.startswith(_PRIVATE) else ""


def digest(checkpoint: bytes | None) -> str:
    """The digest of a checkpoint in a note."""
    return "" if checkpoint is None else hashlib.sha256(checkpoint).hexdigest()


def read_note(job: Path) -> JobNote | None:
    """The note of a job's folder; ``None``: none that can be read."""
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
