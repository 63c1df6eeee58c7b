"""The public API for writing an operation on a partitioned table.

Subclass :class:`DistributedOperation`, register it under the entry point group ``distop.operations``,
and every coordinator and executor that has it installed can run it.
"""

from distop.metastore.records.names import check_object, check_partition
from distop.metastore.records.operation import (
    Effect,
    JobRecord,
    OperationArg,
    OperationOptions,
    Retry,
    StepRecord,
    WatermarkMove,
)
from distop.metastore.records.record import convert, from_json
from distop.metastore.records.watermarks import Entry, Marks, upwards
from distop.operations.api import DistributedOperation, OperationView, Plan, PlanRequest, Role, Scope, Staging
from distop.operations.functions import operation
from distop.operations.job import JobContext
from distop.operations.registry import Registry

__all__ = [
    "DistributedOperation",
    "Effect",
    "Entry",
    "JobContext",
    "JobRecord",
    "Marks",
    "OperationArg",
    "OperationOptions",
    "OperationView",
    "Plan",
    "PlanRequest",
    "Registry",
    "Retry",
    "Role",
    "Scope",
    "Staging",
    "StepRecord",
    "WatermarkMove",
    "check_object",
    "check_partition",
    "convert",
    "from_json",
    "operation",
    "upwards",
]
