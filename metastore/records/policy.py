"""The record of the access policy in etcd."""

from __future__ import annotations

from distop.metastore.records.record import Record


class GrantRecord(Record, kw_only=True):
    """One line of the policy. Its fields are checked where it is granted."""

    who: str
    """A subject, or ``group:NAME``; ``*`` matches any text."""
    role: str
    tables: list[str]
    """Patterns of names of tables."""


class PolicyRecord(Record, kw_only=True):
    """``_policy``: all grants. If it exists, only actions that a grant allows are permitted."""

    grants: list[GrantRecord] = []
    requests: list[str] = []
    """Request ids of its last changes."""
