"""External commit steps for tests, and an operation type whose argument says which of them it has."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distop.commit.contract import ExternalStep, FinishContext, StepContext, StepPlan, StepState
from distop.errors import PermanentStepError
from distop.metastore.records.operation import OperationArg, StepRecord
from support.types.work_types import Given

STEPS = ",".join(f"probe.{name.lower()}={__name__}:{name}" for name in ("Write", "Must", "Many"))
"""The value of ``DISTOP_COMMIT_STEPS`` that registers these steps."""


class Must(ExternalStep):
    """Writes the operation's token into ``path``.

    Fails while ``<path>.broken`` exists; permanently, if its text is ``for good``.

    Each execution adds a line to ``<folder>/journal``. Undoing it removes ``<path>.fatal`` and dies, if that
    exists.
    """

    def verify(self, context: StepContext) -> StepState:
        path = Path(self.argument["path"])
        return StepState.DONE if path.exists() and path.read_text() == context.token else StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        path = Path(self.argument["path"])
        with (path.parent / "journal").open("a") as journal:
            journal.write(f"{path.name}\n")
        broken = path.with_name(f"{path.name}.broken")
        if broken.exists():
            raise (PermanentStepError if "for good" in broken.read_text() else RuntimeError)("it is broken")
        path.write_text(context.token)

    def undo(self, context: StepContext) -> bool:
        path = Path(self.argument["path"])
        if (fatal := path.with_name(f"{path.name}.fatal")).exists():
            fatal.unlink()
            os._exit(1)
        path.unlink(missing_ok=True)
        return True


class Write(Must):
    """The same, and it may be left out."""

    skippable = True


class Many(StepPlan):
    """One step per job that succeeded, and a last one after them all."""

    def expand(self, context: FinishContext) -> Sequence[StepRecord]:
        folder, step = self.argument["folder"], self.argument["step"]
        names = sorted(name for name, job in context.view.jobs.items() if job.state == "success")
        records = [StepRecord(step=step, argument={"path": f"{folder}/{name}"}) for name in names]
        return [*records, StepRecord(step=step, argument={"path": f"{folder}/last"}, stage=1)]

    def facts(self, context: FinishContext) -> dict[str, Any]:
        return {"written": len(context.view.jobs) + 1}


class Stepped(Given):
    """Commits through the external steps of ``argument.steps``."""

    type = "stepped"

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
        return {**first, "partitions": first["partitions"] + second["partitions"]}

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        argument = operation.argument
        return [
            StepRecord(step="probe.many", argument={"folder": argument["folder"], "step": argument["step"]})
        ]
