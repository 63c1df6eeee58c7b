"""What stands in etcd of live processes: all bound to their leases."""

from __future__ import annotations

import msgspec

from distop.metastore.records.record import Record


class LongCall(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A call that takes long in a coordinator, and that no operation tells of: a plan, say."""

    table: str
    what: str
    since: float


class MemberRecord(Record, kw_only=True):
    """``_coordinators.<id>`` and ``_executors.<id>``: a live process; the key is bound to its lease."""

    id: str
    role: str = ""
    """``executor`` or ``sidecar``; empty: as of older versions, what the key says."""
    address: str = ""
    host: str = ""
    pid: int = 0
    distop: str = ""
    """The version that it runs; empty: one that does not say."""
    started_at: float = 0.0
    types: list[str] = []
    """Operation types an executor serves."""
    only: str = ""
    """The one operation an executor serves; empty: all of its types."""
    draining: bool = False
    """A coordinator that leads nothing as long as another one can; it still answers calls."""
    calls: list[LongCall] = []
    """Of a coordinator; those that began first."""


class LeaderRecord(Record, kw_only=True):
    """``<table>.coordinator``: who leads the table."""

    member: str
    address: str = ""


class InstallationRecord(Record, kw_only=True):
    """``_installation``: how the keys of the installation are laid out."""

    layout: int
    at: float = 0.0
    """When its first process began."""
    restored: int = 0
    """What was created before this revision was so before etcd was restored last. 0: it never was."""


class BackupRecord(Record, kw_only=True):
    """``_backup``: a backup is being made; or etcd was restored from it, and nobody has mended that yet."""

    at: float
    by: str = ""
