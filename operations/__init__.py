"""The public API for writing an operation on a partitioned table.

Subclass :class:`DistributedOperation`, register it under the entry point group ``distop.operations``,
and every coordinator and executor that has it installed can run it.
"""

from distop.metastore.records.operation import Effect, Retry, WatermarkMove
from distop.operations.api import (
    DistributedOperation,
    OperationView,
    Plan,
    PlanRequest,
    Role,
    Scope,
    Staging,
)
from distop.operations.job import JobContext
from distop.operations.registry import Registry

__all__ = [
    "DistributedOperation",
    "Effect",
    "JobContext",
    "OperationView",
    "Plan",
    "PlanRequest",
    "Registry",
    "Retry",
    "Role",
    "Scope",
    "Staging",
    "WatermarkMove",
]
