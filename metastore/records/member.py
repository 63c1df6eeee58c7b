"""Records of live processes in etcd: all bound to their leases."""

from __future__ import annotations

import msgspec

from distop.metastore.records.record import Record


class LongCall(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A slow call in a coordinator that no operation reports, such as a plan."""

    table: str
    what: str
    since: float


class HeldUp(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What keeps a member from its work, as far as it knows."""

    operation: str = ""
    """Only the jobs of this operation; empty: all that it does."""
    what: str
    since: float


class MemberRecord(Record, kw_only=True):
    """``_coordinators.<id>`` and ``_executors.<id>``: a live process; the key is bound to its lease.

    ``_places.<role>.<host>``: the service that began there last, live or killed.
    """

    id: str
    role: str = ""
    """``coordinator``, ``executor`` or ``sidecar``; empty: an older version's record, see the key."""
    address: str = ""
    host: str = ""
    pid: int = 0
    distop: str = ""
    """The version of distop that it runs; empty: unknown."""
    started_at: float = 0.0
    types: list[str] = []
    """Operation types an executor serves."""
    only: str = ""
    """The one operation an executor serves; empty: all of its types."""
    draining: bool = False
    """A coordinator that leads nothing as long as another one can; it still answers calls."""
    calls: list[LongCall] = []
    """Slow calls of a coordinator, the oldest first."""
    held_up: list[HeldUp] = []
    """What does not go on as it should."""


class LeaderRecord(Record, kw_only=True):
    """``<table>.coordinator``: the leader of the table."""

    member: str
    address: str = ""


class InstallationRecord(Record, kw_only=True):
    """``_installation``: the layout of the installation's keys, and what its processes share."""

    layout: int
    secret: str = ""
    """What the pages of all coordinators sign and seal with what they give to browsers; empty: none yet."""
    at: float = 0.0
    """When its first process began."""
    restored: int = 0
    """Keys created before this revision are from before the last restore of etcd. 0: there was none."""


class BackupRecord(Record, kw_only=True):
    """``_backup``: a backup is being made; or etcd was restored from it, and is not repaired yet."""

    at: float
    by: str = ""
