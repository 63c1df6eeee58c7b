"""Reading tables: snapshots, and groups of data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distop.spark_jobs.tables.snapshot import open_snapshot

__all__ = ["open_snapshot"]


def __getattr__(name: str) -> Any:
    # On demand: arguments with filters are checked without loading what reads tables.
    if name == "open_snapshot":
        from distop.spark_jobs.tables.snapshot import open_snapshot

        return open_snapshot
    raise AttributeError(name)
