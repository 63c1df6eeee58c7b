"""What stands in etcd of who may do what."""

from __future__ import annotations

from distop.metastore.records.record import Record


class GrantRecord(Record, kw_only=True):
    """One line of the policy. Its fields are checked where it is granted."""

    who: str
    """A subject, or ``group:NAME``; ``*`` stands for any text."""
    role: str
    tables: list[str]
    """Patterns of names of tables."""


class PolicyRecord(Record, kw_only=True):
    """``_policy``: all grants. Where it stands, nobody may do what none of them allows."""

    grants: list[GrantRecord] = []
    requests: list[str] = []
    """Request ids of its last changes."""
