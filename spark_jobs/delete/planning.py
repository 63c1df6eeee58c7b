"""Planning a deletion: which files of a snapshot may have rows for which the predicate is true."""

from __future__ import annotations

import msgspec
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from distop.errors import PreconditionFailed
from distop.lake.iceberg.branches import check_branch_name
from distop.lake.iceberg.content import only_appended
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.partitioning import Partitioner
from distop.lake.predicates.binding import predicate_of
from distop.lake.rewriting.plan import Concerned, DeletePlan, concerned_by, planned_on
from distop.lake.storage.storage import storage_of
from distop.operations import Plan, PlanRequest, convert
from distop.spark_jobs.delete.argument import DeleteArgument

JOB_BYTES = 512 << 20
"""About how many bytes on disk a job reads; more if there would be too many jobs."""
WANTED_JOBS = 5000


def plan_deletion(request: PlanRequest, argument: DeleteArgument) -> tuple[DeletePlan, Concerned]:
    """The plan, and the files that have or may have such rows. Raises as :meth:`.operation.Delete.plan`."""
    if request.head is None:
        return DeletePlan(where=argument.condition), Concerned()
    if argument.branch is not None:
        check_branch_name(argument.branch)
    storage = storage_of(request.table)
    file = TableFile.read(request.head.metadata_location, storage=storage)
    metadata = file.metadata
    layout = Layout.of(metadata)
    Partitioner(layout.schema, layout.spec)  # raises if it cannot split rows as the table does
    where = predicate_of(argument.condition, layout.schema, "where")
    snapshot = _snapshot(file, argument.branch or "")
    nothing = DeletePlan(where=argument.condition, branch=argument.branch or "")
    if snapshot is None:
        return nothing, Concerned()
    job_bytes = bytes_per_job(snapshot)
    concerned = concerned_by(metadata, snapshot, file_io(metadata.location, storage), where, job_bytes)
    if not concerned.whole and not concerned.jobs:
        nothing.snapshot_id = str(snapshot.snapshot_id)
        return nothing, concerned
    fixed = {**planned_on(metadata, snapshot), "layout": layout.to_json(), "digest": concerned.digest}
    return msgspec.structs.replace(nothing, **fixed, job_bytes=job_bytes), concerned


def plan_holds(plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
    """Whether a plan may be started on another head: only appends were published since."""
    if made_on.head is None or request.head is None:
        return False
    made = convert(plan.argument, DeletePlan)
    file = TableFile.read(request.head.metadata_location, storage=storage_of(request.table))
    since = None if made.snapshot_id is None else int(made.snapshot_id)
    return only_appended(file, _snapshot(file, made.branch), since)


def bytes_per_job(snapshot: Snapshot) -> int:
    """About how many bytes of a snapshot a job reads."""
    total = str(snapshot.summary["total-files-size"] if snapshot.summary else "")
    return max(JOB_BYTES, int(total) // WANTED_JOBS if total.isdecimal() else 0)


def _snapshot(file: TableFile, branch: str) -> Snapshot | None:
    """The snapshot that rows are deleted from."""
    if not branch:
        return file.metadata.current_snapshot()
    ref = file.metadata.refs.get(branch)
    if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise PreconditionFailed(
            f"the table at {file.metadata.location} has no branch {branch!r}", details={"field": "branch"}
        )
    return file.snapshot(ref.snapshot_id)
