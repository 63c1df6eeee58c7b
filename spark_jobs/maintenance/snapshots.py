"""``rollback``, ``expire_snapshots`` and ``remove_orphans``: maintenance of an Iceberg table.

The first two are commits without jobs. The third has one job, which lists the table's folders.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

from distop.errors import PreconditionFailed
from distop.metastore.records.operation import Effect, OperationArg, StepRecord
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.arguments import invalid, parse
from distop.operations.job import JobContext, staging_folder

A = TypeVar("A", bound=msgspec.Struct)

DEFAULT_OLDER_THAN = "3d"
MIN_ORPHAN_AGE_S = 86400.0
"""Younger files are never orphans: another program may be about to commit them."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]*)?)([smhd])")


class RollbackArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The target: one of the two."""

    snapshot: str | int | None = None
    """Id of a snapshot; in JSON a string, since numbers lose their last digits there."""
    as_of: str | None = None
    """The snapshot that was present at this time, such as ``2024-05-01T08:00:00Z``."""
    watermarks: Literal["restore", "keep"] = "restore"
    """``restore``: what the undone snapshots had ingested can be ingested again. ``keep``: watermarks
    stay."""


class ExpireArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which snapshots to expire."""

    older_than: str = DEFAULT_OLDER_THAN
    """Age, such as ``12h`` or ``30d``, or a time, such as ``2024-05-01T08:00:00Z``."""
    keep_last: int = 1
    """This many of the newest of each branch stay, however old they are."""


class OrphansArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which files to remove."""

    older_than: str = DEFAULT_OLDER_THAN
    """Age or time, as for ``expire_snapshots``; at least a day, and at least as long as the slowest program
    other than distop takes from writing a data file to committing it."""
    dry_run: bool = True
    """Only report what would be removed."""


class Rollback(DistributedOperation):
    """Makes an earlier snapshot the present one, and restores its watermarks."""

    type = "rollback"

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`; ``PreconditionFailed`` if there is no such snapshot."""
        from distop.lake.iceberg.rollback import target_of
        from distop.lake.layout.model import Layout, load_metadata
        from distop.lake.storage.storage import storage_of

        argument = parsed(request, self.type, RollbackArgument)
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

    def start_or_resume_job(self, job: JobContext) -> None:
        """It has no jobs."""


class ExpireSnapshots(DistributedOperation):
    """Expires old snapshots of a table, and removes the files that only they refer to."""

    type = "expire_snapshots"
    effect = Effect.CLEANS
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        PreconditionFailed, LocationNotOwned
            Files of the table may not be removed.
        """
        from distop.lake.cleanup.purge import check_removal

        argument = parsed(request, self.type, ExpireArgument)
        if argument.keep_last < 1:
            raise invalid("keep_last", "--keep-last must be at least 1")
        older_than = _older_than(argument.older_than)
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

    def start_or_resume_job(self, job: JobContext) -> None:
        """It has no jobs."""


class RemoveOrphans(DistributedOperation):
    """Finds files below the table's location that nothing refers to, and removes them if requested."""

    type = "remove_orphans"
    effect = Effect.CLEANS
    stages_files = True
    sees_active = True

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`; as that of :class:`ExpireSnapshots`, without ``dry_run``."""
        from distop.lake.cleanup.purge import check_removal

        argument, table = parsed(request, self.type, OrphansArgument), request.table
        older_than = _older_than(argument.older_than)
        if time.time() - older_than < MIN_ORPHAN_AGE_S - 1.0:
            raise invalid("older_than", f"--older-than must be at least {MIN_ORPHAN_AGE_S / 3600:.0f}h")
        if not argument.dry_run:
            check_removal(table, request.head)
        recorded = {
            "owner": table.uuid,
            "metadataLocation": None if request.head is None else request.head.metadata_location,
            "olderThan": older_than,
            "dryRun": argument.dry_run,
            "busy": [staging_folder(one).rpartition("/")[2] for one in request.active],
            "plannedAt": time.time(),
        }
        return Plan(argument={**layout_of_head(request), **recorded}, partition_count=1)

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One, which decides what is an orphan. The files are removed once that is certain."""
        return [StepRecord(step="iceberg.remove_orphans", argument={"dryRun": operation.argument["dryRun"]})]

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any]:
        """Look for candidates.

        Returns
        -------
        ``candidates``: how many there are; ``report``: where they are listed.
        """
        from distop.lake.cleanup.orphans import find_orphans, write_report

        argument = job.operation.argument
        found = find_orphans(
            job.operation,
            metadata_location=argument["metadataLocation"],
            older_than=float(argument["olderThan"]),
            busy=argument["busy"],
            now=float(argument.get("plannedAt", job.operation.started_at)),
        )
        job.raise_if_cancelled()
        report = job.staging_path(".orphans.json", folder="metadata")
        write_report(job.operation, report, found)
        return {"candidates": len(found), "report": report.rpartition("/")[2]}


def parsed(request: PlanRequest, what: str, kind: type[A], *, partitions: bool = False) -> A:
    """The argument of an operation on an Iceberg table, typed; ``what`` is the operation's type.

    Parameters
    ----------
    partitions:
        Whether some of its partitions may be selected.
    """
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, this is for Iceberg tables"
        )
    argument = parse(request.argument, kind, what)
    if request.partitions is not None and not partitions:
        raise invalid("partitions", "this operation makes its own partitions")
    return argument


def layout_of_head(request: PlanRequest) -> dict[str, Any]:
    """How to reach the table's files, in the form of other operations."""
    if request.head is None:
        return {}
    from distop.lake.iceberg.metadata_files import TableFile
    from distop.lake.layout.model import Layout
    from distop.lake.storage.storage import storage_of

    file = TableFile.read(request.head.metadata_location, storage=storage_of(request.table))
    return {"layout": Layout.of(file.metadata).to_json()}


def snapshot_id(given: str | int | None) -> int | None:
    """The id of a snapshot in callers' form."""
    try:
        return None if given is None else int(given)
    except ValueError:
        raise invalid("snapshot", f"{given!r} is not a snapshot id") from None


def _older_than(text: str) -> float:
    """Seconds since the Unix epoch: of a time, or of an age before now."""
    if age := _AGE.fullmatch(text):
        return max(0.0, time.time() - float(age[1]) * _SECONDS[age[2]])
    return time_of("older_than", text)


def time_of(field: str, text: str) -> float:
    """Seconds since the Unix epoch of a time in callers' form; UTC by default."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(
            field, f"{text!r} is neither a time such as 2024-05-01T08:00:00Z nor an age such as 12h"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
