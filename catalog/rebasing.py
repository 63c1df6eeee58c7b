"""Commits that lost to others and are repeated by the catalog: those that only describe the table, as long as
their requirements hold; and appends, if the table or the commit asks for it.

The operation ``append`` of a snapshot does not prove that it may be rebased: a MERGE or an upsert that has
only inserted, and an overwrite of an empty table, look the same. After a refusal their programs read the
table again, and may find a conflict. So none is rebased unless ``distop.on-conflict`` is ``rebase``.

The snapshot keeps its id, by which programs find out whether it was committed. Its files are listed in a new
manifest: the table then refers only to the program's data files, so the program may remove its manifests as
those of a failed attempt, as Iceberg's Java library does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table import update as changes
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ADDED_DATA_FILES, Operation, Snapshot, Summary

from distop.lake.iceberg.branch_steps import Rebased, rebased
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.provenance import PRODUCT_PROPERTIES
from distop.lake.iceberg.snapshots import Draft
from distop.lake.iceberg.takeover import manifests_of
from distop.lake.layout.properties import FORMAT_VERSION, ON_CONFLICT, check_on_conflict

log = logging.getLogger(__name__)

_DESCRIBING = (
    changes.SetPropertiesUpdate,
    changes.RemovePropertiesUpdate,
    changes.AddSchemaUpdate,
    changes.SetCurrentSchemaUpdate,
    changes.AddPartitionSpecUpdate,
    changes.SetDefaultSpecUpdate,
    changes.AddSortOrderUpdate,
    changes.SetDefaultSortOrderUpdate,
)
"""Updates that name no snapshot: what they depend on is in the requirements, which are checked each time."""


@dataclass(frozen=True)
class PendingCommit:
    """The updates of a table, and their requirements on its present state."""

    requirements: tuple[changes.TableRequirement, ...]
    updates: tuple[changes.TableUpdate, ...]
    rebases: bool = False
    """Whether it may be rebased."""
    draft: Draft | None = None
    """Files that were written for it."""

    def discard(self) -> None:
        """Remove those files: it will not be published. Never raises."""
        if self.draft is not None:
            self.draft.discard()


def pending_commit(
    current: Table,
    requirements: tuple[changes.TableRequirement, ...],
    updates: tuple[changes.TableUpdate, ...],
) -> PendingCommit:
    """The updates for the present table: the same, unless the commit has lost and may be rebased.

    Raises ``CommitFailedException`` if it has lost in a way that pyiceberg would take for a wrong value, and
    :class:`~distop.errors.InvalidArgument` if what it asks for there is not.
    """
    base, snapshot = current.metadata, _append_in(updates)
    if snapshot is None or not _rebases(snapshot, base):
        _check_fresh(updates, base)
        describes = all(isinstance(update, _DESCRIBING) for update in updates)
        return PendingCommit(requirements, updates, rebases=describes)
    if _has_lost(snapshot, base) and _follows(snapshot, base, requirements):
        try:
            return _rebase(current, snapshot, requirements, updates)
        except Exception as error:
            # The program can read its own files, which this process may not: it is refused, and tries again
            # itself.
            log.warning("append_not_rebased", extra={"location": base.location, "error": str(error)})
    _check_fresh(updates, base)
    return PendingCommit(requirements, updates, rebases=True)


def is_same(committed: Snapshot, present: Snapshot) -> bool:
    """Whether the snapshot of a table that has this id is the one that a program commits, perhaps rebased."""
    if committed.manifest_list == present.manifest_list:
        return True
    own = _own(committed.summary)
    return own is not None and own == _own(present.summary)


def _own(summary: Summary | None) -> dict[str, str] | None:
    """What the summary of an append says, without the state of the table; ``None``: it is no append."""
    if summary is None or summary.operation is not Operation.APPEND:
        return None
    properties = summary.additional_properties.items()
    return {
        name: value
        for name, value in properties
        if not name.startswith("total-") and name not in PRODUCT_PROPERTIES
    }


def _rebase(
    current: Table,
    snapshot: Snapshot,
    requirements: tuple[changes.TableRequirement, ...],
    updates: tuple[changes.TableUpdate, ...],
) -> PendingCommit:
    base, io = current.metadata, current.io
    _check_adds_files_only(manifests_of(snapshot, io), snapshot.snapshot_id, base)
    draft = Draft(io, TableFile.of(base, current.metadata_location))
    try:
        made = rebased(draft, [snapshot], snapshot.snapshot_id)
        summary = _summary(snapshot, made)
        again = draft.snapshot(snapshot.snapshot_id, made.manifests, summary, now=time.time())
    except BaseException:
        draft.discard()
        raise
    added = changes.AddSnapshotUpdate(snapshot=again)
    return PendingCommit(
        tuple(requirement for requirement in requirements if not _is_of_main(requirement)),
        tuple(added if isinstance(update, changes.AddSnapshotUpdate) else update for update in updates),
        True,
        draft,
    )


def _check_fresh(updates: Sequence[changes.TableUpdate], base: TableMetadata) -> None:
    """An error that pyiceberg calls a wrong value: the commit lost to one of another branch, and can be
    repeated."""
    if isinstance(base, TableMetadataV1):
        return
    for update in updates:
        if isinstance(update, changes.AddSnapshotUpdate):
            number = update.snapshot.sequence_number or 0
            # Two that replace a table may have one number: none of them follows the other.
            least = base.last_sequence_number + (update.snapshot.parent_snapshot_id is not None)
            if number < least:
                raise CommitFailedException(
                    f"Sequence number {number} was taken by another commit: refresh and try again"
                )


def _append_in(updates: Sequence[changes.TableUpdate]) -> Snapshot | None:
    """The snapshot of a commit that only appends it to the main branch."""
    added = [update.snapshot for update in updates if isinstance(update, changes.AddSnapshotUpdate)]
    moved = [update for update in updates if isinstance(update, changes.SetSnapshotRefUpdate)]
    if len(added) != 1 or len(moved) != 1 or len(updates) != 2:
        return None
    summary, to = added[0].summary, (moved[0].ref_name, moved[0].snapshot_id)
    is_append = summary is not None and summary.operation is Operation.APPEND
    return added[0] if is_append and to == (MAIN_BRANCH, added[0].snapshot_id) else None


def _has_lost(snapshot: Snapshot, base: TableMetadata) -> bool:
    stale = (snapshot.sequence_number or 0) < base.next_sequence_number()
    return stale or snapshot.parent_snapshot_id != base.current_snapshot_id


def _rebases(snapshot: Snapshot, base: TableMetadata) -> bool:
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    check_on_conflict(properties)
    return (properties.get(ON_CONFLICT) or base.properties.get(ON_CONFLICT)) == "rebase"


def _follows(
    snapshot: Snapshot, base: TableMetadata, requirements: Sequence[changes.TableRequirement]
) -> bool:
    """Whether the state that the program has seen is an ancestor of the present one, with the same format and
    columns.

    All snapshots in between are known, and this one is not among them: a request may be repeated.
    """
    if base.format_version != FORMAT_VERSION or snapshot.schema_id != base.current_schema_id:
        return False
    expected = [
        requirement.snapshot_id
        for requirement in requirements
        if isinstance(requirement, changes.AssertRefSnapshotId) and requirement.ref == MAIN_BRANCH
    ]
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in base.snapshots}
    at = base.current_snapshot_id
    while at is not None and at != snapshot.parent_snapshot_id and at in parents:
        at = parents[at]
    return snapshot.snapshot_id not in parents and expected == [snapshot.parent_snapshot_id] == [at]


def _check_adds_files_only(manifests: Sequence[ManifestFile], snapshot_id: int, base: TableMetadata) -> None:
    """Raises ``ValueError`` if a snapshot adds more than data files of the table's partitioning."""
    for manifest in manifests:
        is_adding = manifest.content == ManifestContent.DATA and manifest.deleted_files_count == 0
        if manifest.added_snapshot_id == snapshot_id and not (
            is_adding and manifest.partition_spec_id == base.default_spec_id
        ):
            raise ValueError("it adds more than data files, or files of another partitioning")


def _summary(snapshot: Snapshot, made: Rebased) -> Summary:
    """The program's summary, with the totals of the present table.

    Raises ``ValueError`` if its manifests list other files than its summary.
    """
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    if (count := properties.get(ADDED_DATA_FILES, "0")) != str(made.files):
        raise ValueError(f"it lists {made.files} files, and its summary says {count}")
    own = {name: value for name, value in properties.items() if not name.startswith("total-")}
    return Summary(operation=Operation.APPEND, **{**own, **made.summary.additional_properties})


def _is_of_main(requirement: changes.TableRequirement) -> bool:
    return isinstance(requirement, changes.AssertRefSnapshotId) and requirement.ref == MAIN_BRANCH
