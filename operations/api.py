"""The interface of an operation type."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, ClassVar, Generic, get_args, get_origin

import msgspec

from distop.errors import InvalidArgument
from distop.metastore.records.operation import (
    Effect,
    ErrorRecord,
    JobRecord,
    OperationArg,
    OperationOptions,
    Retry,
    StepRecord,
    WatermarkMove,
)
from distop.metastore.records.table import Head, IndexRecord, TableRecord
from distop.operations.arguments import invalid, parse
from distop.operations.job import JobContext
from distop.operations.plans import ARGUMENT, INPUTS, A, recorded_argument
from distop.proto.json_text import LINKS, MAX_LINK_NAME, MAX_LINK_URL, MAX_LINKS, links_of, to_json

MAX_FACTS_BYTES = 4096
"""Limit of the facts of a type, as JSON."""
MAX_DESCRIPTION = 200
"""Characters of a job's input that describe it."""


class Role(IntEnum):
    """What a caller may do on a table. Each may do what those before it may."""

    READER = 1
    """May look at everything."""
    OPERATOR = 2
    """Start, cancel, pause, resume, enqueue, approve, schedule."""
    WRITER = 3
    """Create and alter tables, move watermarks, write from a program, delete rows."""
    ADMIN = 4
    """Drop, resolve, drain, repair, grant."""


@dataclass(frozen=True, kw_only=True)
class Staging:
    """The types that are started for what a type has written to a branch; the argument names the branch."""

    publish: str
    """The type that publishes the branch. Its argument has three more fields: ``snapshot``, the only one to
    publish; ``alone``, true: the branch may have no other; ``on_conflict``, ``rebase``: what others have
    written stays."""
    drop: str
    """The type that removes the branch."""


class Scope(Enum):
    """How many operations of one type may run on one table."""

    SINGLE = "single"
    """One at a time."""
    PER_OBJECT = "per_object"
    """One per object: an index, a query."""
    EITHER = "either"
    """One at a time without an object; and at the same time one per object, if callers name them."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest(Generic[A]):
    """The input of ``plan``. The operation starts on this state of its table; put everything that must still
    hold at the end into :attr:`Plan.watermarks`, which the finishing transaction compares."""

    table: TableRecord
    head: Head | None
    watermarks: Mapping[str, Mapping[str, str]]
    """source -> partition -> value. Looking up a partition reads a little; iterating a source reads the
    source, and iterating all of it reads everything, which may be a million entries."""
    argument: A
    """Of the class that the type declares, see :class:`DistributedOperation`; if it declares none, the JSON
    object that the caller sent, unchecked."""
    partitions: Sequence[str] | None = None
    """The subset of partitions that the caller requested, if any."""
    options: OperationOptions = field(default_factory=OperationOptions)
    active: Sequence[OperationArg] = ()
    """Operations of the table that still have keys, for types with ``sees_active``: running, or ended and not
    yet swept."""
    object: str = ""
    """The object of the operation, for a type that runs once per object."""
    index: IndexRecord | None = None
    """The published state of that object, for types with ``builds_index``; ``None`` if it has none yet."""


@dataclass(frozen=True)
class RowsOfJobs:
    """The rows that the jobs of a plan write to the table; see :meth:`Plan.rows`."""

    schema: Any
    """A ``pyarrow.Schema``; ``None`` once the plan is recorded."""
    mode: str = "append"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be done: fixed when the operation starts, and not planned again (a *frozen* plan).

    The jobs of a *dynamic* plan are not fixed: they are the partitions of a DataFrame, however many there are
    when it is computed. See :meth:`DistributedOperation.frame`.
    """

    argument: Any = None
    """What every job works from, at most about 1 MiB as JSON: an argument of the type's class, or a JSON
    object of the type's own. ``None``: the argument of the request."""
    partition_count: int = 0
    """Number of jobs, when they are named "0", "1", ... ."""
    partitions: list[str] | None = None
    """Names of the jobs, when they have names of their own."""
    inputs: Sequence[Any] | Mapping[str, Any] | None = None
    """JSON for each job, as :meth:`of` takes it."""
    output: RowsOfJobs | None = None
    """The rows that its jobs write to the table, as :meth:`rows` takes them."""
    watermarks: dict[str, dict[str, WatermarkMove]] = field(default_factory=dict)
    dynamic: bool = False
    layout: int = 1
    """The layout of its record, see :class:`OperationArg`: 3 if an older version would ignore a part of the
    argument."""
    uuid: str = ""
    """Names the operation's staging folders, if they already exist. Empty: a new name is made."""
    series: str = ""
    """A name for operations that form an endless series, such as batches of a stream. The history keeps one
    line for a series: its last operation, with how many there were."""

    def __post_init__(self) -> None:
        if self.dynamic and (self.partition_count or self.partitions is not None or self.inputs is not None):
            raise ValueError("the jobs of a dynamic plan are not known when it is made")
        if self.partitions is not None and len(set(self.partitions)) != len(self.partitions):
            raise InvalidArgument("a partition is named twice", details={"field": "partitions"})
        if self.partitions is not None and self.partition_count not in (0, len(self.partitions)):
            raise ValueError("partition_count contradicts partitions")

    @classmethod
    def of(cls, inputs: Iterable[Any] | Mapping[str, Any], **more: Any) -> Plan:
        """A plan with a job for each input, which it finds in ``job.input``.

        Parameters
        ----------
        inputs:
            JSON values: the jobs are named "0", "1", ... . Or name of a job -> JSON value: callers may then
            select some of the jobs.
        more:
            Other fields of the plan, such as ``watermarks``.
        """
        return cls(inputs=inputs if isinstance(inputs, Mapping) else list(inputs), **more)

    @classmethod
    def rows(
        cls, inputs: Iterable[Any] | Mapping[str, Any], schema: Any, *, mode: str = "append", **more: Any
    ) -> Plan:
        """As :meth:`of`, for jobs that write rows to the table with ``job.writer()``.

        The steps that publish the rows, and what has to be swept, are derived. The plan is refused
        (``InvalidArgument``, ``PreconditionFailed``) if a table of this format cannot have the columns, or
        does not allow the mode.

        Parameters
        ----------
        schema:
            ``pyarrow.Schema`` of the rows. If the table has columns, it keeps them, and rows must match them.
        mode:
            ``append``, ``overwrite``, ``overwrite_partitions``. Overwriting is refused at the end if another
            writer has changed an Iceberg table meanwhile.
        """
        return cls.of(inputs, output=RowsOfJobs(schema, mode), **more)


