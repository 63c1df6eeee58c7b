"""``delete``: deletes the rows of a table for which a predicate is true, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distop.errors import PreconditionFailed
from distop.metastore.records.operation import Effect, OperationArg, StepRecord
from distop.metastore.records.record import convert
from distop.operations.api import DistributedOperation, Plan, PlanRequest, Role
from distop.operations.arguments import invalid
from distop.operations.job import JobContext
from distop.spark_jobs.delete.argument import DeleteArgument, parse_argument

JOB_BYTES = 512 << 20
"""About how many bytes on disk a job reads; more if there would be too many jobs."""
WANTED_JOBS = 5000


class Delete(DistributedOperation):
    """Deletes rows of the snapshot that the table has at the start.

    Concurrent appends are not touched. If another operation has removed or changed a file with such rows,
    nothing is published, and the operation fails with a conflict. See
    :class:`~distop.spark_jobs.delete.argument.DeleteArgument` for the argument.
    """

    type = "delete"
    effect = Effect.DELETES
    role = Role.WRITER  # it may empty a table
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A field is invalid, or the predicate does not fit the table's columns.
        PreconditionFailed
            The table has another format, files that cannot be read here, or no such branch.
        """
        from distop.lake.rewriting.plan import DeletePlan

        argument = _checked(request)
        if request.head is None:
            return Plan(argument=msgspec.to_builtins(DeletePlan(where=argument.where)))
        plan, found = _planned(request, argument)
        return Plan(argument=msgspec.to_builtins(plan), partition_count=len(found.jobs))

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """Later appends count as after this deletion. Removed files are a reason to plan
        again: the end would be a conflict."""
        from distop.lake.iceberg.content import only_appended
        from distop.lake.iceberg.metadata_files import TableFile
        from distop.lake.rewriting.plan import DeletePlan
        from distop.lake.storage.storage import storage_of

        if made_on.head is None or request.head is None:
            return False
        made = convert(plan.argument, DeletePlan)
        file = TableFile.read(request.head.metadata_location, storage=storage_of(request.table))
        snapshot = _snapshot(file, made.branch)
        since = None if made.snapshot_id is None else int(made.snapshot_id)
        return only_appended(file, snapshot, since)

    def preview(self, request: PlanRequest) -> Mapping[str, Any]:
        """How many files would be read by how many jobs, and how many are removed as a whole."""
        argument = _checked(request)
        if request.head is None:
            return {"jobs": 0, "filesToRead": 0, "filesToDrop": 0, "rowsToDrop": 0}
        _, found = _planned(request, argument)
        return {
            "jobs": len(found.jobs),
            "filesToRead": sum(map(len, found.jobs)),
            "filesToDrop": len(found.whole),
            "rowsToDrop": sum(file.rows for file in found.whole),
        }

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the snapshot without the rows."""
        return [StepRecord(step="iceberg.delete")]

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any]:
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

    def cancel_job_and_cleanup(self, job: JobContext) -> None:
        """Remove the attempt's files."""
        from distop.lake.cleanup.staged import remove_attempt

        remove_attempt(job.operation, job.partition, job.attempt)


def _checked(request: PlanRequest) -> DeleteArgument:
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, this is for Iceberg tables",
            hint="Delta has DELETE for this" if request.table.format == "delta" else "",
        )
    if request.partitions is not None:
        raise invalid(
            "partitions",
            "a deletion does not take partitions",
            "say it in the condition: --arg where=\"kind = 'a' and ...\"",
        )
    return parse_argument(request.argument)


def _planned(request: PlanRequest, argument: DeleteArgument) -> Any:
    from distop.lake.iceberg.branches import check_branch_name
    from distop.lake.iceberg.metadata_files import TableFile
    from distop.lake.layout.model import Layout, file_io
    from distop.lake.layout.partitioning import Partitioner
    from distop.lake.predicates.binding import predicate_of
    from distop.lake.rewriting.plan import Concerned, DeletePlan, concerned_by, planned_on
    from distop.lake.storage.storage import storage_of

    assert request.head is not None
    if argument.branch is not None:
        check_branch_name(argument.branch)
    storage = storage_of(request.table)
    file = TableFile.read(request.head.metadata_location, storage=storage)
    metadata = file.metadata
    layout = Layout.of(metadata)
    Partitioner(layout.schema, layout.spec)  # raises if it cannot split rows as the table does
    where = predicate_of(argument.where, layout.schema, "where")
    snapshot = _snapshot(file, argument.branch or "")
    nothing = DeletePlan(where=argument.where, branch=argument.branch or "")
    if snapshot is None:
        return nothing, Concerned()
    job_bytes = bytes_per_job(snapshot)
    found = concerned_by(metadata, snapshot, file_io(metadata.location, storage), where, job_bytes)
    if not found.whole and not found.jobs:
        nothing.snapshot_id = str(snapshot.snapshot_id)
        return nothing, found
    fixed = {**planned_on(metadata, snapshot), "layout": layout.to_json(), "digest": found.digest}
    return msgspec.structs.replace(nothing, **fixed, job_bytes=job_bytes), found


def bytes_per_job(snapshot: Any) -> int:
    """About how many bytes of a snapshot a job reads."""
    total = str(snapshot.summary["total-files-size"] if snapshot.summary else "")
    return max(JOB_BYTES, int(total) // WANTED_JOBS if total.isdecimal() else 0)


def _snapshot(file: Any, branch: str) -> Any:
    """The snapshot that rows are deleted from."""
    from pyiceberg.table.refs import SnapshotRefType

    if not branch:
        return file.metadata.current_snapshot()
    ref = file.metadata.refs.get(branch)
    if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise PreconditionFailed(
            f"the table at {file.metadata.location} has no branch {branch!r}", details={"field": "branch"}
        )
    return file.snapshot(ref.snapshot_id)
