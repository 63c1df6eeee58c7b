"""What a caller asked for is wrong, or not possible at present."""

from __future__ import annotations

from distop.errors.base import AlreadyExists, DistopError, InvalidArgument, Kind, NotFound, PreconditionFailed


class InvalidName(InvalidArgument):
    """A name is empty, too long, or reserved."""

    code = "INVALID_NAME"


class NotAllowed(InvalidArgument):
    """What the caller names may not be opened here."""

    code = "NOT_ALLOWED"
    default_hint = "ask the operator to list it"


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


class FutureRevision(InvalidArgument):
    """The revision asked for has not happened yet."""

    code = "FUTURE_REVISION"


class TableNotFound(NotFound):
    """The table does not exist."""

    code = "TABLE_NOT_FOUND"
    default_hint = "create it first: distop tables create NAME --location URL"


class OperationNotFound(NotFound):
    """The operation does not exist."""

    code = "OPERATION_NOT_FOUND"
    default_hint = "it may be older than the history that is kept, or counted in its series: see distop ls"


class TableExists(AlreadyExists):
    """A table of this name exists already."""

    code = "TABLE_EXISTS"


class LocationInUse(AlreadyExists):
    """Another table lives in this folder, in one above it, or in one below it."""

    code = "LOCATION_IN_USE"
    default_hint = "give each table a folder of its own"


class LocationNotOwned(PreconditionFailed):
    """Nothing says that all files of the folder are the table's own: none is removed."""

    code = "LOCATION_NOT_OWNED"


class RequestIdReused(AlreadyExists):
    """This request id was used before for another request."""

    code = "REQUEST_ID_REUSED"
    default_hint = "use a new request id for a new request"


class BatchDiffers(AlreadyExists):
    """A batch of this name is queued with another content."""

    code = "BATCH_DIFFERS"
    default_hint = "publish it again on purpose (republish), or give it another name"


class BatchLate(PreconditionFailed):
    """The batch sorts before one that was applied, and the table rejects such batches."""

    code = "BATCH_LATE"
    default_hint = "publish it again on purpose (republish), or under a later name"


class ScheduleNotFound(NotFound):
    """The table has no such schedule."""

    code = "SCHEDULE_NOT_FOUND"


class ScheduleExists(AlreadyExists):
    """The table has a schedule of this name."""

    code = "SCHEDULE_EXISTS"
    default_hint = "give it another name, or remove that one first: distop schedules rm TABLE NAME"


class BacklogInUse(PreconditionFailed):
    """Batches of the table wait, or were applied: it keeps its name."""

    code = "BACKLOG_IN_USE"
    default_hint = "ingest its rows into a new table, or go on under the old name"


class IncompatibleOperation(DistopError):
    """Another operation of this table is in the way."""

    code = "INCOMPATIBLE_OPERATION"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "wait until it has finished, or cancel it"


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


class NotParked(PreconditionFailed):
    """The operation is not parked: there is nothing to resolve."""

    code = "NOT_PARKED"


class NotSkippable(PreconditionFailed):
    """What failed cannot be left out of the operation."""

    code = "NOT_SKIPPABLE"
    default_hint = "resolve the operation with retry, once the cause is removed, or with abort"


class TooLateToCancel(DistopError):
    """The operation is past the point where it could be cancelled."""

    code = "TOO_LATE_TO_CANCEL"
    kind = Kind.PRECONDITION
    default_hint = "it is being published: wait for its end, then undo what it did with another operation"


class Cancelled(DistopError):
    """The operation was cancelled."""

    code = "CANCELLED"
    kind = Kind.CONFLICT


class OtherLayout(PreconditionFailed):
    """The keys of this installation were laid out by another version."""

    code = "OTHER_LAYOUT"
    default_hint = "use the version that made it, or another prefix: distop 0.1 moves nothing over"


class Restored(PreconditionFailed):
    """etcd was restored from a backup, and the tables are ahead of it."""

    code = "ETCD_RESTORED"
    retryable = True
    default_hint = "see that no service runs, then: distop doctor --after-restore --fix"
