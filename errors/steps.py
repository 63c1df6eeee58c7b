"""A commit step can not be taken."""

from __future__ import annotations

from distop.errors.base import DistopError, Kind


class UnknownCommitStep(DistopError):
    """No commit step of this name is registered."""

    code = "UNKNOWN_COMMIT_STEP"
    kind = Kind.UNIMPLEMENTED
    default_hint = (
        "upgrade distop here, or install the package that provides the step (group distop.commit_steps)"
    )


class PermanentStepError(DistopError):
    """A commit step can never succeed as it was planned."""

    code = "STEP_IMPOSSIBLE"
    kind = Kind.PRECONDITION
    default_hint = "put right what it names, then resolve the operation"


class StepConflict(PermanentStepError):
    """A commit step found something else than what it was planned on."""

    code = "STEP_CONFLICT"
    kind = Kind.CONFLICT


class StepSourceMissing(PermanentStepError):
    """What a commit step is to publish is gone."""

    code = "STEP_SOURCE_MISSING"
