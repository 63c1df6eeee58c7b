"""Finds the sidecar of this host, or starts one: exactly one, for any number of concurrent tasks."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from distop.errors import Unavailable
from distop.executor.host.sidecar_folder import SidecarFolder, is_locked, take_lock
from distop.metastore.etcd.config import PASSWORD, PASSWORD_FILE, USER

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""Longest start of a sidecar."""

WAIT_S = 10.0
"""How long a process without etcd's password waits for another one to start a sidecar."""

SEND_TIMEOUT_S = 30
"""How long to wait for a sidecar that does not accept a connection, or does not read."""

MAX_CRASHES = 3
"""Back-off after a sidecar could not start."""

_MAX_LOG_BYTES = 4 << 20
_PAUSE_S = 0.02

# A child is remembered so that it can be reaped; it outlives this process.
_children: list[subprocess.Popen[bytes]] = []


class SidecarUnavailable(Unavailable):
    """The sidecar of this host does not answer, and none can be started."""

    code = "SIDECAR_UNAVAILABLE"
    default_hint = "look at the file 'log' in the sidecar's folder"


def dial(place: SidecarFolder, environment: Mapping[str, str]) -> socket.socket:
    """A connection to the sidecar of this host, which is started if there is none.

    Raises
    ------
    SidecarUnavailable
        None could be started within :data:`START_TIMEOUT_S`, or by others within :data:`WAIT_S`.
    """
    starts, crashes = _has_password(environment), 0
    deadline = time.monotonic() + (START_TIMEOUT_S if starts else WAIT_S)
    lock: int | None = None
    child: subprocess.Popen[bytes] | None = None
    try:
        while True:
            place.prepare()  # each time: see folder_sweep
            if (connection := _connect(place)) is not None:
                break
            if not starts:
                pass  # a process with the password starts one
            elif is_locked(place.service_lock):
                pass  # `distop sidecar` is about to serve
            elif lock is None:
                lock = take_lock(place.starting_lock)
            elif child is None or child.poll() is not None:
                # One that ends normally gave way to another one, or its predecessor is about to end.
                crashes += child is not None and child.returncode != 0
                if crashes < MAX_CRASHES:
                    child = start_sidecar(place, environment)
            if time.monotonic() > deadline and not starts:
                raise _no_password(place)
            if time.monotonic() > deadline or crashes >= MAX_CRASHES:
                raise SidecarUnavailable(
                    f"no sidecar answers at {place.socket}", hint=f"look at its log, {place.log}"
                )
            time.sleep(_PAUSE_S)
    finally:
        if lock is not None:
            os.close(lock)
    return connection


def start_sidecar(place: SidecarFolder, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a sidecar that outlives this process and its process group, and ends when idle.

    Raises
    ------
    SidecarUnavailable
        It would have no password for etcd, and would block one that has.
    """
    given = {**os.environ, **environment}
    if not _has_password(environment):
        raise _no_password(place)
    _children[:] = [child for child in _children if child.poll() is None]
    with Path(place.log).open("ab") as output:
        if output.tell() > _MAX_LOG_BYTES:
            output.truncate(0)
        child = subprocess.Popen(
            [_python(), "-m", "distop.executor.sidecar.server", "--folder", str(place.folder)],
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _children.append(child)
    log.info("sidecar_starting", extra={"sidecar_pid": child.pid})
    return child


def _python() -> str:
    """This interpreter, by a path that stays when the task's folder goes: a container of YARN has links to
    what it was sent, and is removed with them while the sidecar serves the tasks of others. The program
    itself may be a link, by which it knows its virtual environment."""
    folder, name = os.path.split(sys.executable)
    return os.path.join(os.path.realpath(folder), name)


def _has_password(environment: Mapping[str, str]) -> bool:
    """Whether a sidecar that is started here could authenticate."""
    given = {**os.environ, **environment}
    return not given.get(USER) or bool(given.get(PASSWORD) or given.get(PASSWORD_FILE))


def _no_password(place: SidecarFolder) -> SidecarUnavailable:
    return SidecarUnavailable(
        f"no sidecar answers at {place.socket}, and there is no password to start one",
        hint=f"run `distop sidecar` on this host, or set {PASSWORD_FILE} for its workers",
    )


def _connect(place: SidecarFolder) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # For connecting and sending only: a task may receive nothing for hours.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_TIMEOUT_S, 0))
    try:
        connection.connect(str(place.socket))
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection
