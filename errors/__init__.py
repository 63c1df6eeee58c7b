"""The errors of distop: one root, a stable code each, and what to do about it.

Every error a user can meet is a :class:`DistopError`. Its ``code`` never changes once released, its
``retryable`` says whether the same call may succeed later without a change, and its ``hint`` says what
to do. The gRPC status and the exit code of the command line are derived from the error's
:class:`Kind`, here and nowhere else. :mod:`distop.errors.wire` carries errors over gRPC.

Libraries that only some users need are extras of the package, loaded where they are needed
(:func:`library`).
"""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Self


class Kind(Enum):
    """The kind of a failure. The value is ``(gRPC status name, exit code)``."""

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


RETRY_AFTER = "retryAfterS"
"""The detail of an error with the seconds until the next attempt."""

_LONGEST_ADVICE_S = 60.0


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
        text = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.message = encodable(text)
        self.hint = encodable(hint) or self.default_hint
        self.details = {name: encodable(str(value)) for name, value in (details or {}).items()}
        super().__init__(self.message)

    @property
    def retry_after_s(self) -> float:
        """Seconds until the service accepts the next attempt; 0: unknown."""
        try:
            return min(max(float(self.details.get(RETRY_AFTER, "0")), 0.0), _LONGEST_ADVICE_S)
        except ValueError:
            return 0.0

    def fields(self) -> dict[str, Any]:
        """The error as JSON."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
            "details": self.details,
        }

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (Spark pickles them): keyword arguments must survive, and so
        # must a code of a newer version, which is stored on the instance.
        return _rebuild, (type(self), self.message, self.hint, self.details), vars(self)


_RENAMED = {"REQUEST_ID_REUSED": "RUN_REUSED"}
"""Codes that release 0.2.0 answers with and has stored -> what they are now."""


def error_class(code: str, root: type[DistopError] = DistopError) -> type[DistopError] | None:
    """The class with this code, among all that are loaded; also with its code in release 0.2.0."""
    if vars(root).get("code") == _RENAMED.get(code, code):
        return root
    return next((known for child in root.__subclasses__() if (known := error_class(code, child))), None)


def encodable(text: str) -> str:
    """A text that records and messages can hold: names of files that are no text bring lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text; a truncated one ends with a whole word and an ellipsis."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    words = kept[: kept.rfind(" ") + 1]
    # A text of one long word, such as a path, is cut anywhere.
    return f"{(words if len(words) > limit // 2 else kept).rstrip()}…"


def _rebuild(cls: type[DistopError], message: str, hint: str, details: dict[str, str]) -> DistopError:
    return cls(message, hint=hint, details=details)


class InvalidArgument(DistopError):
    """The request is malformed."""

    code = "INVALID_ARGUMENT"
    kind = Kind.INVALID


class NotFound(DistopError):
    """The requested thing does not exist."""

    code = "NOT_FOUND"
    kind = Kind.NOT_FOUND


class AlreadyExists(DistopError):
    """The thing to create already exists."""

    code = "ALREADY_EXISTS"
    kind = Kind.EXISTS


class PreconditionFailed(DistopError):
    """The thing is not in a state that allows this."""

    code = "PRECONDITION_FAILED"
    kind = Kind.PRECONDITION


