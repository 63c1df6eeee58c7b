"""Which member should lead a table: rendezvous hashing over the live members.

Every member computes the same answer from the same set of members. When a member joins or leaves, only the
tables that it wins or loses move (Thaler and Ravishankar, 1998). It is advice: the leader's key decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b


def eligible(members: Mapping[str, bool]) -> set[str]:
    """The members that may lead, given each with whether it is draining. If all are draining, all may."""
    return {member for member, draining in members.items() if not draining} or set(members)


def preferred(members: Iterable[str], table: str) -> str | None:
    """The member that should lead ``table``; ``None`` if there are none."""
    return max(members, key=lambda member: (_weight(member, table), member), default=None)


def _weight(member: str, table: str) -> bytes:
    return blake2b(f"{member}\0{table}".encode(), digest_size=8).digest()
