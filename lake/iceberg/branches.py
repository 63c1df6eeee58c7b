"""Branches of an Iceberg table: data written under a name that becomes part of the table later.

A branch begins at the table's snapshot when the first operation writes to it. Its snapshots record the
watermarks that they would move; those of the table move when the branch is published, in the same transaction
(C8): no watermark covers rows that readers of the table do not see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from distop.commit.partial import Moves
from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.iceberg.metadata_files import TableFile, only_replaced, present_file
from distop.lake.iceberg.provenance import WATERMARKS_BEFORE, moves_of
from distop.lake.iceberg.watermarks import moved
from distop.lake.layout.model import Layout
from distop.metastore.records.watermarks import Marks
from distop.operations.api import PlanRequest

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")


def check_branch_name(name: str) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless this is a valid branch name."""
    if name == MAIN_BRANCH or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not a valid branch name",
            hint=f"a letter, then letters, digits, '.', '-' or '_'; {MAIN_BRANCH} is the table itself",
            details={"field": "branch"},
        )


def branch_snapshot(request: PlanRequest, branch: str) -> Snapshot:
    """The snapshot of a branch when an operation on it is planned.

    Raises :class:`~distop.errors.PreconditionFailed` if there is no such branch.
    """
    check_branch_name(branch)
    file = present_file(request)
    ref = None if file is None else file.metadata.refs.get(branch)
    snapshot = None
    if file is not None and ref is not None and ref.snapshot_ref_type == SnapshotRefType.BRANCH:
        snapshot = file.snapshot(ref.snapshot_id)
    if snapshot is None:
        raise PreconditionFailed(
            f"table {request.table.name!r} has no branch {branch!r}", details={"field": "branch"}
        )
    return snapshot


def layout_of_head(request: PlanRequest) -> dict[str, Any]:
    """How to reach the table's files: a field of the plans of operations that have no rows of their own."""
    file = present_file(request)
    return {} if file is None else {"layout": Layout.of(file.metadata).to_json()}


@dataclass(frozen=True)
class Unpublished:
    """The snapshots of a branch that the table itself does not have."""

    snapshots: Sequence[Snapshot]
    """The newest first."""
    base: int | None
    """The snapshot of the table that they follow; ``None``: the table was empty, or it has expired."""
    ahead: bool
    """Whether the table still holds the rows they follow: nothing was written to it since, except
    replacements of files by others with the same rows."""

    def watermarks(self, present: Mapping[str, Mapping[str, str]]) -> Marks:
        """The watermarks of the table after the moves of these snapshots.

        Raises
        ------
        WatermarkConflict
            Those of the table have moved meanwhile.
        PreconditionFailed
            A snapshot does not say what it moves.
        """
        marks = Marks.of(present)
        for snapshot in reversed(self.snapshots):
            marks = moved(marks, moves_of(snapshot))
        return marks


def unpublished(file: TableFile, branch: str) -> Unpublished:
    """The content of a branch; empty if it does not exist."""
    ref = file.metadata.refs.get(branch)
    now = file.metadata.current_snapshot()
    if ref is None:
        return Unpublished((), None if now is None else now.snapshot_id, ahead=True)
    own: list[Snapshot] = []
    for snapshot in _lineage(file, ref.snapshot_id):
        if now is not None and snapshot.snapshot_id == now.snapshot_id:
            return Unpublished(own, now.snapshot_id, ahead=True)
        own.append(snapshot)
    if now is None:
        return Unpublished(own, None, ahead=True)
    published = {snapshot.snapshot_id for snapshot in _lineage(file, now.snapshot_id)}
    shared = next((at for at, snapshot in enumerate(own) if snapshot.snapshot_id in published), None)
    if shared is None:
        return Unpublished(own, None, ahead=False)
    base = own[shared].snapshot_id
    return Unpublished(own[:shared], base, ahead=only_replaced(file, now, base))


def check_carried(
    file: TableFile, branch: str, present: Marks, moves: Moves, properties: Mapping[str, str]
) -> None:
    """Whether a snapshot of a branch can move watermarks when it is published.

    Parameters
    ----------
    present:
        The watermarks of the table.
    properties:
        What the snapshot will record about them.

    Raises
    ------
    WatermarkConflict
        The table or the branch has other values by now.
    PreconditionFailed
        There are too many for a snapshot.
    """
    moved(unpublished(file, branch).watermarks(present), moves)
    if any(moves.values()) and WATERMARKS_BEFORE not in properties:
        raise PreconditionFailed(
            f"a snapshot of branch {branch!r} would have to carry more watermarks than it can",
            hint="ingest fewer paths at a time",
            details={"field": "branch"},
        )


def _lineage(file: TableFile, snapshot_id: int | None) -> Iterator[Snapshot]:
    while snapshot_id is not None and (snapshot := file.snapshot(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def ids_of_branches(metadata: TableMetadata) -> set[int]:
    """Ids of all snapshots that only branches have, and of the snapshots they follow.

    Parameters
    ----------
    metadata:
        Complete metadata.
    """
    file = TableFile.of(metadata)
    ids: set[int] = set()
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH and ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            own = unpublished(file, name)
            ids.update(snapshot.snapshot_id for snapshot in own.snapshots)
            ids.update(() if own.base is None else (own.base,))
    return ids
