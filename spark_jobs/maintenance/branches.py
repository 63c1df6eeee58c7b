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
    """Which branch."""

    branch: str
    on_conflict: Literal["refuse", "rebase"] = "refuse"
    """What happens if others have written to the table since the branch began: it is refused, or the rows
    that were appended to the branch are appended to the table."""
    snapshot: str | int | None = None
    """Publish it only if it is at this snapshot, the one that was validated."""


class DropArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which branch."""

    branch: str


class PublishBranch(DistributedOperation):
    """Makes what a branch holds what the table holds, watermarks included, and forgets the branch."""

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
        }
        return Plan(argument={**layout_of_head(request), "publish": publish})

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer, and the watermarks."""
        return [StepRecord(step="iceberg.publish_branch", argument=operation.argument["publish"])]

    def start_or_resume_job(self, job: JobContext) -> None:
        """It has no jobs."""


class DropBranch(DistributedOperation):
    """Forgets a branch. Its files go when its snapshots are expired."""

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
    """The id of the snapshot that a branch is at; ``PreconditionFailed`` if there is no such branch."""
    from pyiceberg.table.refs import SnapshotRefType

    from distop.commit.files.storage import storage_of
    from distop.commit.iceberg.branches import check_branch_name
    from distop.commit.iceberg.metadata_files import TableFile

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
    """The argument of the step by which a validation publishes what it has looked at.

    Raises :class:`~distop.errors.InvalidArgument` unless that has a meaning.
    """
    if branch is None:
        raise invalid("publish", "what is published is a branch: say which")
    if request.partitions is not None:
        raise invalid("publish", "what is published must be looked at as a whole")
    if rules.report_only:
        raise invalid("publish", "what is published must keep the rules, with report_only it need not")
    if on_conflict == "rebase" and rules.has_unique:
        raise invalid(
            "on_conflict", "rows that others have written meanwhile may be like those of the branch", "refuse"
        )
    return {
        "branch": branch,
        "snapshotId": branch_snapshot(request, branch),
        "onConflict": on_conflict,
    }
