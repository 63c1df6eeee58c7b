"""The errors of distop: one root, a stable code each, and what to do about it.

Every error a user can meet is a :class:`DistopError`. Its ``code`` never changes once released, its
``retryable`` says whether the same call may succeed later without a change, and its ``hint`` says what
to do. The gRPC status and the exit code of the command line are derived from the error's
:class:`Kind`, here and nowhere else.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar


class Kind(Enum):
    """What sort of failure it is. The value is ``(gRPC status name, exit code)``."""

    INVALID = ("INVALID_ARGUMENT", 2)
    NOT_FOUND = ("NOT_FOUND", 3)
    EXISTS = ("ALREADY_EXISTS", 4)
    PRECONDITION = ("FAILED_PRECONDITION", 5)
    CONFLICT = ("ABORTED", 6)
    EXHAUSTED = ("RESOURCE_EXHAUSTED", 7)
    UNAVAILABLE = ("UNAVAILABLE", 8)
    DEADLINE = ("DEADLINE_EXCEEDED", 9)
    UNIMPLEMENTED = ("UNIMPLEMENTED", 10)
    DENIED = ("PERMISSION_DENIED", 11)
    UNAUTHENTICATED = ("UNAUTHENTICATED", 12)
    INTERNAL = ("INTERNAL", 13)

    @property
    def grpc_status(self) -> str:
        return str(self.value[0])

    @property
    def exit_code(self) -> int:
        return int(self.value[1])


class DistopError(Exception):
    """The root of all errors of distop.

    Parameters
    ----------
    message:
        What happened, in one sentence, naming the thing it happened to. Defaults to the class's docstring.
    hint:
        What the user can do about it. Defaults to the class's ``hint``.
    details:
        Facts for programs (strings), such as ``{"field": "paths", "operation": "flights/ingest/17"}``.
    """

    code: ClassVar[str] = "INTERNAL"
    kind: ClassVar[Kind] = Kind.INTERNAL
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str = "", details: dict[str, str] | None = None) -> None:
        self.message = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.hint = hint or self.default_hint
        self.details = dict(details or {})
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (Spark pickles them); keyword arguments must survive, and so
        # must a code of a newer version, which stands on the instance.
        return _rebuild, (type(self), self.message, self.hint, self.details), vars(self)


def _rebuild(cls: type[DistopError], message: str, hint: str, details: dict[str, str]) -> DistopError:
    return cls(message, hint=hint, details=details)


class InvalidArgument(DistopError):
    """The request is malformed."""

    code = "INVALID_ARGUMENT"
    kind = Kind.INVALID


class InvalidName(InvalidArgument):
    """A name is empty, too long, or reserved."""

    code = "INVALID_NAME"


class ArgumentTooLarge(InvalidArgument):
    """The request is larger than etcd can hold in one value."""

    code = "ARGUMENT_TOO_LARGE"
    default_hint = "split the operation into several smaller ones"


class UnknownOperationType(InvalidArgument):
    """No operation type of this name is registered."""

    code = "UNKNOWN_OPERATION_TYPE"
    default_hint = (
        "register it through the entry point group distop.operations on every coordinator and executor"
    )


class SourceUnreadable(InvalidArgument):
    """A source path cannot be read."""

    code = "SOURCE_UNREADABLE"


class SourceEmpty(InvalidArgument):
    """The source holds no files."""

    code = "SOURCE_EMPTY"


class NotFound(DistopError):
    """The thing asked for does not exist."""

    code = "NOT_FOUND"
    kind = Kind.NOT_FOUND


class TableNotFound(NotFound):
    """The table does not exist."""

    code = "TABLE_NOT_FOUND"
    default_hint = "create it first: distop tables create NAME --location URL"


class OperationNotFound(NotFound):
    """The operation does not exist."""

    code = "OPERATION_NOT_FOUND"


class AlreadyExists(DistopError):
    """The thing to be made exists already."""

    code = "ALREADY_EXISTS"
    kind = Kind.EXISTS


class TableExists(AlreadyExists):
    """A table of this name exists already."""

    code = "TABLE_EXISTS"


class BatchDiffers(AlreadyExists):
    """A batch of this name is queued with another content."""

    code = "BATCH_DIFFERS"
    default_hint = "publish it again on purpose (republish), or give it another name"


class RequestIdReused(AlreadyExists):
    """This request id was used before for another request."""

    code = "REQUEST_ID_REUSED"
    default_hint = "use a new request id for a new request"


class IncompatibleOperation(DistopError):
    """Another operation of this table is in the way."""

    code = "INCOMPATIBLE_OPERATION"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "wait until it has finished, or cancel it"


class PreconditionFailed(DistopError):
    """The thing is not in a state that allows this."""

    code = "PRECONDITION_FAILED"
    kind = Kind.PRECONDITION


class BatchLate(PreconditionFailed):
    """The batch sorts before one that was applied, and the table rejects such batches."""

    code = "BATCH_LATE"
    default_hint = "publish it again on purpose (republish), or under a later name"


class NotParked(PreconditionFailed):
    """The operation is not parked: there is nothing to resolve."""

    code = "NOT_PARKED"


class NotSkippable(PreconditionFailed):
    """What failed cannot be left out of the operation."""

    code = "NOT_SKIPPABLE"
    default_hint = "resolve the operation with retry, once the cause is removed, or with abort"


class TablePaused(DistopError):
    """The table is paused: nothing starts on it."""

    code = "TABLE_PAUSED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "resume it: distop resume TABLE"


class OperationPaused(DistopError):
    """The operation, or its table, is paused."""

    code = "OPERATION_PAUSED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "resume it: distop resume OPERATION, or its table"


class AlreadyIngested(PreconditionFailed):
    """The source was ingested already, as its watermark says."""

    code = "ALREADY_INGESTED"


class Conflict(DistopError):
    """Somebody else changed the table meanwhile."""

    code = "CONFLICT"
    kind = Kind.CONFLICT


class WatermarkConflict(Conflict):
    """The watermark moved under the operation."""

    code = "WATERMARK_CONFLICT"


class HeadConflict(Conflict):
    """The table was written to meanwhile, and the operation's mode does not allow that."""

    code = "HEAD_CONFLICT"


