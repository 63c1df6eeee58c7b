"""Members: the live processes of an installation.

A member is an incarnation, bound to one lease: a restart on the same host is another member, and never takes
over state of its predecessor.
"""

from __future__ import annotations

import os
import secrets
import socket


def incarnation(role: str) -> str:
    """A new member id: contains the host, and is never reused, not even by a restart there."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_of_this_host(member: str) -> bool:
    """Whether a member id was made on this host. In doubt (a host's name within another's) it was."""
    return f"-{socket.gethostname()}-" in member
