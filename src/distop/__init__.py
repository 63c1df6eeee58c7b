"""distop: operations over partitioned tables, exactly once.

What a program needs most is here; each name is imported when it is used, so that ``import distop`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distop import errors, spark
    from distop.client import AsyncClient, Client
    from distop.operations import DistributedOperation, JobContext, Plan, PlanRequest, Retry

__all__ = [
    "AsyncClient",
    "Client",
    "DistributedOperation",
    "JobContext",
    "Plan",
    "PlanRequest",
    "Retry",
    "errors",
    "spark",
]

_HOMES = {"AsyncClient": "client", "Client": "client"}
"""The packages of names that are not of ``operations``."""


def __getattr__(name: str) -> Any:
    if name in ("errors", "spark"):
        return import_module(f"distop.{name}")
    if name in __all__:
        return getattr(import_module(f"distop.{_HOMES.get(name, 'operations')}"), name)
    raise AttributeError(f"module 'distop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
