"""The frozen plan of a deletion: the snapshot and the predicate, from which everybody finds the same files.

A snapshot never changes. So the plan need not list files, of which there may be any number: the jobs and the
commit find them again in the snapshot's manifests, and a digest says whether these are the ones of the plan.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pyiceberg.expressions.parser import parse
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from distop.commit.deleting.files import Concerned, concerned_by
from distop.commit.layout.model import Layout, file_io
from distop.errors import CorruptRecord, PreconditionFailed
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import Shared, plan_of


class DeletePlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """See the module."""

    where: str
    """Rows for which this is true go."""
    branch: str = ""
    """What is written to; empty: the table itself."""
    snapshot_id: str | None = None
    """The snapshot that is read. A string, since it is larger than JSON readers' numbers."""
    layout: dict[str, Any] = {}
    """What is written; see :meth:`distop.commit.layout.model.Layout.to_json`. """
    table: dict[str, Any] = {}
    """The table's metadata, without its past: what the snapshot is read by."""
    snapshot: dict[str, Any] = {}
    """Empty if no file of it is concerned."""
    job_bytes: int = 0
    """About so many bytes, as they lie on disk, are read by one job."""
    digest: str = ""
    """Of the files; see :attr:`~distop.commit.deleting.files.Concerned.digest`."""

    @classmethod
    def of(cls, operation: OperationArg) -> DeletePlan:
        """The plan of an operation. Raises :class:`~distop.errors.CorruptRecord`."""
        return plan_of(operation, cls, "plan of a deletion")

    @property
    def table_layout(self) -> Layout:
        return Layout.from_json(self.layout)

    @property
    def metadata(self) -> TableMetadata:
        """Raises :class:`~distop.errors.CorruptRecord`."""
        try:
            return TableMetadataUtil.parse_raw(msgspec.json.encode(self.table).decode())
        except ValueError as error:
            raise CorruptRecord(f"the plan of a deletion records no table: {error}") from error


def planned_on(metadata: TableMetadata, snapshot: Snapshot) -> dict[str, Any]:
    """The fields of a plan that hold a snapshot, and what of its table is needed to read it."""
    slim: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "schemas": [metadata.schema()],
        "current_snapshot_id": None,
    }
    table = metadata.model_copy(update=slim)
    return {
        "snapshot_id": str(snapshot.snapshot_id),
        "layout": Layout.of(metadata).to_json(),
        "table": msgspec.json.decode(table.model_dump_json()),
        "snapshot": msgspec.json.decode(snapshot.model_dump_json()),
    }


def concerned(operation: OperationArg) -> Concerned:
    """The files of an operation, found again.

    Raises
    ------
    PreconditionFailed
        The snapshot is not there any more, or its files are not those of the plan.
    """
    plan = DeletePlan.of(operation)
    metadata = plan.metadata
    io = file_io(operation.location, operation.storage)
    try:
        snapshot = Snapshot.model_validate_json(msgspec.json.encode(plan.snapshot))
    except ValueError as error:
        raise CorruptRecord(f"the plan of {operation.id} records no snapshot: {error}") from error
    try:
        found = concerned_by(metadata, snapshot, io, parse(plan.where), plan.job_bytes)
    except FileNotFoundError as error:
        raise PreconditionFailed(
            f"snapshot {plan.snapshot_id}, which {operation.id} began on, is not there any more: {error}",
            hint="nothing was changed; start the operation again, and expire no snapshots beside it",
        ) from error
    if found.digest != plan.digest:
        raise PreconditionFailed(
            f"the files that {operation.id} is about are found to be others than when it was planned",
            hint="run the same distop on coordinators and executors, and start the operation again",
        )
    return found


concerned_shared = Shared(concerned)
"""The same, for jobs: those of one operation in one process share it."""
