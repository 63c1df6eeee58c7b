"""Options of a runner."""

from __future__ import annotations

from dataclasses import dataclass

from distop.metastore.records.operation_id import OperationId


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """Options of a runner."""

    max_operations: int = 4
    """Most concurrent operations."""
    lease_ttl_s: int = 5
    """Seconds after which another runner takes over from one that vanished."""
    resync_s: float = 10.0
    """How often it lists everything again, in seconds; shortened at random."""
    stop_s: float = 3.0
    """How long tasks may take to end, in seconds, after a request to stop."""
    rest_s: float = 30.0
    """How long it leaves an operation that it could not finish to other executors, in seconds."""
    only: OperationId | None = None
    """The only operation it serves; ``None``: all operations of its types."""
