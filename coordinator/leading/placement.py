"""Who should lead a table: rendezvous hashing over the live members.

Everybody computes the same answer from the same set of members, and one member's coming or going moves only
the tables it wins or leaves (Thaler and Ravishankar, 1998). It is advice: what counts is the leader's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b


def eligible(members: Mapping[str, bool]) -> set[str]:
    """Who may lead: member -> whether it is draining. When all are, all may: somebody must."""
    return {member for member, draining in members.items() if not draining} or set(members)


def preferred(members: Iterable[str], table: str) -> str | None:
    """The member that should lead ``table``; ``None`` without members."""
    return max(members, key=lambda member: (_weight(member, table), member), default=None)


def _weight(member: str, table: str) -> bytes:
    return blake2b(f"{member}\0{table}".encode(), digest_size=8).digest()
