"""The folder of a host's sidecar: private, one for each user, etcd and protocol.

Tasks and sidecars find each other only by this path, so it follows from what both know. Only its owner can
read the folder; every process that can connect to the socket may mark jobs.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.records.operation_id import OperationId

BASE_VARIABLE = "DISTOP_RUNTIME_DIR"
"""Environment variable: where to make the folder. Else ``XDG_RUNTIME_DIR``, else the temporary folder."""

PROTOCOL = 3
"""Version of the messages between a task and its sidecar (``sidecar/wire.py``). Part of the socket's path, so
different versions never connect."""

SCRATCH_OWNER = ".operation"

_PAUSE_S = 0.02

_LONGEST_SOCKET_PATH = 107
"""Limit of ``sun_path`` in Linux, without its closing zero byte."""


@dataclass(frozen=True)
class SidecarFolder:
    """The folder of one sidecar, and the files in it."""

    folder: Path
    below_ours: bool = field(default=False, compare=False)
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
        return cls(Path(base, f"distop-{os.getuid()}", name), below_ours=True)

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
        for folder in (self.folder.parent, self.folder) if self.below_ours else (self.folder,):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
            if found.st_uid != os.getuid() or not private:
                raise PreconditionFailed(
                    f"{folder} is not a folder of this user alone",
                    hint=f"remove it, or set {BASE_VARIABLE} to another folder",
                )
        os.utime(self.folder)  # in use: see folder_sweep
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