@dataclass(frozen=True, kw_only=True)
class OperationView(Generic[A]):
    """A sealed operation, as completion sees it: no job can change any more."""

    arg: OperationArg
    jobs: Mapping[str, JobRecord]
    """partition -> its one result."""
    token: str
    """The same in every attempt at completing this operation: use it to make your own side effects
    idempotent."""
    error: ErrorRecord | None = None
    """Why it failed, with the code ``CANCELLED`` if it was cancelled; ``None`` if it succeeds."""
    argument_type: type[A] | None = None
    """The class of its type's argument."""

    @property
    def argument(self) -> A:
        """The argument of its plan, as the type declares it."""
        return recorded_argument(self.arg, self.argument_type)

    @property
    def attempts(self) -> frozenset[str]:
        """The attempts that count: one for each successful job; none if the operation has failed."""
        if self.error is not None:
            return frozenset()
        return frozenset(job.attempt for job in self.jobs.values() if job.state == "success")


class DistributedOperation(ABC, Generic[A]):
    """One type of operation. Instances are stateless: one object serves all operations of the type.

    ``DistributedOperation[MyArgument]`` declares the class of its argument, a dataclass or a
    ``msgspec.Struct``. What callers send is checked against it before anything else is called, and refused
    with the field's name; ``__post_init__`` may check more, and raise ``ValueError`` or ``InvalidArgument``.

    Its methods, in the order of their calls::

        plan                    before the start, in a process next to a coordinator
        run_job                 for each job, in a Spark task or a thread of the executor
          cleanup_attempt       when an attempt at a job does not count, in the same process
        commit_steps            when all jobs have results, in a process next to a coordinator
        before_publish          the same; the transaction that publishes comes right after it
        after_failure           in place of these two, if the operation failed or was cancelled
          facts, links          right after before_publish or after_failure, in the same place
        cleanup                 after the end, whatever the outcome

    All may be called more than once. After a crash the next leader or runner repeats the call that was
    interrupted; a call whose outcome is recorded in etcd is not repeated.
    """

    argument_type: ClassVar[Any] = None
    """The class of its argument; ``None``: whatever JSON object callers send. Found in the type parameter."""

    type: ClassVar[str]
    """Its name for callers: a letter, then letters, digits, '-' or '_'."""
    scope: ClassVar[Scope] = Scope.SINGLE
    effect: ClassVar[Effect] = Effect.REPLACES
    """Its effect on the table. Types with compatible effects may run concurrently; see
    :func:`~distop.metastore.records.operation.may_run_together`."""
    role: ClassVar[Role] = Role.OPERATOR
    """The role that a caller needs on the table to have an operation of the type started, at least."""
    compatible_types: ClassVar[frozenset[str]] = frozenset()
    """Further types that may run on the same table concurrently (each must name the other)."""
    resumable: ClassVar[bool] = False
    """Whether the next attempt gets a job's checkpoint."""
    exclusive: ClassVar[bool] = False
    """Whether a job must be claimed before it runs, so that two attempts never both own it."""
    small_jobs: ClassVar[bool] = False
    """Whether a job takes less than the milliseconds that a task costs Spark: many then share a task."""
    stages_files: ClassVar[bool] = False
    """Whether jobs leave files under the operation's staging folders, to be swept after the end."""
    can_replace: ClassVar[bool] = False
    """Whether its argument has the field ``replaces``: an earlier operation, whose rows it takes out."""
    staging: ClassVar[Staging | None] = None
    """Given if its argument has the field ``branch``, for rows that are published with that branch. So
    batches can be approved before they are published."""
    builds_index: ClassVar[bool] = False
    """Whether its objects are indexes of the table, and its files belong to them."""
    sees_active: ClassVar[bool] = False
    """Whether ``plan`` gets the list of the table's other operations."""
    hosted: ClassVar[bool] = False
    """Whether only the program that starts an operation can run it; executors ignore it."""
    preloads: ClassVar[tuple[str, ...]] = ()
    """Names of modules that its methods import when they are called, and that load slowly. A coordinator
    loads them once, before its first call of the type."""
    only_computes: ClassVar[bool] = False
    """Whether all that a coordinator calls only computes, in far less than a millisecond. It is called in the
    coordinator's event loop then: in a process of its own it would take longer, but could be ended."""
    retry: ClassVar[Retry] = Retry()
    """How its jobs, and the completion of an operation, are tried again while they fail, unless a start says
    otherwise. After that a job has failed, a completion is parked, and a failing abort is left out."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, given = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, DistributedOperation):
                cls.argument_type = given[0] if isinstance(given[0], type) else None

    @abstractmethod
    def plan(self, request: PlanRequest[A]) -> Plan:
        """Check the argument and decide what to do.

        Called before an operation starts, in a process next to a coordinator, which is ended at the deadline
        of the call. It may run more than once for one operation: again whenever the table's head, watermarks
        or index have changed before the start, see :meth:`plan_holds`. After a crash nothing has started, and
        the caller's repeat plans anew. Has no side effects.

        Raises
        ------
        InvalidArgument
            With ``details={"field": ...}``, so that the caller knows which field to correct.
        """

    def plan_holds(self, plan: Plan, made_on: PlanRequest[A], request: PlanRequest[A]) -> bool:
        """Whether a plan may be started although head, watermarks or index have changed since it was made.

        By default not: the plan is made again, for which a table that changes all the time may leave a slow
        plan no time. Return true if the result would be the same as if the table had changed right after the
        start. The table itself is the same in both requests. Runs where ``plan`` does; may read a file or
        two.
        """
        return False

    def preview(self, request: PlanRequest[A]) -> Mapping[str, Any]:
        """What an operation would do, for callers who preview it: JSON of moderate size.

        Runs where ``plan`` does, and raises the same errors.
        """
        plan = self.plan(request)
        named = plan.partitions if plan.inputs is None else plan.inputs
        return {} if plan.dynamic else {"jobs": plan.partition_count if named is None else len(named)}

    def object_of(self, argument: Mapping[str, Any]) -> str:
        """The object of an argument, for callers who name none; empty: they must.

        For types with :attr:`Scope.PER_OBJECT`. The argument is as the caller sent it, unchecked.
        """
        return ""

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
        """One argument that combines two, in this order; ``None`` if that is impossible.

        For tables that apply several queued batches by one operation. Both are as their callers sent them.
        """
        return None

    @abstractmethod
    def run_job(self, job: JobContext[A]) -> Mapping[str, Any] | Iterator[Any] | None:
        """Do one job; return a small JSON result (counts, location of its manifest).

        Of a plan with rows (:meth:`Plan.rows`) it may be a generator of ``pyarrow.RecordBatch`` instead: they
        are written to the table.

        Called for each attempt at a job, in a Spark task or a thread of an executor. Once an attempt is
        marked in etcd the job is not run again. Until then it is run again after a crash, perhaps while the
        attempt that is considered dead still runs, unless the type is ``exclusive`` or ``resumable``.

        Raising fails the attempt. :class:`~distop.errors.InvalidArgument` and
        :class:`~distop.errors.JobFailed` are permanent, everything else is retried, see :attr:`retry`.
        """

    def frame(self, session: Any, operation: OperationArg) -> Any:
        """Of a dynamic plan: the DataFrame whose partitions are the jobs. Called in the Spark driver.

        Each job then finds the rows of its partition in ``job.rows()``. It may be computed more than once,
        and be partitioned differently each time: one computation counts as a whole.

        Parameters
        ----------
        session:
            The ``SparkSession``; ``None`` in an executor without Spark, which accepts a list of iterables of
            Arrow record batches instead of a DataFrame.

        Raises
        ------
        InvalidArgument, JobFailed
            There is no such DataFrame. The operation fails.
        """
        raise NotImplementedError(f"{self.type} makes no DataFrame")

    def frame_limit_s(self, operation: OperationArg) -> float | None:
        """Timeout of one computation of the DataFrame in seconds, after which the operation fails; ``None``:
        no limit."""
        return None

    def cleanup_attempt(self, job: JobContext[A]) -> None:
        """Remove what this attempt has made elsewhere: files that it has staged are removed anyway.

        Called at most once for an attempt that failed, lost, or was cancelled, in the process that made it,
        right after :meth:`run_job`; not after that process was killed. :meth:`cleanup` removes the rest.
        """

    def describe_job(self, operation: OperationArg, partition: str) -> str:
        """A description of the job for users, such as the file that it reads. Each job has a different
        description. By default its name, and its input if that is text."""
        inputs = operation.argument.get(INPUTS)
        if not isinstance(inputs, list) or not partition.isdecimal() or int(partition) >= len(inputs):
            return partition
        text = inputs[int(partition)]
        return f"{partition}: {text[:MAX_DESCRIPTION]}" if isinstance(text, str) else partition

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """The steps that publish it, in order. distop adds watermarks and history.

        Called by the leader of the table once all jobs have their results, in a process next to a
        coordinator; again after a crash. Only computes: for side effects there is :meth:`before_publish`.
        """
        return ()

    def before_publish(self, operation: OperationView[A]) -> None:
        """Side effects of your own once every job has its result, before anything is published.

        Called by the leader of the table, in a process next to a coordinator, which is ended after its
        ``--call-timeout``; that counts as a failed attempt. All jobs have succeeded then, unless the options
        let some fail: those have ``state == "failed"``. It runs at least once, and again after a crash before
        the publishing transaction, so make it idempotent by ``operation.token``. Raising delays the
        completion, which is retried, see :attr:`retry`; a refusal (``Conflict``, ``InvalidArgument``,
        ``PreconditionFailed``) fails the operation.
        """

    def after_failure(self, operation: OperationView[A]) -> None:
        """Side effects of your own when the operation has failed or was cancelled: ``operation.error`` says
        why. Nothing of it is published.

        Called before the operation's keys are removed, at least once, where :meth:`before_publish` is, and
        with the same token. Raising delays the end; once :attr:`retry` is over it is skipped, and the
        operation's facts say so (``abortError``): its table must go on.
        """

    def facts(self, operation: OperationView[A]) -> Mapping[str, Any]:
        """What page, command and history show of an operation that is over, such as counts or a verdict:
        name -> JSON, of 4 KiB at most. A name that distop uses, as ``rows``, is replaced by its own fact.

        Called right after :meth:`before_publish`, or :meth:`after_failure`, in such a process; again after a
        crash. Only computes. If it raises, the operation ends all the same, without facts of the type, and
        ``factsError`` says why.
        """
        return {}

    def links(self, operation: OperationView[A]) -> Mapping[str, str]:
        """Links to pages about an operation that is over, shown with its facts: name -> URL.

        Ten at most, names of up to 64 characters, ``http`` or ``https`` URLs of up to 1,000 ASCII characters
        and without credentials. Called with :meth:`facts`, and wrong links are treated as an error of that.
        """
        return {}

    def cleanup(self, operation: OperationView[A]) -> None:
        """Remove what attempts have left outside of their staging folders, except the attempts that count
        (``operation.attempts``): :meth:`cleanup_attempt` is not called in a killed process.

        Called when the operation is over, whatever its outcome, and no runner holds it any more: a killed
        runner's key expires with its lease. At least once, where :meth:`before_publish` runs. While it
        raises it is called again, with the pauses of :attr:`retry` and without an end: nothing is left behind
        when storage was away, however long. The table goes on meanwhile, and the doctor names the operation.
        """


def overrides(kind: DistributedOperation, method: str) -> bool:
    """Whether a type overrides the default method."""
    return getattr(type(kind), method) is not getattr(DistributedOperation, method)


def reports_facts(kind: DistributedOperation) -> bool:
    """Whether a type has facts or links of its own."""
    return overrides(kind, "facts") or overrides(kind, "links")


def facts_of(kind: DistributedOperation, operation: OperationView) -> dict[str, Any]:
    """The facts and links of an operation's type, for its history.

    Raises what the type raises, and :class:`~distop.errors.InvalidArgument` if they may not be recorded.
    """
    facts, links = dict(kind.facts(operation)), dict(kind.links(operation))
    size = len(to_json(facts, "facts").encode())
    if size > MAX_FACTS_BYTES:
        raise invalid("facts", f"the facts of {kind.type} take {size:,} bytes of {MAX_FACTS_BYTES:,}")
    if not links:
        return facts
    if links_of({LINKS: links}) != links:
        raise invalid(
            LINKS,
            f"a link of {kind.type} is not one: {links!r:.200}",
            f"at most {MAX_LINKS} names of up to {MAX_LINK_NAME} characters, each with an http or https URL "
            f"of up to {MAX_LINK_URL:,}",
        )
    return {**facts, LINKS: links}


def stages_files(kind: DistributedOperation, plan: Plan) -> bool:
    """Whether the jobs of a plan leave files under the operation's staging folders."""
    return kind.stages_files or plan.output is not None


