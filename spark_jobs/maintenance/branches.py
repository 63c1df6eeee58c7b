"""``publish_branch`` and ``drop_branch``."""

from __future__ import annotations

from collections.abc import Sequence

from distop.operations import DistributedOperation, JobContext, OperationArg, Plan, PlanRequest, StepRecord
from distop.spark_jobs.maintenance.arguments import DropArgument, PublishArgument, checked_argument


class PublishBranch(DistributedOperation[PublishArgument]):
    """Publishes a branch: its content becomes the table's, watermarks included, and the branch is removed."""

    type = "publish_branch"
    preloads = ("distop.lake.iceberg.branches",)

    def plan(self, request: PlanRequest[PublishArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`; ``PreconditionFailed`` if there is no such branch."""
        from distop.lake.iceberg.branches import branch_snapshot, layout_of_head

        argument = checked_argument(request)
        at = str(branch_snapshot(request, argument.branch).snapshot_id)
        expected = at if argument.snapshot is None else str(argument.snapshot)
        publish = {
            "branch": argument.branch,
            "snapshotId": expected,
            "onConflict": argument.on_conflict,
            "alone": argument.alone,
        }
        return Plan(argument={**layout_of_head(request), "publish": publish})

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer, and the watermarks."""
        return [StepRecord(step="iceberg.publish_branch", argument=operation.argument["publish"])]

    def run_job(self, job: JobContext) -> None:
        """It has no jobs."""


class DropBranch(DistributedOperation[DropArgument]):
    """Removes a branch. Its files are removed when its snapshots are expired."""

    type = "drop_branch"
    preloads = ("distop.lake.iceberg.branches",)

    def plan(self, request: PlanRequest[DropArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`; ``PreconditionFailed`` if there is no such branch."""
        from distop.lake.iceberg.branches import branch_snapshot, layout_of_head

        argument = checked_argument(request)
        branch_snapshot(request, argument.branch)
        return Plan(argument={**layout_of_head(request), "drop": {"branch": argument.branch}})

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer."""
        return [StepRecord(step="iceberg.drop_branch", argument=operation.argument["drop"])]

    def run_job(self, job: JobContext) -> None:
        """It has no jobs."""
