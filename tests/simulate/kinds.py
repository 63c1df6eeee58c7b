"""The operation types of the simulation: those of the model, whose code fails where their argument says so.

``trouble`` in an argument is ``{"in": <method>, "error": <class>, "times": <number>}``: this method raises,
the first times it is called for the operation. What it was called for is remembered outside of all processes,
as a real service that a hook calls would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distop.commit.steps.contract import VARIABLE
from distop.errors import Conflict, InvalidArgument, PreconditionFailed, Unavailable
from distop.metastore.records.effects import Effect
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations.api import OperationView, Plan, PlanRequest
from explore.table import Append

STEPS = {VARIABLE: "explore_head=explore.table:ExploreHead"}
"""The environment in which the commit steps of the model are found."""

ERRORS = {
    error.__name__: error
    for error in (RuntimeError, InvalidArgument, Conflict, PreconditionFailed, Unavailable)
}
METHODS = ("commit_steps", "describe_job", "complete_operation", "abort_operation", "sweep_operation")
"""Those that can be told to raise."""

ALWAYS = 1_000_000

raised: Counter[tuple[str, str]] = Counter()
"""How often a method has raised for an operation; cleared before each simulation."""


def _perhaps_raise(argument: Mapping[str, Any], uuid: str, method: str) -> None:
    trouble = argument.get("trouble")
    if not trouble or trouble["in"] != method or raised[uuid, method] >= trouble["times"]:
        return
    raised[uuid, method] += 1
    raise ERRORS[trouble["error"]](f"{method} was told to raise")


class Simulated(Append):
    """Appends a line to the head of its table."""

    type = "append"

    def plan(self, request: PlanRequest) -> Plan:
        plan = super().plan(request)
        more = {name: request.argument[name] for name in ("trouble", "fail") if name in request.argument}
        return replace(plan, argument={**plan.argument, **more})

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        _perhaps_raise(operation.argument, operation.uuid, "commit_steps")
        return super().commit_steps(operation)

    def describe_job(self, operation: OperationArg, partition: str) -> str:
        _perhaps_raise(operation.argument, operation.uuid, "describe_job")
        return super().describe_job(operation, partition)

    def complete_operation(self, operation: OperationView) -> None:
        _perhaps_raise(operation.arg.argument, operation.arg.uuid, "complete_operation")

    def abort_operation(self, operation: OperationView) -> None:
        _perhaps_raise(operation.arg.argument, operation.arg.uuid, "abort_operation")


class Overwrite(Simulated):
    """Replaces what it has read, so it must stand alone."""

    type = "overwrite"
    effect = Effect.WRITES
    must_stand = True


class Owned(Simulated):
    """Its jobs are claimed."""

    type = "owned"
    exclusive = True


class Swept(Simulated):
    """Its attempts leave something that is swept after the end."""

    type = "swept"

    def sweep_operation(self, operation: OperationView) -> None:
        _perhaps_raise(operation.arg.argument, operation.arg.uuid, "sweep_operation")


class Report(Simulated):
    """Publishes nothing."""

    type = "report"
    effect = Effect.READS

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        _perhaps_raise(operation.argument, operation.uuid, "commit_steps")
        return ()


KINDS = (Simulated, Overwrite, Owned, Swept, Report)
OPERATIONS = tuple(f"{kind.__module__}:{kind.__name__}" for kind in KINDS)
PUBLISHING = frozenset(kind.type for kind in KINDS) - {Report.type}
