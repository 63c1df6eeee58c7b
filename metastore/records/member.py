"""What stands in etcd of live processes: all bound to their leases."""

from __future__ import annotations

from distop.metastore.records.record import Record


class MemberRecord(Record, kw_only=True):
    """``_coordinators.<id>`` and ``_executors.<id>``: a live process; the key is bound to its lease."""

    id: str
    role: str = ""
    """``executor`` or ``sidecar``; empty: as of older versions, what the key says."""
    address: str = ""
    host: str = ""
    pid: int = 0
    started_at: float = 0.0
    types: list[str] = []
    """Operation types an executor serves."""
    draining: bool = False
    """A coordinator that leads nothing as long as another one can; it still answers calls."""


class LeaderRecord(Record, kw_only=True):
    """``<table>.coordinator``: who leads the table."""

    member: str
    address: str = ""
