"""The folder of a host's sidecar: private, one for each user, etcd and protocol.

Tasks and sidecars find each other only by this path, so it follows from what both know. Only its owner can
read the folder; every process that can connect to the socket may mark jobs.

Folders of dead installations, where no sidecar has run for long, are removed. A folder with scratch in it may
be resumed from, so it is kept for a week; any other one holds a log and empty locks, and is created again
when needed.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.records.names import OperationId

log = logging.getLogger(__name__)

BASE_VARIABLE = "DISTOP_RUNTIME_DIR"
"""Environment variable: where to make the folder. Else ``XDG_RUNTIME_DIR``, else the temporary folder."""

PROTOCOL = 4
"""Version of the messages between a task and its sidecar (``sidecar/wire.py``). Part of the socket's path, so
different versions never connect."""

SCRATCH_OWNER = ".operation"

_PAUSE_S = 0.02

_LONGEST_SOCKET_PATH = 107
"""Limit of ``sun_path`` in Linux, without its closing zero byte."""

IDLE_S = 3600.0
"""How long a folder must have been unused."""

IDLE_WITH_SCRATCH_S = 7 * 86_400.0

_NAME = re.compile(r"[0-9a-f]{16}")
_CONDEMNED = ".dead-"


@dataclass(frozen=True)
class SidecarFolder:
    """The folder of one sidecar, and the files in it."""

    folder: Path
    below_own: bool = field(default=False, compare=False)
    """Whether the parent folder is this user's as well, made for such folders."""

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def pid_file(self) -> Path:
        return self.folder / "pid"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def scratch(self) -> Path:
        """Below: a folder for each operation, with local files of its jobs."""
        return self.folder / "scratch"

    def scratch_folder(self, operation: OperationId) -> Path:
        """The folder for local files of one operation."""
        return self.scratch / hashlib.sha256(str(operation).encode()).hexdigest()[:16]

    def scratch_of(self, operation: OperationId) -> Path:
        """Make that folder. :data:`SCRATCH_OWNER` names its owner: names of tables and objects may be longer
        than file names."""
        folder = self.scratch_folder(operation)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder / SCRATCH_OWNER
        if not owner.exists():
            # Threads of one process may make it concurrently.
            aside = folder / f"{SCRATCH_OWNER}-{secrets.token_hex(6)}"
            aside.write_text(str(operation))
            os.replace(aside, owner)
        return folder

    @property
    def serving_lock(self) -> Path:
        """Held by the sidecar while it runs."""
        return self.folder / "serving.lock"

    @property
    def service_lock(self) -> Path:
        """Held by ``distop sidecar`` from before it serves: a sidecar that a task has started ends for it."""
        return self.folder / "service.lock"

    @property
    def starting_lock(self) -> Path:
        """Held by a task while it starts a sidecar."""
        return self.folder / "starting.lock"

    @classmethod
    def of(
        cls, endpoints: tuple[str, ...], prefix: str, *, environ: Mapping[str, str] = os.environ
    ) -> SidecarFolder:
        """The sidecar's folder for one installation, for the present user of this host."""
        base = environ.get(BASE_VARIABLE) or environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        name = _name(endpoints, prefix)
        return cls(Path(base, f"distop-{os.getuid()}", name), below_own=True)

    def prepare(self) -> SidecarFolder:
        """Make the folder, or check that it is safe to use.

        Raises
        ------
        PreconditionFailed
            Another user owns it or may write to it.
        InvalidArgument
            Its path is too long for a socket.
        """
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET_PATH:
            raise InvalidArgument(
                f"{self.socket} is too long for the path of a socket",
                hint=f"set {BASE_VARIABLE} to a folder with a shorter path",
            )
        for folder in (self.folder.parent, self.folder) if self.below_own else (self.folder,):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
            private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
            if status.st_uid != os.getuid() or not private:
                raise PreconditionFailed(
                    f"{folder} is not a folder of this user alone",
                    hint=f"remove it, or set {BASE_VARIABLE} to another folder",
                )
        os.utime(self.folder)  # in use: see sweep_folders
        return self


@functools.cache
def _name(endpoints: tuple[str, ...], prefix: str) -> str:
    known = "\n".join([*sorted(endpoints), prefix, str(PROTOCOL)])
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def take_lock(path: Path) -> int | None:
    """Take a lock file: a descriptor that holds it until it is closed, or ``None`` if it is taken.

    The kernel frees it when its holder ends, for any reason.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock file."""
    lock = take_lock(path)
    if lock is None:
        return True
    os.close(lock)
    return False


def wait_for_lock(path: Path, patience_s: float) -> int | None:
    """Take a lock file as soon as it is free; ``None`` if that takes longer than ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while (lock := take_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return lock


def sweep_folders(own: SidecarFolder, *, now: float | None = None) -> list[Path]:
    """Remove dead folders next to ``own``; return them.

    Does nothing if ``own`` was set by hand: then the folders next to it are not ours.
    """
    base = own.folder.parent
    if base.name != f"distop-{os.getuid()}":
        return []
    removed = []
    now = time.time() if now is None else now
    for folder in sorted(base.iterdir()):
        if folder.name.startswith(_CONDEMNED):
            shutil.rmtree(folder, ignore_errors=True)  # a sweep was killed half-way
        elif folder != own.folder and _NAME.fullmatch(folder.name):
            sidecar = SidecarFolder(folder)
            if _is_dead(sidecar, now) and _remove(sidecar):
                removed.append(folder)
    if removed:
        log.info("dead_folders_removed", extra={"folders": len(removed)})
    return removed


def _is_dead(sidecar: SidecarFolder, now: float) -> bool:
    try:
        used = max(path.lstat().st_mtime for path in (sidecar.folder, *sidecar.folder.iterdir()))
        has_scratch = sidecar.scratch.exists() and any(sidecar.scratch.iterdir())
    except OSError:
        return False
    return now - used > (IDLE_WITH_SCRATCH_S if has_scratch else IDLE_S)


def _remove(sidecar: SidecarFolder) -> bool:
    """Remove a folder, unless a sidecar runs there or is about to start."""
    locks: list[int] = []
    try:
        for path in (sidecar.starting_lock, sidecar.service_lock, sidecar.serving_lock):
            lock = take_lock(path)
            if lock is None:
                return False
            locks.append(lock)
        # At once, and under a name that no process looks for: the next process makes a new one.
        condemned = sidecar.folder.with_name(f"{_CONDEMNED}{sidecar.folder.name}-{os.getpid()}")
        os.rename(sidecar.folder, condemned)
        shutil.rmtree(condemned, ignore_errors=True)
    except OSError as error:
        log.info("folder_not_removed", extra={"folder": str(sidecar.folder), "error": str(error)})
        return False
    finally:
        for lock in locks:
            with suppress(OSError):
                os.close(lock)
    return True
