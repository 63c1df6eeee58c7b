"""``delete``: deletes the rows of a table for which a predicate is true, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from distop.errors import PreconditionFailed
from distop.operations import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationArg,
    Plan,
    PlanRequest,
    Role,
    StepRecord,
)
from distop.operations.arguments import invalid

if TYPE_CHECKING:
    from distop.lake.rewriting.plan import Concerned, DeletePlan

MAX_WHERE_CHARACTERS = 100_000

_FIELD = "where"
_HINT = "write for example: day < '2013-02-01' and kind in ('a', 'b')"


class DeleteArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rows to delete, and from where."""

    where: str | bool
    """Rows for which this is true are deleted; those for which it is false stay, and those for which a NULL
    makes it unknown."""
    branch: str | None = None
    """Delete from this branch of the table, instead of the table itself."""

    def __post_init__(self) -> None:
        if not self.condition.strip():
            raise invalid(
                _FIELD, "--where is empty: it selects the rows to delete", _HINT + "; for all rows: true"
            )
        if len(self.condition) > MAX_WHERE_CHARACTERS:
            raise invalid(
                _FIELD,
                f"--where has {len(self.condition):,} characters of at most {MAX_WHERE_CHARACTERS:,}",
                "delete in several operations",
            )

    @property
    def condition(self) -> str:
        """The text of ``where``; ``--arg where=true`` makes it a boolean."""
        return self.where if isinstance(self.where, str) else str(self.where).lower()


class Delete(DistributedOperation[DeleteArgument]):
    """Deletes rows of the snapshot that the table has at the start.

    Concurrent appends are not touched. If another operation has removed or changed a file with such rows,
    nothing is published, and the operation fails with a conflict. See
    :class:`~distop.spark_jobs.delete.operation.DeleteArgument` for the argument.
    """

    type = "delete"
    preloads = ("distop.spark_jobs.delete.job",)
    effect = Effect.DELETES
    role = Role.WRITER  # it may empty a table
    stages_files = True

    def plan(self, request: PlanRequest[DeleteArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A field is invalid, or the predicate does not fit the table's columns.
        PreconditionFailed
            The table has another format, files that cannot be read here, or no such branch.
        """
        plan, concerned = _planned(request)
        return Plan(argument=msgspec.to_builtins(plan), partition_count=len(concerned.jobs))

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """Later appends count as after this deletion. Removed files are a reason to plan
        again: the end would be a conflict."""
        from distop.spark_jobs.delete.job import plan_holds

        return plan_holds(plan, made_on, request)

    def preview(self, request: PlanRequest[DeleteArgument]) -> Mapping[str, Any]:
        """How many files would be read by how many jobs, and how many are removed as a whole."""
        _, concerned = _planned(request)
        return {
            "jobs": len(concerned.jobs),
            "filesToRead": sum(map(len, concerned.jobs)),
            "filesToDrop": len(concerned.whole),
            "rowsToDrop": sum(file.rows for file in concerned.whole),
        }

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the snapshot without the rows."""
        return [StepRecord(step="iceberg.delete")]

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        """Look for the rows in some files, and rewrite the rest of files that have any.

        Returns
        -------
        The writer's result (``rows``, ``files``, ``bytes``, its manifest), and ``read``, ``removed``,
        ``changed`` (see :mod:`distop.lake.rewriting.publish`).

        Raises
        ------
        JobFailed
            A file is missing, or does not hold as many rows as the table says.
        """
        from distop.spark_jobs.delete.job import run_job

        return run_job(job)


def _planned(request: PlanRequest[DeleteArgument]) -> tuple[DeletePlan, Concerned]:
    from distop.spark_jobs.delete.job import plan_deletion

    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, this is for Iceberg tables",
            hint="Delta has DELETE for this" if request.table.format == "delta" else "",
        )
    if request.partitions is not None:
        raise invalid(
            "partitions",
            "a deletion does not take partitions",
            "say it in the condition: --where \"kind = 'a' and ...\"",
        )
    return plan_deletion(request, request.argument.condition, request.argument.branch)
