"""distop: operations over partitioned tables, exactly once.

What a program needs, and what a type of operation is written with, is here. Each name is imported when it is
used, so that ``import distop`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distop import errors, spark
    from distop.client import AsyncClient, Client
    from distop.errors import (
        BadRow,
        Cancelled,
        Conflict,
        DistopError,
        InvalidArgument,
        JobFailed,
        PermanentStepError,
        PreconditionFailed,
    )
    from distop.lake.trial import Trial
    from distop.operations import (
        DistributedOperation,
        Effect,
        JobContext,
        OperationView,
        Plan,
        PlanRequest,
        Retry,
        Role,
        Scope,
        Staging,
        StepRecord,
        WatermarkMove,
        operation,
    )
    from distop.spark_jobs.export import Export

__all__ = [
    "AsyncClient",
    "BadRow",
    "Cancelled",
    "Client",
    "Conflict",
    "DistopError",
    "DistributedOperation",
    "Effect",
    "Export",
    "InvalidArgument",
    "JobContext",
    "JobFailed",
    "OperationView",
    "PermanentStepError",
    "Plan",
    "PlanRequest",
    "PreconditionFailed",
    "Retry",
    "Role",
    "Scope",
    "Staging",
    "StepRecord",
    "Trial",
    "WatermarkMove",
    "errors",
    "operation",
    "spark",
]

_HOMES = {
    "AsyncClient": "client",
    "Client": "client",
    "Export": "spark_jobs.export",
    "Trial": "lake.trial",
}
"""The packages of names that are neither errors nor of ``operations``."""


def __getattr__(name: str) -> Any:
    if name in ("errors", "spark"):
        return import_module(f"distop.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'distop' has no attribute {name!r}")
    errors = import_module("distop.errors")
    if hasattr(errors, name):
        return getattr(errors, name)
    return getattr(import_module(f"distop.{_HOMES.get(name, 'operations')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
