"""The interface of an operation type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from distop.errors import InvalidArgument
from distop.metastore.records.effects import Effect
from distop.metastore.records.operation import ErrorRecord, JobRecord, OperationArg, StepRecord, WatermarkMove
from distop.metastore.records.options import OperationOptions
from distop.metastore.records.table import Head, IndexRecord, TableRecord
from distop.operations.job import JobContext


class Scope(Enum):
    """How many operations of one type may run on one table."""

    SINGLE = "single"
    """One at a time."""
    PER_OBJECT = "per_object"
    """One per object: an index, a query."""
    EITHER = "either"
    """One at a time without an object; and at the same time one per object, if callers name them."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What ``plan`` may look at. The operation starts on this state of its table; whatever must still hold at
    the end belongs into :attr:`Plan.watermarks`, which is compared in the finishing transaction."""

    table: TableRecord
    head: Head | None
    watermarks: Mapping[str, Mapping[str, str]]
    """source -> partition -> value. Asking for a partition reads a little; going through a source reads the
    source, and going through all of it reads everything, which may be a million entries."""
    argument: Mapping[str, Any]
    """As the caller sent it; unchecked."""
    partitions: Sequence[str] | None = None
    """The subset of partitions the caller asked for, if any."""
    options: OperationOptions = field(default_factory=OperationOptions)
    active: Sequence[OperationArg] = ()
    """Operations of the table that still have keys, for types with ``sees_active``: running, or ended and not
    swept yet."""
    object: str = ""
    """What the operation is about, of a type that runs once per object."""
    index: IndexRecord | None = None
    """The published state of that object, for types with ``builds_index``; ``None`` if it has none yet."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be done: fixed when the operation starts, and never planned again (a *frozen* plan).

    Of a *dynamic* plan the jobs are not fixed: they are the partitions of a DataFrame, however many there are
    when it is computed. See :meth:`DistributedOperation.frame`.
    """

    argument: dict[str, Any]
    """JSON that every job can work from. Checked, completed, at most about 1 MiB."""
    partition_count: int = 0
    """Number of jobs, when they are named "0", "1", ... ."""
    partitions: list[str] | None = None
    """Names of the jobs, when they have names of their own."""
    watermarks: dict[str, dict[str, WatermarkMove]] = field(default_factory=dict)
    dynamic: bool = False
    uuid: str = ""
    """Names the operation's staging folders, if they are older than it. Empty: a new one is made."""
    series: str = ""
    """What operations have in common that go on with each other without end, such as batches of a stream. The
    history keeps one line of a series: its last operation, with how many there were."""

    def __post_init__(self) -> None:
        if self.dynamic and (self.partition_count or self.partitions is not None):
            raise ValueError("the jobs of a dynamic plan are not known when it is made")
        if self.partitions is not None and len(set(self.partitions)) != len(self.partitions):
            raise InvalidArgument("a partition is named twice", details={"field": "partitions"})
        if self.partitions is not None and self.partition_count not in (0, len(self.partitions)):
            raise ValueError("partition_count contradicts partitions")


@dataclass(frozen=True, kw_only=True)
class OperationView:
    """A sealed operation, as completion sees it: no job can change any more."""

    arg: OperationArg
    jobs: Mapping[str, JobRecord]
    """partition -> its one result."""
    token: str
    """The same in every attempt at completing this operation: make your own side effects idempotent by it."""
    error: ErrorRecord | None = None
    """Why it failed, with the code ``CANCELLED`` if somebody has cancelled it; ``None`` if it succeeds."""

    @property
    def attempts(self) -> frozenset[str]:
        """The attempts that count: one for each job that has succeeded; none if the operation has failed."""
        if self.error is not None:
            return frozenset()
        return frozenset(job.attempt for job in self.jobs.values() if job.state == "success")


