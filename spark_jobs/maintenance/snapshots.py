"""``rollback``, ``expire_snapshots`` and ``remove_orphans``: maintenance of an Iceberg table.

The first two are commits without jobs. The third has one job, which lists the table's folders.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from distop.errors import PreconditionFailed
from distop.lake.cleanup.purge import check_removal
from distop.lake.storage.storage import storage_of
from distop.operations import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationArg,
    Plan,
    PlanRequest,
    StepRecord,
)
from distop.operations.arguments import invalid
from distop.operations.job import staging_folder
from distop.spark_jobs.maintenance.arguments import (
    ExpireArgument,
    OrphansArgument,
    RollbackArgument,
    checked_argument,
    older_than_time,
    snapshot_id,
    time_of,
)

MIN_ORPHAN_AGE_S = 86400.0
"""Younger files are never orphans: another program may be about to commit them."""


class Rollback(DistributedOperation[RollbackArgument]):
    """Makes an earlier snapshot the present one, and restores its watermarks."""

    type = "rollback"
    preloads = ("distop.lake.iceberg.rollback",)

    def plan(self, request: PlanRequest[RollbackArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`; ``PreconditionFailed`` if there is no such snapshot."""
        from distop.lake.iceberg.rollback import target_of
        from distop.lake.layout.model import Layout, load_metadata

        argument = checked_argument(request)
        if (argument.snapshot is None) == (argument.as_of is None):
            raise invalid("snapshot", "name the target: a snapshot, or a time with --as-of, one of the two")
        if request.head is None:
            raise PreconditionFailed(f"nothing has been published to table {request.table.name!r}")
        metadata = load_metadata(request.head.metadata_location, storage=storage_of(request.table))
        as_of = None if argument.as_of is None else int(time_of("as_of", argument.as_of) * 1000)
        target = target_of(metadata, snapshot_id=snapshot_id(argument.snapshot), as_of_ms=as_of)
        current = metadata.current_snapshot_id
        return Plan(
            argument={
                "layout": Layout.of(metadata).to_json(),
                "snapshotId": str(target.snapshot_id),
                "expectedSnapshotId": None if current is None else str(current),
                "watermarks": argument.watermarks,
            }
        )

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer, and the watermarks."""
        names = ("snapshotId", "expectedSnapshotId", "watermarks")
        argument = {name: operation.argument.get(name) for name in names}
        return [StepRecord(step="iceberg.rollback", argument=argument)]

    def run_job(self, job: JobContext) -> None:
        """It has no jobs."""


class ExpireSnapshots(DistributedOperation[ExpireArgument]):
    """Expires old snapshots of a table, and removes the files that only they refer to."""

    type = "expire_snapshots"
    preloads = ("distop.lake.cleanup.purge", "distop.lake.iceberg.branches")
    effect = Effect.CLEANS
    stages_files = True

    def plan(self, request: PlanRequest[ExpireArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        PreconditionFailed, LocationNotOwned
            Files of the table may not be removed.
        """
        from distop.lake.iceberg.branches import layout_of_head

        argument = checked_argument(request)
        if argument.keep_last < 1:
            raise invalid("keep_last", "--keep-last must be at least 1")
        older_than = older_than_time(argument.older_than)
        check_removal(request.table, request.head)
        recorded = {
            "owner": request.table.uuid,
            "olderThanMs": int(older_than * 1000),
            "keepLast": argument.keep_last,
        }
        return Plan(argument={**layout_of_head(request), **recorded})

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: metadata without them. Their files are removed once that is certain."""
        argument = {name: operation.argument[name] for name in ("olderThanMs", "keepLast")}
        return [StepRecord(step="iceberg.expire", argument=argument)]

    def run_job(self, job: JobContext) -> None:
        """It has no jobs."""


class RemoveOrphans(DistributedOperation[OrphansArgument]):
    """Finds files below the table's location that nothing refers to, and removes them if requested."""

    type = "remove_orphans"
    preloads = ("distop.lake.cleanup.purge", "distop.lake.iceberg.branches")
    effect = Effect.CLEANS
    stages_files = True
    sees_active = True

    def plan(self, request: PlanRequest[OrphansArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`; as that of :class:`ExpireSnapshots`, without ``dry_run``."""
        from distop.lake.iceberg.branches import layout_of_head

        argument, table = checked_argument(request), request.table
        older_than = older_than_time(argument.older_than)
        if time.time() - older_than < MIN_ORPHAN_AGE_S - 1.0:
            raise invalid("older_than", f"--older-than must be at least {MIN_ORPHAN_AGE_S / 3600:.0f}h")
        if not argument.dry_run:
            check_removal(table, request.head)
        recorded = {
            "owner": table.uuid,
            "metadataLocation": None if request.head is None else request.head.metadata_location,
            "olderThan": older_than,
            "dryRun": argument.dry_run,
            "busy": [staging_folder(arg).rpartition("/")[2] for arg in request.active],
            "plannedAt": time.time(),
        }
        return Plan(argument={**layout_of_head(request), **recorded}, partition_count=1)

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One, which decides what is an orphan. The files are removed once that is certain."""
        return [StepRecord(step="iceberg.remove_orphans", argument={"dryRun": operation.argument["dryRun"]})]

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        """Look for candidates.

        Returns
        -------
        ``candidates``: how many there are; ``report``: where they are listed.
        """
        from distop.lake.cleanup.orphans import find_orphans, write_report

        argument = job.operation.argument
        orphans = find_orphans(
            job.operation,
            metadata_location=argument["metadataLocation"],
            older_than=float(argument["olderThan"]),
            busy=argument["busy"],
            now=float(argument.get("plannedAt", job.operation.started_at)),
        )
        job.raise_if_cancelled()
        report = job.staging_path(".orphans.json", folder="metadata")
        write_report(job.operation, report, orphans)
        return {"candidates": len(orphans), "report": report.rpartition("/")[2]}
