"""Operations, the options of a start, and the calls: start, show, follow, pause, cancel, resolve."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from distop.client.calls import PAGE_SIZE, Calls, models, new_request_id
from distop.client.connection import Connection, make_request, resumed
from distop.client.model import Model, ModelEnum
from distop.errors import (
    Cancelled,
    DeadlineExceeded,
    DistopError,
    IncompatibleOperation,
    InvalidArgument,
    Kind,
    OperationNotFound,
    RolledBack,
)
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json, to_json


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


LONGEST_DEADLINE_S = 10 * 365 * 86_400


def operation_options(
    *,
    deadline_s: float | None = None,
    max_job_attempts: int | None = None,
    job_backoff_s: float | None = None,
    attempt_timeout_s: float | None = None,
    max_failed_partitions: int = 0,
    retry_for_s: float | None = None,
) -> pb.OperationOptions:
    """How to run an operation; see :meth:`~distop.client.aio.AsyncClient.start`.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    options = make_request(
        pb.OperationOptions,
        max_job_attempts=max_job_attempts or 0,
        max_failed_partitions=max_failed_partitions,
    )
    durations = {
        "deadline": deadline_s,
        "job_backoff": job_backoff_s,
        "attempt_timeout": attempt_timeout_s,
        "retry_for": retry_for_s,
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
    options: Mapping[str, Any] = field(default_factory=dict)
    """As the parameters of :func:`operation_options`: ``{"deadline_s": 600}``."""
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


HEARTBEAT_S = 2.0
"""Interval of a coordinator's heartbeats; 2.5 intervals without one count as silence."""


async def follow(
    connection: Connection,
    name: str,
    *,
    after_revision: int = 0,
    states_only: bool = False,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncGenerator[OperationUpdate, None]:
    """The changes of an operation, each once, up to its end.

    Raises
    ------
    OperationNotFound
        There is no such operation.
    Unavailable
        See :func:`resumed`.
    """
    seen = after_revision or -1

    def request() -> pb.WatchOperationRequest:
        wanted = pb.WatchOperationRequest(name=name, after_revision=max(seen, 0), states_only=states_only)
        wanted.heartbeat.FromNanoseconds(int(heartbeat_s * 1e9))
        return wanted

    stream = resumed(connection, "WatchOperation", request, silence_s=2.5 * heartbeat_s)
    async with aclosing(stream) as messages:
        async for message in messages:
            update = OperationUpdate.from_proto(message)
            # A heartbeat repeats the last update; the end is shown at any revision.
            if update.revision > seen or update.operation.done:
                seen = max(seen, update.revision)
                yield update
            if update.operation.done:
                return


_SOON_NS = 1_000_000_000
"""How long a call waits for the end of an operation, before a stream follows it."""


class OperationCalls(Calls):
    """The part of :class:`~distop.client.aio.AsyncClient` for operations."""

    async def start(
        self,
        table: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        object: str = "",
        partitions: Sequence[str] = (),
        deadline_s: float | None = None,
        max_job_attempts: int | None = None,
        job_backoff_s: float | None = None,
        attempt_timeout_s: float | None = None,
        max_failed_partitions: int = 0,
        retry_for_s: float | None = None,
        then: FollowUp | None = None,
        request_id: str | None = None,
        once: bool = False,
        again: bool = False,
        queue: bool = False,
        timeout_s: float | None = None,
    ) -> Operation:
        """Start an operation; return it.

        Parameters
        ----------
        argument:
            JSON for the type. Integers of up to 64 bits are exact.
        object:
            For types with one operation per object, such as an index.
        partitions:
            A subset, for types whose partitions have names. Empty: all.
        deadline_s:
            Seconds from the start after which it is aborted.
        max_job_attempts:
            Attempts at a job before it is marked failed.
        job_backoff_s:
            Back-off in seconds before the second attempt at a job; doubled before each further one, up to 30
            s.
        attempt_timeout_s:
            Timeout of an attempt in seconds; it then counts as failed.
        max_failed_partitions:
            How many jobs may fail without failing the operation, which then publishes the results of the
            others; -1: any number. One must succeed.
        retry_for_s:
            Seconds for which its completion is tried again while it fails, before it is parked; 0: not at
            all. Default: as its type says.
        then:
            An operation that its finish starts in the same transaction, if it succeeds.
        request_id:
            Pass the same id to repeat a start from another process: the first answer comes again, as
            ``found``. If that operation has failed or was cancelled, another one is started: ``retry_of``.
        once:
            Not even then: the operation stays the answer to ``request_id`` whatever its outcome, also for
            calls that do not say so.
        again:
            If ``request_id`` was used before, and its operation has succeeded, run it anew: the rows of that
            operation leave the table in the same transaction. What came later stays. For ingests that append
            or overwrite.
        queue:
            Wait while incompatible operations of the table run, instead of being refused. Only this call
            waits: the service does not know it, and of several waiting calls any may be the next.
        timeout_s:
            Deadline of this call, without the wait for other operations; planning a large source takes the
            service a while.

        Raises
        ------
        OperationParked
            With ``queue``: the incompatible operation waits for a decision.
        RolledBack
            The rows of the request's operation were rolled back; with ``again`` it is run anew.
        """
        if isinstance(partitions, str):
            raise InvalidArgument("partitions is one string, not several", details={"field": "partitions"})
        options = operation_options(
            deadline_s=deadline_s,
            max_job_attempts=max_job_attempts,
            job_backoff_s=job_backoff_s,
            attempt_timeout_s=attempt_timeout_s,
            max_failed_partitions=max_failed_partitions,
            retry_for_s=retry_for_s,
        )
        call_id = new_request_id()
        request = make_request(
            pb.StartOperationRequest,
            table=table,
            type=type,
            object=object,
            argument_json=to_json(argument or {}, "argument"),
            partitions=partitions,
            options=options,
            request_id=request_id or call_id,
            call_id="" if once else call_id,
            started_by=self.identity,
            then=then.to_proto() if then is not None else None,
        )
        while True:
            try:
                reply = await self._connection.call(
                    lambda service: service.StartOperation,
                    request,
                    timeout_s=timeout_s,
                    pace=self._connection.starts,
                )
                started = Operation.from_proto(reply)
                # The service compares the name: a late copy of this call runs nothing anew.
                if not (again and started.found and started.state is OperationState.SUCCEEDED):
                    return started
                again, request.again_of = False, started.name
            except RolledBack as error:
                if not again or "operation" not in error.details:
                    raise
                again, request.again_of = False, error.details["operation"]
            except IncompatibleOperation as error:
                if not queue or "operation" not in error.details:
                    raise
                with suppress(OperationNotFound):  # its history is gone: it has ended
                    await self.wait(error.details["operation"])

    async def preview(
        self,
        table: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        object: str = "",
        partitions: Sequence[str] = (),
        max_failed_partitions: int = 0,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The preview of :meth:`start`, made by the type; raises the same errors, and starts nothing."""
        request = make_request(
            pb.StartOperationRequest,
            table=table,
            type=type,
            object=object,
            argument_json=to_json(argument or {}, "argument"),
            partitions=partitions,
            options=operation_options(max_failed_partitions=max_failed_partitions),
        )
        reply = await self._connection.call(
            lambda service: service.PreviewOperation, request, timeout_s=timeout_s
        )
        return from_json(reply.preview_json, "preview")

    async def get(self, name: str, *, events: bool = False) -> Operation:
        """An operation; finished ones too, while their history is stored. ``events``: with what has happened
        to it."""
        return Operation.from_proto(await self._call("GetOperation", name=name, events=events))

    async def traces(self, name: str) -> Sequence[Trace]:
        """Stack traces of user code in it, the earliest first; the last ones are stored."""
        reply = await self._call("ListTraces", of="GetOperation", name=name)
        return [Trace.from_proto(trace) for trace in reply.traces]

    def list(
        self,
        table: str = "",
        *,
        type: str = "",
        states: Sequence[OperationState] = (),
        since: datetime | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncGenerator[Operation, None]:
        """Running and finished operations, of one table or of all, newest first within a table.

        Pages are fetched on demand, all at one revision.

        Parameters
        ----------
        since:
            Only those that run, or have ended since. Those of all tables are then sorted by time, newest
            first.
        """
        found = self._listed(
            "ListOperations",
            "operations",
            table=table,
            type=type,
            states=[state.name for state in states if state is not OperationState.UNKNOWN],
            since=since,
            page_size=page_size,
        )
        return models(found, Operation)

    async def watch(self, name: str, *, after_revision: int = 0) -> AsyncGenerator[OperationUpdate, None]:
        """Follow an operation: its present state, then the newest one after each change, up to its end.

        Resumes after broken streams and lost coordinators, and repeats no change. Gives up when
        for ``timeout_s`` after a failure no coordinator has sent a heartbeat.

        Parameters
        ----------
        after_revision:
            Begin with the changes after this revision: the ``revision`` of an earlier update.
        """
        make_request(pb.WatchOperationRequest, name=name, after_revision=after_revision)
        async with aclosing(follow(self._connection, name, after_revision=after_revision)) as updates:
            async for update in updates:
                yield update

    async def wait(self, name: str, timeout_s: float | None = None) -> Operation:
        """Wait for the end of an operation; :meth:`Operation.raise_for_outcome` raises for a failure.

        Parameters
        ----------
        timeout_s:
            Seconds; ``None`` waits as long as the service answers. The operation goes on afterwards.

        Raises
        ------
        OperationParked
            It needs a decision to end: see :meth:`resolve`.
        """
        last = "unknown"
        wanted = make_request(pb.GetOperationRequest, name=name)
        wanted.wait.FromNanoseconds(_SOON_NS)
        try:
            async with asyncio.timeout(timeout_s):
                # Most end soon, and a call costs half as much as a stream.
                reply = await self._connection.call(lambda service: service.GetOperation, wanted)
                operation = Operation.from_proto(reply)
                if operation.done:
                    return operation
                last = operation.state.value
                async with aclosing(follow(self._connection, wanted.name, states_only=True)) as updates:
                    async for update in updates:
                        last = update.operation.state.value
                        if update.operation.parked:
                            update.operation.raise_for_outcome()
                        if update.operation.done:
                            return update.operation
        except TimeoutError:
            raise DeadlineExceeded(
                f"{name} has not ended after {timeout_s:g} s, it is {last}",
                hint="wait longer, or cancel it",
                details={"operation": name},
            ) from None
        raise AssertionError("unreachable: a watch ends with the end of its operation")

    async def cancel(self, name: str, reason: str = "") -> Operation:
        """Request the cancellation of an operation; its state shows when it has ended."""
        return Operation.from_proto(await self._control("CancelOperation", name=name, reason=reason))

    async def resolve(
        self, name: str, action: Literal["retry", "skip", "abort"], reason: str = ""
    ) -> Operation:
        """Decide about an operation whose completion fails, whether it is parked or still tried again.

        Parameters
        ----------
        action:
            ``retry``: try again at once, and count anew. ``skip``: skip the failing commit step. ``abort``:
            abort the operation, and undo its steps where possible.

        Raises
        ------
        PreconditionFailed
            Its completion has not failed (``NOT_PARKED``), or cannot be skipped (``NOT_SKIPPABLE``).
        """
        reply = await self._once("ResolveOperation", name=name, action=action, reason=reason)
        return Operation.from_proto(reply)

    async def pause(self, name: str, reason: str = "") -> Operation:
        """Pause an operation: no new jobs, nothing published.

        Finished work stays, and its deadline keeps counting. Idempotent; ``pause`` of the answer says who
        paused it.
        """
        return Operation.from_proto(await self._control("PauseOperation", name=name, reason=reason))

    async def resume(self, name: str, reason: str = "") -> Operation:
        """Resume an operation. Its table may still be paused: see ``pause`` of the answer."""
        return Operation.from_proto(await self._control("ResumeOperation", name=name, reason=reason))
