"""``validate``: reads the rows of a snapshot, and reports which rules they break."""

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
    StepRecord,
)
from distop.spark_jobs.maintenance.arguments import ValidateArgument, checked_argument


class Validate(DistributedOperation[ValidateArgument]):
    """Checks rules on the rows of one snapshot, a job for each partition. Does not change the table."""

    type = "validate"
    preloads = ("distop.spark_jobs.maintenance.validation",)
    effect = Effect.READS
    stages_files = True

    def plan(self, request: PlanRequest[ValidateArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A rule is invalid, does not parse, or names unknown columns.
        PreconditionFailed
            There is no such snapshot, or the table is not an Iceberg table.
        """
        from distop.spark_jobs.maintenance.validation import plan_validation

        return plan_validation(request, checked_argument(request, partitions=True))

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """A snapshot never changes; only if it is to be published must it be the present one of its
        branch."""
        return request.head is not None and "publish" not in plan.argument

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """The check of all findings; then the publication of the branch, if requested."""
        steps = [StepRecord(step="rules.gate")]
        if "publish" in operation.argument:
            publish = operation.argument["publish"]
            steps.append(StepRecord(step="iceberg.publish_branch", argument=publish))
        return steps

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        """Check one partition, or some files of it.

        Returns
        -------
        ``rows`` and ``files``; if rules are broken ``violated``, see :mod:`distop.spark_jobs.rules.gate`.

        Raises
        ------
        JobFailed
            A data file is missing, or a rule cannot be evaluated for some row.
        """
        from distop.spark_jobs.maintenance.validation import run_job

        return run_job(job)
