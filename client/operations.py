"""Operations, the options of a start, and the calls: start, show, follow, pause, cancel, resolve."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self, TypedDict, Unpack, cast

from distop.client.connection import make_request
from distop.client.model import Model, ModelEnum
from distop.errors import Cancelled, DistopError, InvalidArgument, JobFailed, Kind, error_class
from distop.proto import distop_pb2 as pb
from distop.proto.commands import to_resolve
from distop.proto.json_text import to_json


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


_OF_JOB = re.compile(r"(?:[^;]* jobs failed, [^;]*; )?job (?:(?! failed: ).)* failed: ([A-Z_]+): ")
"""The message of an operation that a job made fail, with the code of its error, if it has one: what the job
says itself may look alike."""


@dataclass(frozen=True, slots=True)
class OperationError(Model):
    """Why an operation aborts or has failed."""

    code: str
    """A stable code of :mod:`distop.errors`."""
    message: str

    @property
    def retryable(self) -> bool:
        """Whether another operation like it may succeed without a change. For a job, its own error decides.

        What comes from outside of distop (a disk, a network) may pass; what a user has aborted does not.
        """
        of_job = _OF_JOB.match(self.message)
        code = of_job[1] if of_job and self.code == JobFailed.code else self.code
        known = error_class(code)
        return code != "COMPLETION_FAILED" and (known is None or known.retryable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause(Model):
    """An operation or a table is paused."""

    by: str = ""
    reason: str = ""
    at: datetime | None = None
    scope: str = ""
    """What was paused, and must be resumed: ``operation`` or ``table``."""


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
    """The slow call in progress, which may hang; empty if there is none. See ``abort``."""
    running_since: datetime | None = None
    since: datetime | None = None
    """The first of these failures."""
    next_at: datetime | None = None
    """The next attempt, unless it is parked."""
    until: datetime | None = None
    """The last attempt is the first one that is to be made at or after this time."""


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
    run: str = ""
    """What its start belongs to: the caller's ``run``, or an id made for the call."""
    started_by: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: OperationError | None = None
    argument: dict[str, Any] = field(default_factory=dict)
    """Its argument for people: long lists and texts are shortened, secrets are hidden."""
    batches: tuple[str, ...] = ()
    """The batches of the table's backlog that it applies, by name."""
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
    """What has happened to it, if the call requested it."""
    events_left_out: int = 0
    """How many of these are left out after the first ones."""
    job_outcomes: str = ""
    """How its jobs have ended, in the order of its plan, with the events: counts and letters, such as
    ``120s1f3.`` (``s``: done, ``t``: done after a failed attempt, ``f``: failed, ``.``: no result). In
    ``50:24s1f`` each letter is that of the worst of 50 jobs."""

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
            It failed. ``details["cause"]`` is the code of the error that made it fail; ``retryable``, whether
            another one may succeed without a change.
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
                hint="remove the cause and decide: "
                + to_resolve(self.name, skippable=self.completion.skippable),
                details={"operation": self.name} | ({"cause": cause.code} if cause else {}),
            )
        if self.state not in (OperationState.FAILED, OperationState.CANCELLED):
            return self
        why = f": {self.error.message}" if self.error and self.error.message else ""
        details = {"operation": self.name} | ({"cause": self.error.code} if self.error else {})
        if self.state is OperationState.CANCELLED:
            raise Cancelled(f"{self.name} was cancelled{why}", details=details)
        failed = OperationFailed(f"{self.name} failed{why}", details=details)
        if self.error is not None and self.error.retryable:
            vars(failed)["retryable"] = True
        raise failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace(Model):
    """An error of user code, or what a job has printed and logged."""

    partition: str
    """Partition of the job; empty: completing the operation raised."""
    attempt: str = ""
    at: datetime | None = None
    error: str = ""
    """Empty: the attempt succeeded, and has written something."""
    trace: str = ""
    """Empty if the error is none of user code."""
    output: str = ""
    """What the attempt printed and logged: the last 64 KiB."""


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


LONGEST_DEADLINE_S = 10 * 365 * 86_400


