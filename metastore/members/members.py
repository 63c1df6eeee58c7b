"""Members: the live processes of an installation.

A member is an incarnation, bound to one lease: a restart on the same host is another member, and nothing of
its dead self is taken for its own.
"""

from __future__ import annotations

import os
import secrets
import socket


def incarnation(role: str) -> str:
    """A new member id: says where it runs, and is never used twice, not even by a restart there."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_of_this_host(member: str) -> bool:
    """Whether a member id was made on this host. In doubt (a host's name within another's) it is."""
    return f"-{socket.gethostname()}-" in member
