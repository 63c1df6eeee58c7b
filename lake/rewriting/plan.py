"""The frozen plan of a deletion: the snapshot and the predicate, from which jobs and commit find the same
files.

A snapshot never changes. So the plan need not list its files, which may be many: the jobs and the commit find
them again in the snapshot's manifests, and a digest proves that they are those of the plan.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.layout.model import file_io, schema_with
from distop.lake.predicates.binding import predicate_of
from distop.lake.rewriting.files import Concerned, concerned_by
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import Shared, plan_of


class SnapshotPlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """See the module."""

    where: str
    """Rows for which this is true may be deleted."""
    all_go: bool = True
    """Whether they all are, so that a file with only such rows need not be read."""
    snapshot_id: str | None = None
    """The snapshot to read. A string, since JSON readers' numbers are too small for it."""
    table: dict[str, Any] = {}
    """The table's metadata, without its past: enough to read the snapshot."""
    snapshot: dict[str, Any] = {}
    """Empty if no file is concerned."""
    job_bytes: int = 0
    """About how many bytes on disk one job reads."""
    digest: str = ""
    """Digest of the files; see :attr:`~distop.lake.rewriting.files.Concerned.digest`."""

    @property
    def metadata(self) -> TableMetadata:
        """Raises :class:`~distop.errors.CorruptRecord`."""
        try:
            return TableMetadataUtil.parse_raw(msgspec.json.encode(self.table).decode())
        except ValueError as error:
            raise CorruptRecord(f"the plan of a deletion records no table: {error}") from error


class DeletePlan(SnapshotPlan, kw_only=True):
    """The plan of a deletion: the argument of its operation."""

    branch: str = ""
    """The branch to write to; empty: the table itself."""
    layout: dict[str, Any] = {}
    """What is written; see :meth:`distop.lake.layout.model.Layout.to_json`. """


class _Merging(msgspec.Struct):
    merge: SnapshotPlan


def snapshot_plan(operation: OperationArg) -> SnapshotPlan:
    """The plan of a deletion or of a merge. Raises :class:`~distop.errors.CorruptRecord`."""
    if "merge" in operation.argument:
        return plan_of(operation, _Merging, "plan of a merge").merge
    return plan_of(operation, DeletePlan, "plan of a deletion")


def planned_on(metadata: TableMetadata, snapshot: Snapshot) -> dict[str, Any]:
    """The fields of a plan that hold a snapshot, and the metadata needed to read it."""
    typing = [schema for spec in metadata.partition_specs if (schema := schema_with(metadata, spec))]
    slim: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "schemas": list({one.schema_id: one for one in (*typing, metadata.schema())}.values()),
        "current_snapshot_id": None,
    }
    table = metadata.model_copy(update=slim)
    return {
        "snapshot_id": str(snapshot.snapshot_id),
        "table": msgspec.json.decode(table.model_dump_json()),
        "snapshot": msgspec.json.decode(snapshot.model_dump_json()),
    }


def concerned(operation: OperationArg) -> Concerned:
    """The files of an operation, found again.

    Raises
    ------
    PreconditionFailed
        The snapshot no longer exists, or its files are not those of the plan.
    """
    plan = snapshot_plan(operation)
    metadata = plan.metadata
    io = file_io(operation.location, operation.storage)
    try:
        snapshot = Snapshot.model_validate_json(msgspec.json.encode(plan.snapshot))
    except ValueError as error:
        raise CorruptRecord(f"the plan of {operation.id} records no snapshot: {error}") from error
    try:
        where = predicate_of(plan.where, metadata.schema(), "where")
        found = concerned_by(metadata, snapshot, io, where, plan.job_bytes, all_go=plan.all_go)
    except FileNotFoundError as error:
        raise PreconditionFailed(
            f"snapshot {plan.snapshot_id}, which {operation.id} began on, no longer exists: {error}",
            hint="nothing was changed; start the operation again, and do not expire snapshots while it runs",
        ) from error
    if found.digest != plan.digest:
        raise PreconditionFailed(
            f"the files found for {operation.id} are not those of its plan",
            hint="run the same distop on coordinators and executors, and start the operation again",
        )
    return found


concerned_shared = Shared(concerned)
"""The same for jobs: those of one operation in one process share it."""