class RunOptions(TypedDict, total=False):
    """How an operation is run."""

    deadline_s: float | None
    """Seconds from the start after which it is aborted."""
    max_job_attempts: int | None
    """Attempts at a job before it is marked failed. Default: as its type says, 3."""
    job_backoff_s: float | None
    """Back-off in seconds before the second attempt at a job; doubled before each further one, up to 30 s.
    Default: as its type says, 0.1."""
    attempt_timeout_s: float | None
    """Timeout of an attempt in seconds; it then counts as failed."""
    max_failed_partitions: int
    """How many jobs may fail without failing the operation, which then publishes the results of the others;
    -1: any number. One must succeed."""
    retry_for_s: float | None
    """Seconds for which its completion is tried again while it fails, before it is parked; 0: not at all.
    Default: as its type says."""


class StartOptions(RunOptions, total=False):
    """How an operation is started: the keywords of each call that starts one."""

    object: str
    """For types with one operation per object, such as an index."""
    partitions: Sequence[str]
    """A subset, for types whose partitions have names. Empty: all."""
    then: FollowUp | None
    """An operation that its finish starts in the same transaction, if it succeeds."""
    run: str | None
    """The name of a run of the caller's program, such as a scheduler's. The same name repeats a start,
    from any process: the first answer comes again, as ``found``. If that operation has failed or was
    cancelled, another one is started: ``retry_of``."""
    once: bool
    """Not even then: the operation stays the answer to ``run`` whatever its outcome, also for calls that do
    not say so."""
    again: bool
    """If ``run`` was used before, and its operation has succeeded, run it anew: the rows of that operation
    leave the table in the same transaction. What came later stays. For ingests that append or overwrite."""
    queue: bool
    """Wait while incompatible operations of the table run, instead of being refused. Only this call waits:
    the service does not know it, and of several waiting calls any may be the next."""
    timeout_s: float | None
    """Deadline of this call, without the wait for other operations; planning a large source takes the service
    a while."""


def operation_options(**given: Unpack[RunOptions]) -> pb.OperationOptions:
    """The message of these options. Raises :class:`~distop.errors.InvalidArgument`."""
    options = make_request(
        pb.OperationOptions,
        max_job_attempts=given.get("max_job_attempts") or 0,
        max_failed_partitions=given.get("max_failed_partitions", 0),
    )
    durations = {
        "deadline": given.get("deadline_s"),
        "job_backoff": given.get("job_backoff_s"),
        "attempt_timeout": given.get("attempt_timeout_s"),
        "retry_for": given.get("retry_for_s"),
    }
    for name, seconds in durations.items():
        if seconds is None:
            continue
        if not 0 <= seconds <= LONGEST_DEADLINE_S or (not seconds and name != "retry_for"):
            raise InvalidArgument(
                f"{name} must lie between 0 and {LONGEST_DEADLINE_S:,} seconds",
                details={"field": f"options.{name}"},
            )
        getattr(options, name).FromNanoseconds(math.ceil(seconds * 1e9))
    return options


def run_options(options: StartOptions) -> RunOptions:
    """Those of the options that say how it is run."""
    how: Any = {name: value for name, value in options.items() if name in RunOptions.__annotations__}
    return cast(RunOptions, how)


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowUp:
    """An operation that the finish of another one starts, on the same table, in the same transaction.

    It is planned on the result of that finish. If that fails, the first operation still finishes, and its
    facts say why (``followUpError``); otherwise they name it (``followUp``).
    """

    type: str
    argument: Mapping[str, Any] = field(default_factory=dict)
    object: str = ""
    partitions: Sequence[str] = ()
    options: RunOptions = field(default_factory=RunOptions)
    then: FollowUp | None = None
    """The follow-up of the follow-up."""

    def to_proto(self) -> pb.FollowUp:
        """As a message. Raises :class:`~distop.errors.InvalidArgument`."""
        return make_request(
            pb.FollowUp,
            type=self.type,
            object=self.object,
            argument_json=to_json(self.argument, "then.argument"),
            partitions=self.partitions,
            options=operation_options(**self.options),
            then=self.then.to_proto() if self.then is not None else None,
        )
