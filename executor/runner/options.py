"""How a runner works."""

from __future__ import annotations

from dataclasses import dataclass

from distop.metastore.records.keyspace import OperationId


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How a runner works."""

    max_operations: int = 4
    """Operations at once."""
    lease_ttl_s: int = 5
    """Seconds after which another runner takes over from one that vanished."""
    resync_s: float = 10.0
    """How often it looks at everything again, event or not; cut at random."""
    stop_s: float = 3.0
    """How long tasks may take to end once it is asked to."""
    rest_s: float = 30.0
    """How long it leaves an operation to others that it could not finish."""
    only: OperationId | None = None
    """The one operation it serves; ``None``: all of its types."""
