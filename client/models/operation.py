"""Operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from distop.client.models.cluster import Pause
from distop.client.models.model import Model, ModelEnum
from distop.errors import Cancelled, DistopError, Kind


class OperationState(ModelEnum):
    """The state of an operation. ``succeeded``, ``failed`` and ``cancelled`` are final."""

    RUNNING = "running"
    COMMITTING = "committing"
    """All jobs have succeeded; the outputs are frozen and being published."""
    ABORTING = "aborting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """A state of a newer server; or, in a list, an operation that cannot be read: see its error."""

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED})


class OperationFailed(DistopError):
    """The operation failed."""

    code = "OPERATION_FAILED"
    kind = Kind.PRECONDITION


class OperationParked(DistopError):
    """The operation is parked: completing it kept failing, and it needs a decision."""

    code = "OPERATION_PARKED"
    kind = Kind.PRECONDITION


@dataclass(frozen=True, slots=True)
class JobCounts(Model):
    """How many jobs an operation has, and how many of them are done."""

    total: int = 0
    succeeded: int = 0
    failed: int = 0
    counting: bool = False
    """Of a dynamic plan: the number of jobs is still unknown. ``total`` (0: unknown) and ``succeeded`` are
    then Spark's progress."""

    @property
    def done(self) -> int:
        return self.succeeded + self.failed


@dataclass(frozen=True, slots=True)
class OperationError(Model):
    """Why an operation aborts or has failed."""

    code: str
    """A stable code of :mod:`distop.errors`."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion(Model):
    """How completing an operation has failed so far."""

    attempts: int = 0
    """Failed attempts; a decision (retry, skip) resets it."""
    step: str = ""
    """The commit step that failed last; empty if something else failed."""
    error: OperationError | None = None
    at: datetime | None = None
    parked: bool = False
    """No further attempt before a decision."""
    skipped: int = 0
    """Commit steps that a user decided to skip."""
    skippable: bool = False
    """Whether the failed step may be skipped: resolve with ``skip``."""
    running: str = ""
    """The slow call in progress, which may hang; empty if there is none. See ``resolve``, ``abort``."""
    running_since: datetime | None = None
    since: datetime | None = None
    """The first of these failures."""
    next_at: datetime | None = None
    """The next attempt, unless it is parked."""
    until: datetime | None = None
    """The last attempt is the first one that is to be made at or after this time."""

    @property
    def decisions(self) -> str:
        """The possible decisions, as arguments of ``distop resolve``."""
        return "retry|skip|abort" if self.skippable else "retry|abort"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Model):
    """One thing that has happened to an operation."""

    at: datetime | None = None
    """By the clock of the process that did it."""
    what: str
    """Such as ``started``, ``taken`` (by an executor), ``sealed``, ``finished``: see docs/operating.md."""
    by: str = ""
    """Who did it: a caller, an executor, a coordinator."""
    about: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation(Model):
    """An operation at one etcd revision."""

    name: str
    """``table/type/instance`` or ``table/type/object/instance``; slashes in names as ``%2F``."""
    table: str
    type: str
    object: str = ""
    instance: int = 0
    """Grows by one with every operation of the type on the table."""
    state: OperationState
    jobs: JobCounts = JobCounts()
    request_id: str = ""
    """The request id, which makes its start idempotent."""
    started_by: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: OperationError | None = None
    argument: dict[str, Any] = field(default_factory=dict)
    """Its argument for people: long lists and texts are shortened, secrets are hidden."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What its commit steps reported: snapshot id, rows, files."""
    last_job_at: datetime | None = None
    """When its last job finished, while it is not over."""
    runner: str = ""
    """The executor that runs its jobs at present."""
    cancel_requested: bool = False
    completion: Completion | None = None
    """``None`` if completing it has not failed."""
    follows: str = ""
    """The operation whose finish has started it."""
    retry_of: str = ""
    """The earlier operation of its request, which ended without success."""
    found: bool = False
    """In the answer to a start: the same request had started it before."""
    max_failed_partitions: int = 0
    """How many jobs may fail, from the start's options; -1: any number."""
    pause: Pause | None = None
    """Set while it, or its table, is paused."""
    revision: int = 0
    """The etcd revision this was read at."""
    events: tuple[Event, ...] = ()
    """What has happened to it, if that was asked for."""
    events_left_out: int = 0
    """How many of these are left out after the first ones."""

    @property
    def parked(self) -> bool:
        """Whether it waits for a decision."""
        return self.completion is not None and self.completion.parked

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self.state.final

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end; ``None`` while it is not over."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()

    def raise_for_outcome(self) -> Self:
        """Return this operation if it has succeeded, or runs and needs no decision.

        Raises
        ------
        OperationFailed
            It failed. ``details["cause"]`` is the code of the error that made it fail.
        Cancelled
            It was cancelled.
        OperationParked
            It needs a decision to go on.
        """
        if self.parked and self.completion is not None:
            cause = self.completion.error
            why = f": {cause.code}: {cause.message}" if cause else ""
            raise OperationParked(
                f"{self.name} is parked after {self.completion.attempts} failed attempts{why}",
                hint=f"remove the cause and decide: distop resolve {self.name} {self.completion.decisions}",
                details={"operation": self.name} | ({"cause": cause.code} if cause else {}),
            )
        if self.state not in (OperationState.FAILED, OperationState.CANCELLED):
            return self
        why = f": {self.error.message}" if self.error and self.error.message else ""
        details = {"operation": self.name} | ({"cause": self.error.code} if self.error else {})
        if self.state is OperationState.CANCELLED:
            raise Cancelled(f"{self.name} was cancelled{why}", details=details)
        raise OperationFailed(f"{self.name} failed{why}", details=details)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace(Model):
    """An error of user code."""

    partition: str
    """Partition of the job; empty: completing the operation raised."""
    attempt: str = ""
    at: datetime | None = None
    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class JobUpdate(Model):
    """A job that finished."""

    partition: str
    state: str
    """``success`` or ``failed``."""
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationUpdate(Model):
    """One update of a followed operation."""

    operation: Operation
    jobs: tuple[JobUpdate, ...] = ()
    """Jobs that finished since the last update. May be truncated; ``operation.jobs`` never is."""
    revision: int = 0
    """Pass it as ``after_revision`` to continue from here."""
