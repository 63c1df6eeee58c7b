"""What a worker finds out with the distop that it has: the way to etcd, operation types, stores."""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distop.errors import DistopError, EtcdUnavailable
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.settings import why_bare
from distop.executor.sidecar import wire
from distop.executor.sidecar.client import dial
from distop.lake.storage.allowed import adopt
from distop.lake.storage.storage import file_system
from distop.metastore.etcd.config import PASSWORD_FILE, EtcdConfig
from distop.operations import Registry

ANSWER_S = 10.0
"""How long a sidecar may take to ask etcd."""

NOBODYS = "distop-check/noop/1"
"""An operation that no token of this number can hold: etcd's first revision makes no key."""


def facts(
    etcd: Mapping[str, str], types: str, allowed: Mapping[str, str], stores: Mapping[str, str]
) -> dict[str, Any]:
    """As of :class:`~distop.executor.checking.probe.Asked`. Why something does not work is a sentence; empty:
    it does."""
    adopt(allowed)
    # The password's file need not be here, as long as the host has a sidecar.
    config = EtcdConfig.from_env({**etcd, PASSWORD_FILE: ""})
    folder = SidecarFolder.of(config.endpoints, config.prefix)
    return {
        "bare": why_bare(sys.executable),
        "types": facts_of_types(types),
        "socket": str(folder.socket),
        **way_to_etcd(folder, etcd),
        "stores": {url: store(url, shared) for url, shared in stores.items()},
    }


def way_to_etcd(folder: SidecarFolder, etcd: Mapping[str, str]) -> dict[str, str]:
    """Reach the sidecar as a task does, which may start one, and have it ask etcd for something."""
    try:
        connection = dial(folder, etcd)
    except (DistopError, OSError) as error:
        return {"sidecar": str(error), "etcd": ""}
    with connection:
        return {"sidecar": "", "etcd": _why_no_answer(connection)}


def _why_no_answer(connection: socket.socket) -> str:
    frames, deadline = wire.Frames(wire.FromSidecar), time.monotonic() + ANSWER_S
    try:
        connection.sendall(wire.frame(wire.Attach(1, NOBODYS, 1, False)))
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (data := connection.recv(4096)):
                return "the sidecar has hung up"
            for message in frames.feed(data):
                if isinstance(message, wire.Over):
                    return ""
                if isinstance(message, wire.RequestFailed):
                    return str(wire.error_of(message))
    except TimeoutError:
        pass
    except (DistopError, OSError) as error:
        return str(error)
    return str(EtcdUnavailable(f"etcd has not answered the sidecar within {ANSWER_S:g} s"))


def facts_of_types(named: str) -> list[str]:
    """The operation types that are known here; behind ``!``, why they cannot be loaded."""
    try:
        return Registry(named.split(",")).names()
    except DistopError as error:
        return [f"! {error}"]


def store(url: str, shared: str) -> dict[str, str]:
    """Read the file that the driver has written there, and write one."""
    try:
        files, path = file_system(url)
        if not files.exists(f"{path.rstrip('/')}/{shared}"):
            return {"error": "", "shared": ""}
        mine = f"{path.rstrip('/')}/{shared}-{secrets.token_hex(6)}"
        try:
            files.pipe_file(mine, shared.encode())
            same = files.cat_file(mine) == shared.encode()
        finally:
            with suppress(Exception):
                files.rm_file(mine)
    except Exception as error:  # of whatever library reaches it
        return {"error": f"{type(error).__name__}: {error}"[:300], "shared": "yes"}
    return {"error": "" if same else "what was read is not what was written", "shared": "yes"}
