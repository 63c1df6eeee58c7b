"""The operation types of the simulation: those of the model, whose code fails where their argument says so.

``trouble`` in an argument is ``{"in": <method>, "error": <class>, "times": <number>}``: this method raises,
the first times it is called for the operation. What it was called for is remembered outside of all processes,
as a real service that a hook calls would.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from distop.commit.contract import VARIABLE
from distop.errors import Conflict, InvalidArgument, PreconditionFailed, Unavailable
from distop.metastore.records.operation import Effect, OperationArg, Retry, StepRecord
from distop.operations.api import DistributedOperation, OperationView, Plan, PlanRequest
from distop.operations.job import JobContext
from explore import table
from explore.table import Append

STEPS = {VARIABLE: "explore_head=explore.table:ExploreHead"}
"""The environment in which the commit steps of the model are found."""

ERRORS = {
    error.__name__: error
    for error in (RuntimeError, InvalidArgument, Conflict, PreconditionFailed, Unavailable)
}
ALWAYS = 1_000_000

raised: Counter[tuple[str, str]] = Counter()
"""How often a method has raised for an operation; cleared before each simulation."""


def _perhaps_raise(argument: Mapping[str, Any], uuid: str, method: str) -> None:
    trouble = argument.get("trouble")
    if not trouble or trouble["in"] != method or raised[uuid, method] >= trouble["times"]:
        return
    raised[uuid, method] += 1
    raise ERRORS[trouble["error"]](f"{method} raises, as its argument says")


class Report(DistributedOperation):
    """Publishes nothing, and has no hooks: the simplest type there is."""

    type = "report"
    retry = Retry(for_s=1.0)  # all that happens must end within the simulated minutes
    effect = Effect.READS

    def plan(self, request: PlanRequest) -> Plan:
        plan = Append().plan(request)
        more = {name: request.argument[name] for name in ("trouble", "fail") if name in request.argument}
        return replace(plan, argument={**plan.argument, **more})

    def run_job(self, job: JobContext) -> None:
        raise NotImplementedError("the launcher of the simulation does nothing but mark")

    def describe_job(self, operation: OperationArg, partition: str) -> str:
        _perhaps_raise(operation.argument, operation.uuid, "describe_job")
        return super().describe_job(operation, partition)


class Hooked(Report):
    """Publishes nothing, and has a hook for its end."""

    type = "hooked"

    def before_publish(self, operation: OperationView) -> None:
        _perhaps_raise(operation.arg.argument, operation.arg.uuid, "before_publish")

    def after_failure(self, operation: OperationView) -> None:
        _perhaps_raise(operation.arg.argument, operation.arg.uuid, "after_failure")


class Simulated(Hooked):
    """Appends a line to the head of its table."""

    type = "append"
    effect = Effect.APPENDS
    model: ClassVar[Any] = Append

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        _perhaps_raise(operation.argument, operation.uuid, "commit_steps")
        steps: Sequence[StepRecord] = self.model().commit_steps(operation)
        return steps


class Overwrite(Simulated):
    """Replaces what it has read, so it must stand alone."""

    type = "overwrite"
    effect = Effect.WRITES
    model = table.Overwrite


class Owned(Simulated):
    """Its jobs are claimed."""

    type = "owned"
    exclusive = True


class Swept(Simulated):
    """Its attempts leave something that is swept after the end."""

    type = "swept"

    def cleanup(self, operation: OperationView) -> None:
        _perhaps_raise(operation.arg.argument, operation.arg.uuid, "cleanup")


METHODS = {
    Report: ("describe_job",),
    Hooked: ("describe_job", "before_publish", "after_failure"),
    Simulated: ("describe_job", "commit_steps", "before_publish", "after_failure"),
    Overwrite: ("commit_steps", "before_publish"),
    Owned: ("commit_steps", "after_failure"),
    Swept: ("before_publish", "after_failure", "cleanup"),
}
"""All types, and the methods of each that an argument can have raise."""

KINDS = {kind.type: kind for kind in METHODS}
OPERATIONS = tuple(f"{kind.__module__}:{kind.__name__}" for kind in METHODS)
PUBLISHING = frozenset(KINDS) - {Report.type, Hooked.type}