def is_swept(kind: DistributedOperation, plan: Plan) -> bool:
    """Whether attempts at the jobs of a plan may leave something to remove after the end."""
    return stages_files(kind, plan) or overrides(kind, "cleanup")


def checked(kind: DistributedOperation, request: PlanRequest) -> PlanRequest:
    """A request with the caller's argument as the type declares it; raises
    :class:`~distop.errors.InvalidArgument`, which names the field."""
    if kind.argument_type is None or isinstance(request.argument, kind.argument_type):
        return request
    return replace(request, argument=parse(request.argument, kind.argument_type, kind.type))


def make_plan(kind: DistributedOperation, request: PlanRequest) -> Plan:
    """The plan of a type for a request with the caller's argument: checked before, and ready to be recorded.

    Its jobs and its argument are as :class:`OperationArg` has them. The rows of its jobs are for
    :func:`distop.lake.rows.with_rows`.
    """
    request = checked(kind, request)
    plan = kind.plan(request)
    argument = argument_record(kind, request.argument if plan.argument is None else plan.argument)
    if plan.inputs is None:
        return replace(plan, argument=argument)
    inputs = msgspec.to_builtins(plan.inputs)
    if request.partitions is not None:
        inputs = _selected(kind, inputs, request.partitions)
    names = list(inputs) if isinstance(inputs, dict) else None
    return replace(
        plan,
        argument={**argument, INPUTS: inputs},
        inputs=None,
        partitions=names,
        partition_count=len(inputs),
    )


