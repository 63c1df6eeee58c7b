"""What plans of maintenance read of a table's present metadata: its layout, and the snapshots of branches."""

from __future__ import annotations

from typing import Any

from pyiceberg.table.refs import SnapshotRefType

from distop.errors import PreconditionFailed
from distop.lake.iceberg.branches import check_branch_name
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import Layout
from distop.lake.storage.storage import storage_of
from distop.operations import PlanRequest


def layout_of_head(request: PlanRequest) -> dict[str, Any]:
    """How to reach the table's files, in the form of other operations."""
    if request.head is None:
        return {}
    file = TableFile.read(request.head.metadata_location, storage=storage_of(request.table))
    return {"layout": Layout.of(file.metadata).to_json()}


def branch_snapshot(request: PlanRequest, branch: str) -> str:
    """The id of a branch's snapshot; ``PreconditionFailed`` if there is no such branch."""
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
