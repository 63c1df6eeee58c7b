"""The caller's request is wrong, or not possible at present."""

from __future__ import annotations

from typing import Self

from distop.errors.base import AlreadyExists, DistopError, InvalidArgument, Kind, NotFound, PreconditionFailed


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


class RequestIdReused(AlreadyExists):
    """This request id was used before for another request."""

    code = "REQUEST_ID_REUSED"
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
    default_hint = "wait until it has finished, or cancel it"


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
