"""A job failed, or a commit step cannot be executed."""

from __future__ import annotations

from distop.errors.base import DistopError, Kind


class JobFailed(DistopError):
    """A job of the operation failed."""

    code = "JOB_FAILED"
    kind = Kind.PRECONDITION


class Crashed(DistopError):
    """Code called by distop raised an error from outside of distop: of a disk, a network, a user."""

    code = "CRASHED"
    kind = Kind.PRECONDITION
    retryable = True


class JobCrashed(Crashed):
    """A job raised an error from outside of distop: of a disk, a network, the code of its type."""

    code = "JOB_CRASHED"
    default_hint = "start the operation again after removing the cause"


def as_distop(error: Exception, crash: type[DistopError] = Crashed) -> DistopError:
    """The error itself if it is one of distop; otherwise a ``crash`` that names it."""
    if isinstance(error, DistopError):
        return error
    return crash(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def defect_of(error: BaseException) -> BaseException | None:
    """The error, if it came from outside of distop, so that its stack trace says more than its message.

    One that could not be sent from its process is a :class:`Crashed` with that trace as a note.
    """
    replaces_another = isinstance(error, Crashed) and bool(getattr(error, "__notes__", ()))
    return error if replaces_another or not isinstance(error, DistopError) else None


class AttemptTimeout(DistopError):
    """An attempt at a job exceeded its timeout."""

    code = "ATTEMPT_TIMEOUT"
    kind = Kind.DEADLINE
    retryable = True
    default_hint = "raise --attempt-timeout, or make the jobs smaller"


class CallTimeout(DistopError):
    """A call of the coordinator exceeded its timeout."""

    code = "CALL_TIMEOUT"
    kind = Kind.DEADLINE
    retryable = True
    default_hint = "remove the cause, or give it more time: distop coordinator --call-timeout"


class JobResultTooLarge(JobFailed):
    """The result of a job is larger than its record may be."""

    code = "JOB_RESULT_TOO_LARGE"
    default_hint = "write large facts to a file, and return its path"


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


class LaunchFailed(DistopError):
    """The tasks of an operation could not be run."""

    code = "LAUNCH_FAILED"
    retryable = True


class NeedsSpark(LaunchFailed):
    """This executor has no Spark."""

    code = "NEEDS_SPARK"
    default_hint = "start an executor with a Spark master"


class LauncherBroken(LaunchFailed):
    """Nothing can be launched here any more."""

    code = "LAUNCHER_BROKEN"
    default_hint = "restart this executor"
