"""Operation types made of two functions: what the jobs are, and what each of them does."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from distop.metastore.records.operation import Effect
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.job import JobContext
from distop.operations.plans import A


def operation(
    plan: Callable[[PlanRequest[A]], Plan | Iterable[Any] | Mapping[str, Any]],
    *,
    argument: type[A] | None = None,
    effect: Effect = Effect.REPLACES,
    type: str = "",
    **attributes: Any,
) -> Callable[
    [Callable[[JobContext[A]], Mapping[str, Any] | Iterator[Any] | None]],
    builtins.type[DistributedOperation[A]],
]:
    """Makes a function an operation type: it is called for each job, as :meth:`DistributedOperation.run_job`.

    The function's name is then that of a class, which is registered as any other type.

    Parameters
    ----------
    plan:
        The inputs of the jobs for a request, as :meth:`Plan.of` takes them; or a whole :class:`Plan`.
    argument:
        The class of the argument; ``None``: any JSON object.
    type:
        The name of the type; by default that of the function.
    attributes:
        Other attributes of :class:`DistributedOperation`, such as ``resumable=True``.

    Raises
    ------
    TypeError
        There is no such attribute.
    """
    if unknown := [name for name in attributes if name not in DistributedOperation.__annotations__]:
        raise TypeError(f"an operation type has no attribute {unknown[0]!r}")

    def planned(self: DistributedOperation[A], request: PlanRequest[A]) -> Plan:
        made = plan(request)
        return made if isinstance(made, Plan) else Plan.of(made)

    def made_of(
        function: Callable[[JobContext[A]], Mapping[str, Any] | Iterator[Any] | None],
    ) -> builtins.type[DistributedOperation[A]]:
        members = {
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "type": type or function.__name__,
            "argument_type": argument,
            "effect": effect,
            "plan": planned,
            "run_job": lambda self, job: function(job),
            **attributes,
        }
        return builtins.type(function.__name__, (DistributedOperation,), members)

    return made_of