def argument_record(kind: DistributedOperation, argument: Any) -> dict[str, Any]:
    """An argument as a plan records it, with its defaults: a new version of its type may have others."""
    if kind.argument_type is None or not isinstance(argument, kind.argument_type):
        return dict(argument)
    if not dataclasses.is_dataclass(argument):
        return {ARGUMENT: msgspec.to_builtins(argument)}
    # msgspec leaves the defaults of a dataclass out.
    fields = (field.name for field in dataclasses.fields(argument))
    return {ARGUMENT: {name: msgspec.to_builtins(getattr(argument, name)) for name in fields}}


def extended(argument: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an argument, and what jobs need besides.

    Raises :class:`~distop.errors.InvalidArgument` for a field of the argument with the name of one.
    """
    if taken := sorted(recorded.keys() & argument.keys()):
        raise invalid(taken[0], f"an argument of such a plan has no {taken[0]!r}: declare a class for it")
    return {**argument, **recorded}


def _selected(kind: DistributedOperation, inputs: Any, names: Sequence[str]) -> dict[str, Any]:
    """The inputs of the jobs that a caller has selected."""
    if not isinstance(inputs, dict):
        raise invalid("partitions", f"the jobs of {kind.type} have no names to select them by")
    if unknown := [name for name in names if name not in inputs]:
        raise invalid("partitions", f"{kind.type} has no job {unknown[0]!r} here")
    return {name: inputs[name] for name in names}