class TableNotEmpty(Conflict):
    """The table holds data already, and the operation was to find none."""

    code = "TABLE_NOT_EMPTY"


class JobFailed(DistopError):
    """A job of the operation failed."""

    code = "JOB_FAILED"
    kind = Kind.PRECONDITION


class JobCrashed(DistopError):
    """A job raised an error that is none of distop's: of a disk, a network, the code of its type."""

    code = "JOB_CRASHED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "start the operation again once the cause is removed"


class BadRow(JobFailed):
    """A row of the source cannot be parsed or cast."""

    code = "BAD_ROW"
    default_hint = "correct the file, or choose on_bad_rows=quarantine"


class Cancelled(DistopError):
    """The operation was cancelled."""

    code = "CANCELLED"
    kind = Kind.CONFLICT


class DeadlineExceeded(DistopError):
    """The deadline passed."""

    code = "DEADLINE_EXCEEDED"
    kind = Kind.DEADLINE
    retryable = True


class Unavailable(DistopError):
    """A service that is needed does not answer."""

    code = "UNAVAILABLE"
    kind = Kind.UNAVAILABLE
    retryable = True


class EtcdUnavailable(Unavailable):
    """etcd does not answer."""

    code = "ETCD_UNAVAILABLE"
    default_hint = "check the etcd endpoints and that the cluster has a leader"


class EtcdDenied(EtcdUnavailable):
    """etcd does not take this user, password or role."""

    code = "ETCD_DENIED"
    kind = Kind.DENIED
    retryable = False
    default_hint = "check user, password and role"


class OutcomeUnknown(Unavailable):
    """A write was sent and its reply was lost; whether it happened could not be read back."""

    code = "OUTCOME_UNKNOWN"
    default_hint = "ask again: the call is safe to repeat with the same request id"


class Exhausted(DistopError):
    """A limit is reached."""

    code = "RESOURCE_EXHAUSTED"
    kind = Kind.EXHAUSTED
    retryable = True


class EtcdOutOfSpace(Exhausted):
    """etcd is out of space and refuses writes."""

    code = "ETCD_OUT_OF_SPACE"
    default_hint = "compact and defragment etcd, then disarm the alarm: etcdctl alarm disarm"


class CorruptRecord(DistopError):
    """A value in etcd is not what this version of distop writes."""

    code = "CORRUPT_RECORD"


class LeadershipLost(DistopError):
    """This coordinator is no longer the leader of the table."""

    code = "LEADERSHIP_LOST"
    kind = Kind.UNAVAILABLE
    retryable = True


class LeaseLost(DistopError):
    """The lease of this process has expired."""

    code = "LEASE_LOST"
    kind = Kind.UNAVAILABLE
    retryable = True


class Compacted(DistopError):
    """The revision asked for is no longer in etcd's history."""

    code = "COMPACTED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "begin again from the present state"


class AttemptTimeout(DistopError):
    """An attempt at a job took longer than it may."""

    code = "ATTEMPT_TIMEOUT"
    kind = Kind.DEADLINE
    retryable = True
    default_hint = "raise attempt_timeout, or make the jobs smaller"


class JobResultTooLarge(JobFailed):
    """The result of a job is larger than its record may be."""

    code = "JOB_RESULT_TOO_LARGE"
    default_hint = "write large facts beside the job's data, and report where they are"


class UnknownCommitStep(DistopError):
    """No commit step of this name is registered."""

    code = "UNKNOWN_COMMIT_STEP"
    kind = Kind.UNIMPLEMENTED
    default_hint = (
        "upgrade distop here, or install the package that provides the step (group distop.commit_steps)"
    )


class FutureRevision(InvalidArgument):
    """The revision asked for has not happened yet."""

    code = "FUTURE_REVISION"


class TooLateToCancel(DistopError):
    """The operation is past the point where it could be cancelled."""

    code = "TOO_LATE_TO_CANCEL"
    kind = Kind.PRECONDITION
    default_hint = "it is being published: wait for its end, then undo what it did with another operation"


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
