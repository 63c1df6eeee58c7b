"""What a worker says of itself. Spark sends this module by value, since distop may not be there: it loads
nothing but the standard library before it knows."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass(frozen=True)
class Asked:
    """What a worker is to look at: one is sent to each task."""

    version: str
    """The distop that should be there."""
    etcd: dict[str, str]
    """The variables of ``EtcdConfig.to_public_env``: where etcd is, without its password."""
    types: str
    """The value of ``DISTOP_OPERATIONS``: which operation types are to be loaded."""
    allowed: dict[str, str]
    """The lists of :mod:`distop.lake.storage.allowed`: what callers may name."""
    stores: dict[str, str]
    """Folders or URLs, and a file in each that the driver has written."""

    def __call__(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        list(numbers)  # a worker that leaves its input unread is not used again
        yield {"began": time.time(), **look(self), "ended": time.time()}


def look(asked: Asked) -> dict[str, Any]:
    """The facts of this worker, as plain values; those that need distop only where it is the right one."""
    own: dict[str, Any] = {
        "host": socket.gethostname(),
        # Of the executor: the parent of all Python workers that it forks.
        "process": os.getppid(),
        "user": _user(),
        "python": sys.executable,
        "version": _version(),
        "missing": "",
    }
    try:
        from distop.executor.launch import spark_task  # noqa: F401
    except Exception as error:
        return {**own, "missing": f"{type(error).__name__}: {error}"[:300]}
    if own["version"] != asked.version:
        return own
    from distop.executor.checking.facts import facts

    return {**own, **facts(asked.etcd, asked.types, asked.allowed, asked.stores)}


def _version() -> str:
    try:
        return version("distop")
    except PackageNotFoundError:
        return "unknown"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
