"""A commit step cannot be executed."""

from __future__ import annotations

from distop.errors.base import DistopError, Kind


class UnknownCommitStep(DistopError):
    """No commit step with this name is registered."""

    code = "UNKNOWN_COMMIT_STEP"
    kind = Kind.UNIMPLEMENTED
    default_hint = (
        "upgrade distop here, or install the package that provides the step (group distop.commit_steps)"
    )


class PermanentStepError(DistopError):
    """A commit step can never succeed as it was planned."""

    code = "STEP_IMPOSSIBLE"
    kind = Kind.PRECONDITION
    default_hint = "remove the cause, then resolve the operation"


class StepConflict(PermanentStepError):
    """A commit step found a different state than the planned one."""

    code = "STEP_CONFLICT"
    kind = Kind.CONFLICT


class StepSourceMissing(PermanentStepError):
    """The source of a commit step is gone."""

    code = "STEP_SOURCE_MISSING"
