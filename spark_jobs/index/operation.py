"""``build_index``: a secondary index of one column of an Iceberg table.

The object of such an operation is the column, so several indexes of a table are built concurrently. See
``docs/indexes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distop.errors import InvalidName, PreconditionFailed
from distop.operations import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationArg,
    Plan,
    PlanRequest,
    Retry,
    Scope,
    StepRecord,
    check_object,
)
from distop.operations.arguments import invalid

FILES_PER_JOB = 256
"""Default number of data files per job."""
MOST_FILES_PER_JOB = 1000

_MARKED = "column="
"""Prefix of objects for columns whose names are not valid objects."""


class BuildIndexArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``build_index``."""

    column: str
    """The column. It must be of a primitive type, and not within a struct."""
    full: bool = False
    """Index all files again, instead of only those that the index does not cover yet."""
    files_per_job: int = FILES_PER_JOB
    """Most data files that one job indexes."""

    def __post_init__(self) -> None:
        if not 1 <= self.files_per_job <= MOST_FILES_PER_JOB:
            raise invalid("files_per_job", f"--files-per-job must lie between 1 and {MOST_FILES_PER_JOB}")


def object_of_column(column: str) -> str:
    """The object for a column: its name, if that is a valid object."""
    try:
        return check_object(column) if not column.startswith(_MARKED) else _MARKED + column
    except InvalidName:
        return _MARKED + column


def check_request(request: PlanRequest[BuildIndexArgument]) -> None:
    """Raises :class:`~distop.errors.InvalidArgument`, and :class:`~distop.errors.PreconditionFailed` for a
    table of another format."""
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, indexes are for Iceberg tables"
        )
    if request.partitions is not None:
        raise invalid("partitions", "build_index makes its own partitions")
    column = request.argument.column
    wanted = object_of_column(column)
    if request.object != wanted:
        raise invalid("object", f"the index of column {column!r} is object {wanted!r}")


class BuildIndex(DistributedOperation[BuildIndexArgument]):
    """Builds an index of a column, or updates it to the table's present snapshot.

    Cannot fail: a job that fails is retried. A killed job is resumed after the last file that it has
    finished.
    """

    type = "build_index"
    preloads = ("distop.spark_jobs.index.job",)
    scope = Scope.PER_OBJECT
    effect = Effect.READS
    retry = Retry(attempts=None)
    resumable = True
    stages_files = True
    builds_index = True

    def object_of(self, argument: Mapping[str, Any]) -> str:
        """The column that is indexed: a table has one index of each."""
        column = argument.get("column")
        return object_of_column(column) if isinstance(column, str) and column else ""

    def plan(self, request: PlanRequest[BuildIndexArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            There is no such column, or it cannot be indexed.
        PreconditionFailed
            The table is not an Iceberg table, or nothing has been published to it.
        """
        from distop.spark_jobs.index.job import plan_index

        check_request(request)
        argument = request.argument
        return plan_index(request, argument.column, full=argument.full, files_per_job=argument.files_per_job)

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """An index covers the snapshot of its plan, and is published if no other one was meanwhile."""
        return made_on.index == request.index

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer."""
        return [StepRecord(step="index.publish")]

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        """Index some files; the result is a :class:`~distop.lake.index.publish.PartResult`."""
        from distop.spark_jobs.index.job import run_job

        return run_job(job)
