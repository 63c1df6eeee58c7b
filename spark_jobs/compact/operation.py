"""``compact``: small files of a table's partitions rewritten into files of a target size, sorted if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distop.errors import PreconditionFailed
from distop.operations import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationArg,
    Plan,
    PlanRequest,
    StepRecord,
)
from distop.spark_jobs.compact.argument import CompactArgument


class Compact(DistributedOperation[CompactArgument]):
    """Rewrites small files. The rows of the table do not change, whatever else happens to it meanwhile.

    The snapshot and its files are fixed at the start. Concurrent appends are not touched; if a concurrent
    operation removed one of the files, its replacement is left out, and reported. See
    :class:`~distop.spark_jobs.compact.argument.CompactArgument` for the argument.
    """

    type = "compact"
    preloads = ("distop.spark_jobs.compact.planning",)
    effect = Effect.REWRITES
    stages_files = True

    def plan(self, request: PlanRequest[CompactArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A field is invalid, or names a column or a partition that the table does not have.
        PreconditionFailed
            The files of the table cannot be replaced: its format is a different one.
        """
        from distop.spark_jobs.compact.planning import plan_compaction

        if request.table.format != "iceberg":
            raise PreconditionFailed(
                f"table {request.table.name!r} has format {request.table.format}, this is for Iceberg tables",
                hint="Delta has OPTIMIZE for this" if request.table.format == "delta" else "",
            )
        return plan_compaction(request, request.argument)

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """Files that others have removed meanwhile are left out at the end."""
        return made_on.head is not None and request.head is not None

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the snapshot with the new files instead of the old ones."""
        return [StepRecord(step="iceberg.replace")] if operation.argument.get("layout") else []

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        """Rewrite some files of a partition.

        Returns
        -------
        The writer's result (``rows``, ``files``, ``bytes``, its manifest); or ``missing``: a file that is
        gone. The commit checks whether the table still has it.

        Raises
        ------
        JobFailed
            The files do not hold as many rows as the table says.
        """
        from distop.spark_jobs.compact.job import run_job

        return run_job(job)
