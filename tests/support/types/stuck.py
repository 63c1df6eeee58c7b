"""An operation type whose code hangs where its argument says, and a commit step that does."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distop.commit.contract import ExternalStep, StepContext, StepState
from distop.errors import LeaseLost
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations.api import DistributedOperation, OperationView, Plan, PlanRequest, Scope
from distop.operations.job import JobContext

STEPS = f"probe.stuck={__name__}:StuckStep,probe.deadly={__name__}:DeadlyStep"
"""The value of ``DISTOP_COMMIT_STEPS`` that registers these steps."""


class Odd(Exception):
    """An error that can be pickled but not unpickled: it has fewer arguments than its constructor."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class Stuck(DistributedOperation):
    """Its argument says what hangs (``where``: object_of, combine, plan, commit_steps, hook, step, abort), or
    how its hook ends (dies, exits, odd), or that one of its steps kills (deadly step), and names a folder in
    which whoever hangs leaves a file named by its process. What hangs in ``combine`` or ``plan`` does so
    without a rest."""

    type = "stuck"

    def plan(self, request: PlanRequest) -> Plan:
        argument = dict(request.argument)
        _hang("plan", argument, rests=False)
        return Plan(argument=argument, partition_count=argument.get("partitions", 0))

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
        _hang("combine", first, rests=False)
        return dict(first)

    def object_of(self, argument: Mapping[str, Any]) -> str:
        _hang("object_of", argument)
        return "it"

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        return None

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        _hang("commit_steps", operation.argument)
        if operation.argument.get("where") in ("step", "checking step"):
            return [StepRecord(step="probe.stuck", argument=dict(operation.argument))]
        if operation.argument.get("where") == "deadly step":
            files = {f"{operation.argument['folder']}/{name}": name == "20" for name in map(str, range(40))}
            return [
                StepRecord(step="probe.deadly", argument={"file": file, "kills": kills})
                for file, kills in files.items()
            ]
        return []

    def before_publish(self, operation: OperationView) -> None:
        _hang("hook", operation.arg.argument)
        match operation.arg.argument.get("where"):
            case "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exits":
                raise SystemExit("enough")
            case "odd":
                raise Odd("one", "two")

    def after_failure(self, operation: OperationView) -> None:
        _hang("abort", operation.arg.argument)


class StuckObject(Stuck):
    """One operation per object."""

    type = "stuck_object"
    scope = Scope.PER_OBJECT


class StuckStep(ExternalStep):
    """Hangs, or asks whether it may act for as long as it may."""

    def verify(self, context: StepContext) -> StepState:
        return StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        if self.argument["where"] == "checking step":
            _leave_word(self.argument)
        while self.argument["where"] == "checking step":
            try:
                context.check()
            except LeaseLost:
                Path(self.argument["folder"], f"{os.getpid()}.lost").touch()
                raise
            time.sleep(0.01)
        _hang("step", self.argument)


class DeadlyStep(ExternalStep):
    """Writes a file, or ends its process."""

    skippable = True

    def verify(self, context: StepContext) -> StepState:
        return StepState.DONE if Path(self.argument["file"]).exists() else StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        if self.argument["kills"]:
            os.kill(os.getpid(), signal.SIGKILL)
        Path(self.argument["file"]).touch()


def _hang(where: str, argument: Mapping[str, Any], *, rests: bool = True) -> None:
    if argument.get("where") == where:
        _leave_word(argument)
        while True:
            if rests:
                time.sleep(3600.0)


def _leave_word(argument: Mapping[str, Any]) -> None:
    Path(argument["folder"], str(os.getpid())).touch()
