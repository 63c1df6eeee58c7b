"""``build_index``: a secondary index of one column of an Iceberg table.

The object of such an operation is the column, so several indexes of a table are built concurrently. See
``docs/indexes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
)
from distop.spark_jobs.index.argument import BuildIndexArgument, check_request, object_of_column


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
