"""Who a caller says to be (``requested_by``, ``started_by`` and so on), where it says nothing itself; and
which version of distop that is."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def default_identity() -> str:
    """``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@cache
def own_version() -> str:
    """Of the distop that runs here."""
    try:
        return version("distop")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
