"""``publish_branch`` and ``drop_branch``, and publishing a branch that was validated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from distop.errors import PreconditionFailed
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.arguments import invalid
from distop.operations.job import JobContext
from distop.spark_jobs.maintenance.snapshots import layout_of_head, parsed
from distop.spark_jobs.rules.model import RuleSet


class PublishArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The branch."""

    branch: str
    on_conflict: Literal["refuse", "rebase"] = "refuse"
    """What to do if others have written to the table since the branch began: refuse, or append the rows that
    were appended to the branch to the table."""
    snapshot: str | int | None = None
    """Publish it only if it is at this snapshot, the validated one."""
    alone: bool = False
    """Publish it only if it has one snapshot of its own: none that a rollback has taken out of the table."""


class DropArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The branch."""

    branch: str


class PublishBranch(DistributedOperation):
    """Publishes a branch: its content becomes the table's, watermarks included, and the branch is removed."""

    type = "publish_branch"

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`; ``PreconditionFailed`` if there is no such branch."""
        argument = parsed(request, self.type, PublishArgument)
        at = branch_snapshot(request, argument.branch)
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

    def start_or_resume_job(self, job: JobContext) -> None:
        """It has no jobs."""


class DropBranch(DistributedOperation):
    """Removes a branch. Its files are removed when its snapshots are expired."""

    type = "drop_branch"

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`; ``PreconditionFailed`` if there is no such branch."""
        argument = parsed(request, self.type, DropArgument)
        branch_snapshot(request, argument.branch)
        return Plan(argument={**layout_of_head(request), "drop": {"branch": argument.branch}})

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer."""
        return [StepRecord(step="iceberg.drop_branch", argument=operation.argument["drop"])]

    def start_or_resume_job(self, job: JobContext) -> None:
        """It has no jobs."""


def branch_snapshot(request: PlanRequest, branch: str) -> str:
    """The id of a branch's snapshot; ``PreconditionFailed`` if there is no such branch."""
    from pyiceberg.table.refs import SnapshotRefType

    from distop.lake.iceberg.branches import check_branch_name
    from distop.lake.iceberg.metadata_files import TableFile
    from distop.lake.storage.storage import storage_of

    check_branch_name(branch)
    ref = None
    if request.head is not None:
        file = TableFile.read(request.head.metadata_location, storage=storage_of(request.table))
        ref = file.metadata.refs.get(branch)
    if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise PreconditionFailed(
            f"table {request.table.name!r} has no branch {branch!r}", details={"field": "branch"}
        )
    return str(ref.snapshot_id)


def publication(
    request: PlanRequest,
    branch: str | None,
    on_conflict: str,
    rules: RuleSet,
) -> dict[str, Any]:
    """The argument of the step with which a validation publishes what it has checked.

    Raises :class:`~distop.errors.InvalidArgument` if that is impossible.
    """
    if branch is None:
        raise invalid("publish", "only a branch can be published: name it")
    if request.partitions is not None:
        raise invalid("publish", "to publish it, the whole branch must be checked")
    if rules.report_only:
        raise invalid("publish", "a published branch must keep the rules; --report-only allows violations")
    if on_conflict == "rebase" and rules.has_unique:
        raise invalid("on_conflict", "concurrently written rows may duplicate those of the branch", "refuse")
    return {
        "branch": branch,
        "snapshotId": branch_snapshot(request, branch),
        "onConflict": on_conflict,
    }