class PermissionDenied(DistopError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"
    kind = Kind.DENIED
    default_hint = "an admin can grant it: distop grant add WHO ROLE TABLE"


class Unauthenticated(DistopError):
    """The service cannot identify the caller."""

    code = "UNAUTHENTICATED"
    kind = Kind.UNAUTHENTICATED
    default_hint = "say who you are: DISTOP_TOKEN or DISTOP_TOKEN_FILE, or DISTOP_CERT and DISTOP_KEY"


class Conflict(DistopError):
    """The table was changed concurrently."""

    code = "CONFLICT"
    kind = Kind.CONFLICT


class DeadlineExceeded(DistopError):
    """The deadline passed."""

    code = "DEADLINE_EXCEEDED"
    kind = Kind.DEADLINE
    retryable = True


class Unavailable(DistopError):
    """A required service does not answer."""

    code = "UNAVAILABLE"
    kind = Kind.UNAVAILABLE
    retryable = True


class Exhausted(DistopError):
    """A limit is reached."""

    code = "RESOURCE_EXHAUSTED"
    kind = Kind.EXHAUSTED
    retryable = True


class ExtraMissing(PreconditionFailed):
    """An optional part of distop is not installed here."""

    code = "EXTRA_MISSING"


def require(module: str, extra: str, purpose: str) -> None:
    """Make sure that a library of an extra of distop is installed, without loading it.

    Parameters
    ----------
    extra:
        Its name in ``pyproject.toml``, such as ``spark``.
    purpose:
        What needs the library, as the subject of a sentence.

    Raises
    ------
    ExtraMissing
        The library is not installed; says how to install it.
    """
    if find_spec(module) is None:
        package = module.replace("_", "-")
        raise ExtraMissing(
            f"{purpose} needs the package {package}, which is not installed here",
            hint=f"pip install 'distop[{extra}]'",
            details={"extra": extra, "package": package},
        )


def library(module: str, extra: str, purpose: str) -> Any:
    """Import a library of an extra of distop; parameters and errors as of :func:`require`."""
    require(module, extra, purpose)
    return import_module(module)


# The caller's request is wrong, or not possible at present.


class InvalidName(InvalidArgument):
    """A name is empty, too long, or reserved."""

    code = "INVALID_NAME"


class NotAllowed(InvalidArgument):
    """The location that the caller names may not be opened here."""

    code = "NOT_ALLOWED"
    default_hint = "ask the operator to list it"


class ArgumentTooLarge(InvalidArgument):
    """The request is larger than etcd can hold in one value."""

    code = "ARGUMENT_TOO_LARGE"
    default_hint = "split the operation into several smaller ones"


class UnknownOperationType(InvalidArgument):
    """No operation type with this name is registered."""

    code = "UNKNOWN_OPERATION_TYPE"
    default_hint = (
        "register it through the entry point group distop.operations on every coordinator and executor"
    )


class FutureRevision(InvalidArgument):
    """The requested revision has not happened yet."""

    code = "FUTURE_REVISION"


class TableNotFound(NotFound):
    """The table does not exist."""

    code = "TABLE_NOT_FOUND"
    default_hint = "create it first: distop table create NAME --location URL"

    @classmethod
    def named(cls, table: str) -> Self:
        """The error for a table's name."""
        return cls(f"table {table!r} does not exist", details={"table": table})


class OperationNotFound(NotFound):
    """The operation does not exist."""

    code = "OPERATION_NOT_FOUND"
    default_hint = (
        "it may be older than the stored history, or be counted in its series: distop operation list"
    )


class TableExists(AlreadyExists):
    """A table with this name already exists."""

    code = "TABLE_EXISTS"


class LocationInUse(AlreadyExists):
    """Another table lives in this folder, in one above it, or in one below it."""

    code = "LOCATION_IN_USE"
    default_hint = "give each table a folder of its own"


class LocationNotOwned(PreconditionFailed):
    """It is not certain that all files of the folder belong to the table: none is removed."""

    code = "LOCATION_NOT_OWNED"


class RunReused(AlreadyExists):
    """This run was used before for another request."""

    code = "RUN_REUSED"
    default_hint = "name another run for another request: --run"


class RolledBack(PreconditionFailed):
    """What this request has written was rolled back since."""

    code = "ROLLED_BACK"
    default_hint = "to write it again, name another run: --run"


class BatchDiffers(AlreadyExists):
    """A batch with this name is queued with different content."""

    code = "BATCH_DIFFERS"
    default_hint = "publish it again with --republish, or give it another name"


class BatchLate(PreconditionFailed):
    """The batch sorts before one that was applied or skipped, and the table does not take it."""

    code = "BATCH_LATE"
    default_hint = "publish it again with --republish, or under a later name"


class ScheduleNotFound(NotFound):
    """The table has no such schedule."""

    code = "SCHEDULE_NOT_FOUND"


class ScheduleExists(AlreadyExists):
    """The table already has a schedule with this name."""

    code = "SCHEDULE_EXISTS"
    default_hint = "give it another name, or remove that one first: distop schedule remove TABLE NAME"


class BacklogInUse(PreconditionFailed):
    """Batches of the table wait, or were applied: it cannot be renamed."""

    code = "BACKLOG_IN_USE"
    default_hint = "ingest its rows into a new table, or keep the old name"


class IncompatibleOperation(DistopError):
    """An incompatible operation of this table is running."""

    code = "INCOMPATIBLE_OPERATION"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = (
        "wait until it has finished, or cancel it; if it is parked, see how to decide: "
        "distop operation show OPERATION"
    )


class TablePaused(DistopError):
    """The table is paused: nothing starts on it."""

    code = "TABLE_PAUSED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "resume it: distop table resume TABLE"


class OperationPaused(DistopError):
    """The operation, or its table, is paused."""

    code = "OPERATION_PAUSED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "resume it: distop operation resume OPERATION, or its table"


class NotParked(PreconditionFailed):
    """Completing the operation has not failed: there is nothing to resolve."""

    code = "NOT_PARKED"


class NotSkippable(PreconditionFailed):
    """The failed part of the operation cannot be skipped."""

    code = "NOT_SKIPPABLE"
    default_hint = "resolve the operation with retry, after removing the cause, or with abort"


class TooLateToCancel(DistopError):
    """The operation is past the point where it could be cancelled."""

    code = "TOO_LATE_TO_CANCEL"
    kind = Kind.PRECONDITION
    default_hint = "it is being published: wait for its end, then undo its effect with another operation"


class Cancelled(DistopError):
    """The operation was cancelled."""

    code = "CANCELLED"
    kind = Kind.CONFLICT


class OtherLayout(PreconditionFailed):
    """The keys of this installation have the layout of another version."""

    code = "OTHER_LAYOUT"
    default_hint = "use the version that created it, or another prefix: distop 0.1 migrates nothing"


class Restored(PreconditionFailed):
    """etcd was restored from a backup, and the tables are ahead of it."""

    code = "ETCD_RESTORED"
    retryable = True
    default_hint = "make sure that no service runs, then: distop cluster doctor --after-restore --fix"


# A job failed, or a commit step cannot be executed.


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


# The content of a source or a table prevents the operation.


class SourceUnreadable(InvalidArgument):
    """A source path cannot be read."""

    code = "SOURCE_UNREADABLE"


class SourceEmpty(InvalidArgument):
    """The source holds no files."""

    code = "SOURCE_EMPTY"


class SourceIncomplete(PreconditionFailed, JobFailed):
    """The files of a source are not complete, or were written again while they were read."""

    code = "SOURCE_INCOMPLETE"
    retryable = True
    default_hint = "its producer writes the marker once all files are there"


class AlreadyIngested(PreconditionFailed):
    """The source was already ingested, according to its watermark."""

    code = "ALREADY_INGESTED"


class StreamGap(PreconditionFailed):
    """Batches of a streaming query before this one are missing in the table."""

    code = "STREAM_GAP"


class WatermarkConflict(Conflict):
    """The watermark moved under the operation."""

    code = "WATERMARK_CONFLICT"


class HeadConflict(Conflict):
    """The table was changed meanwhile, and the operation's mode does not allow that."""

    code = "HEAD_CONFLICT"


class SchemaConflict(Conflict):
    """The columns of the table have changed meanwhile, and the operation's files no longer fit."""

    code = "SCHEMA_CONFLICT"
    retryable = True
    default_hint = "start the operation again: it will use the table's present columns"


class TableNotEmpty(Conflict):
    """The table already holds data, but the operation requires an empty one."""

    code = "TABLE_NOT_EMPTY"


class ValidationFailed(PreconditionFailed):
    """Rows break rules that they must keep.

    Parameters
    ----------
    facts:
        Facts for the history: JSON.
    """

    code = "VALIDATION_FAILED"

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        details: dict[str, str] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.facts = dict(facts or {})


class TooManyBadRows(ValidationFailed, JobFailed):
    """More rows of the source are bad than the ingest allows."""

    code = "TOO_MANY_BAD_ROWS"
    default_hint = "correct the source, or allow more with --max-bad-rows or --max-bad-share"


class WriteTooOld(PreconditionFailed):
    """The write began so long ago that its files may have been removed."""

    code = "WRITE_TOO_OLD"
    default_hint = "write the rows again"


class WriteGivenUp(PreconditionFailed):
    """The write was abandoned before it was published."""

    code = "WRITE_GIVEN_UP"
    default_hint = "write the rows again"


class BadRow(JobFailed):
    """A row of the source cannot be parsed or cast."""

    code = "BAD_ROW"
    default_hint = "correct the file, or choose --on-bad-rows quarantine"


class KafkaUnavailable(PreconditionFailed):
    """The brokers of a Kafka cluster do not answer, or lack something that is needed."""

    # Not the kind that a client takes for an unreachable coordinator, and retries with another one.

    code = "KAFKA_UNAVAILABLE"
    retryable = True
    default_hint = "check that the brokers run and can be reached from here, then try again"


class OffsetsLost(JobFailed):
    """Records of a Kafka topic that the operation needs are no longer in the topic."""

    code = "OFFSETS_LOST"
    default_hint = "missing records are lost: skip them with --kafka-on-gap skip"


# A problem of etcd, a lease or a record in it.


class EtcdUnavailable(Unavailable):
    """etcd does not answer."""

    code = "ETCD_UNAVAILABLE"
    default_hint = "check the endpoints (--etcd, DISTOP_ETCD), and that the cluster has a leader"


class EtcdDenied(EtcdUnavailable):
    """etcd rejects this user, password or role."""

    code = "ETCD_DENIED"
    kind = Kind.DENIED
    retryable = False
    default_hint = "check user, password and role"


class OutcomeUnknown(Unavailable):
    """A write was sent and its reply was lost; reading back did not show whether it happened."""

    code = "OUTCOME_UNKNOWN"
    default_hint = "repeat the call: it is idempotent with the same run"


class Busy(Exhausted):
    """The limit of concurrent work is reached."""

    code = "BUSY"
    default_hint = "try again in a moment"


class EtcdOutOfSpace(OutcomeUnknown):
    """etcd is out of space and refuses writes.

    Even for writes that it has applied: for those in progress when its quota is reached it reports the error
    although they happened (etcd 3.4 and 3.5: ``quotaApplierV3`` applies first and refuses then). Conclude
    nothing from it.
    """

    code = "ETCD_OUT_OF_SPACE"
    kind = Kind.EXHAUSTED
    default_hint = "compact and defragment etcd, then disarm the alarm: etcdctl alarm disarm"


class CorruptRecord(DistopError):
    """This version of distop cannot parse a value in etcd."""

    code = "CORRUPT_RECORD"


class UnsupportedType(CorruptRecord):
    """The table has a column of a type that distop does not read."""

    code = "UNSUPPORTED_TYPE"
    kind = Kind.PRECONDITION
    default_hint = "use the table with the program that wrote it, or drop the column there"


class Compacted(DistopError):
    """The requested revision is no longer in etcd's history."""

    code = "COMPACTED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "restart from the present state"


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


OF_THE_WORLD: tuple[type[DistopError], ...] = (
    EtcdUnavailable,
    OutcomeUnknown,
    EtcdOutOfSpace,
    Busy,
    LeadershipLost,
    LeaseLost,
)
"""Errors that say nothing about the operation or batch that meets them: retried, and not counted."""


class Forked(PreconditionFailed):
    """This process was forked from one that already uses distop, and cannot connect."""

    code = "FORKED"
    default_hint = "start processes without fork, as multiprocessing.get_context('spawn') does"