class DistributedOperation(ABC):
    """One type of operation. Instances are stateless: one object serves all operations of the type."""

    type: ClassVar[str]
    """Its name, as callers write it: a letter, then letters, digits, '-' or '_'."""
    scope: ClassVar[Scope] = Scope.SINGLE
    effect: ClassVar[Effect] = Effect.REPLACES
    """What it does to the table. Types with effects that do not harm each other may run at the same time; see
    :func:`~distop.metastore.records.effects.may_run_together`."""
    compatible_types: ClassVar[frozenset[str]] = frozenset()
    """Further types that may run on the same table at the same time (each must name the other)."""
    can_fail: ClassVar[bool] = True
    """False: a job that raises is tried again for ever (with back-off) instead of failing the operation."""
    resumable: ClassVar[bool] = False
    """Whether a job's checkpoint is offered to the next attempt."""
    exclusive: ClassVar[bool] = False
    """Whether a job must be claimed before it runs, so that never two attempts believe they own it."""
    small_jobs: ClassVar[bool] = False
    """Whether a job takes less than the milliseconds that a task costs Spark: many then share a task."""
    stages_files: ClassVar[bool] = False
    """Whether jobs leave files under the operation's staging folders, to be swept after the end."""
    nested_files: ClassVar[bool] = False
    """Whether these files may lie in folders below the staging folders."""
    builds_index: ClassVar[bool] = False
    """Whether its objects are indexes of the table, and its files belong to them."""
    sees_active: ClassVar[bool] = False
    """Whether ``plan`` gets the list of the table's other operations."""
    hosted: ClassVar[bool] = False
    """Whether only the program that starts an operation can run it; executors leave it alone."""

    @abstractmethod
    def plan(self, request: PlanRequest) -> Plan:
        """Check the argument and fix what is to be done.

        Runs in a process beside a coordinator, which is ended at the deadline of the call. Maybe more than
        once for one operation: again whenever the table's head, watermarks or index have moved before the
        start, see :meth:`plan_holds`. Has no side effects.

        Raises
        ------
        InvalidArgument
            With ``details={"field": ...}``, so that the caller knows which field to correct.
        """

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """Whether a plan may be started although head, watermarks or index have moved since it was made.

        By default not: it is made again, which a table that moves all the time gives a slow plan no time for.
        Say yes where the operation would end as well as if the table had moved right after its start. The
        table itself is the same in both requests. Runs where ``plan`` does; may read a file or two.
        """
        return False

    def check_table(self, table: TableRecord, schema: Any = None) -> None:  # noqa: B027 - a default, not a gap
        """Refuse options of a table, before it is made or altered, that operations of this type could not
        keep to. Raises :class:`~distop.errors.InvalidArgument`.

        Parameters
        ----------
        schema:
            Its columns (a ``pyiceberg`` schema), if they are known.
        """

    def preview(self, request: PlanRequest) -> Mapping[str, Any]:
        """What an operation would do, for people who ask before they start it: JSON of moderate size.

        Runs where ``plan`` does, and raises what that raises.
        """
        plan = self.plan(request)
        jobs = len(plan.partitions) if plan.partitions is not None else plan.partition_count
        return {} if plan.dynamic else {"jobs": jobs}

    def object_of(self, argument: Mapping[str, Any]) -> str:
        """The object that an argument speaks of, for callers who name none; empty: they must.

        For types with :attr:`Scope.PER_OBJECT`. The argument is as the caller sent it, unchecked.
        """
        return ""

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
        """One argument that does the work of two, in this order; ``None`` if there is none.

        For tables that apply several queued batches by one operation. Both are as their callers sent them.
        """
        return None

    @abstractmethod
    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any] | None:
        """Do one job; return a small JSON result (counts, where its manifest lies).

        Raising fails the attempt. :class:`~distop.errors.InvalidArgument` and
        :class:`~distop.errors.JobFailed` are permanent, everything else is tried again.
        """

    def frame(self, session: Any, operation: OperationArg) -> Any:
        """Of a dynamic plan: the DataFrame whose partitions are the jobs. Called in the Spark driver.

        Each job then finds the rows of its partition in ``job.rows()``. It may be computed more than once,
        and be cut differently each time: what counts is one computation as a whole.

        Parameters
        ----------
        session:
            The ``SparkSession``; ``None`` in an executor without Spark, which takes a list of iterables of
            Arrow record batches instead of a DataFrame.

        Raises
        ------
        InvalidArgument, JobFailed
            There is no such DataFrame. The operation fails.
        """
        raise NotImplementedError(f"{self.type} makes no DataFrame")

    def frame_limit_s(self, operation: OperationArg) -> float | None:
        """Seconds that one computation of the DataFrame may take, after which the operation fails; ``None``:
        any number."""
        return None

    def cancel_job_and_cleanup(self, job: JobContext) -> None:  # noqa: B027 - a default, not a gap
        """Remove what this attempt made. Called for attempts that failed, lost, or were cancelled, in the
        process that made them: one that was killed cleans up nothing. What lies in the attempt's staging
        folder is swept in any case; see :meth:`sweep_operation` for the rest."""

    def describe_job(self, operation: OperationArg, partition: str) -> str:
        """What a job is about, to the people who started the operation: the file that it reads, say. Each job
        has a description of its own."""
        return partition

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """The transactional steps that publish it, in order. Watermarks and history are added by distop."""
        return ()

    def complete_operation(self, operation: OperationView) -> None:  # noqa: B027 - a default, not a gap
        """Side effects of your own once every job has its result, before anything is published.

        All jobs have succeeded then, unless the options let some fail: those have ``state == "failed"``.
        At least once: may run again after a crash, so make it idempotent by ``operation.token``. Raising
        delays the completion, which is tried again. Runs in a process beside a coordinator, which is ended
        after its ``--call-timeout``; that counts as a failed attempt.
        """

    def abort_operation(self, operation: OperationView) -> None:  # noqa: B027 - a default, not a gap
        """Side effects of your own when the operation has failed or was cancelled: ``operation.error`` says
        why. Nothing of it is published.

        At least once, as :meth:`complete_operation`. Raising delays the end; what keeps raising is given up
        after some attempts, and the operation's facts say so (``abortError``): its table must go on.
        """

    def sweep_operation(self, operation: OperationView) -> None:  # noqa: B027 - a default, not a gap
        """Remove what attempts have left outside of their staging folders, but for those that count
        (``operation.attempts``): :meth:`cancel_job_and_cleanup` cannot run in a process that was killed.

        Called when the operation is over, whatever its outcome, and no runner has it any more: the key of one
        that was killed goes with its lease. At least once, where :meth:`complete_operation` runs. Raising
        delays it; what keeps raising is given up after some attempts, and logged.
        """


def overrides(kind: DistributedOperation, method: str) -> bool:
    """Whether a type has a method of its own in place of the default."""
    return getattr(type(kind), method) is not getattr(DistributedOperation, method)


def is_swept(kind: DistributedOperation) -> bool:
    """Whether attempts of a type may leave something that is to be removed after the end."""
    return kind.stages_files or overrides(kind, "sweep_operation")
