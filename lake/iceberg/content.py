"""What a table holds at present, as far as modes depend on it."""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot

from distop.commit.contract import FinishContext
from distop.errors import TableNotEmpty
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import file_io
from distop.lake.storage.storage import StorageOptions
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head

IGNORE = "ignore"
MAX_REPLACEMENTS = 1000
"""Most snapshots in a row that are examined."""
MAX_LINEAGE = 10_000
"""Most snapshots that are examined for the one that removed a file."""
SHOWN = 20
"""Most snapshots, and partitions, that facts and errors name."""


def is_live(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def data_of(file: TableFile, io: FileIO) -> Snapshot | None:
    """The present snapshot, if it holds any file; ``None`` if the table has no data."""
    snapshot = file.metadata.current_snapshot()
    if snapshot is None:
        return None
    return snapshot if any(is_live(manifest) for manifest in snapshot.manifests(io)) else None


def data_at(head: Head | None, storage: StorageOptions | None = None) -> Snapshot | None:
    """The same for the table with this head."""
    if head is None:
        return None
    file = TableFile.read(head.metadata_location, storage)
    metadata = file.metadata
    return data_of(file, file_io(metadata.location, storage))


def other_partitioning(head: Head, storage: StorageOptions | None = None) -> bool:
    """Whether the table holds files of another partitioning than its present one."""
    metadata = TableFile.read(head.metadata_location, storage=storage).metadata
    snapshot = metadata.current_snapshot()
    if snapshot is None or len(metadata.partition_specs) == 1:
        return False
    manifests = snapshot.manifests(file_io(metadata.location, storage))
    return any(
        is_live(manifest) and manifest.partition_spec_id != metadata.default_spec_id for manifest in manifests
    )


def only_replaced(file: TableFile, snapshot: Snapshot | None, since: int | None) -> bool:
    """Whether a snapshot has the same rows as an earlier one: only replacements came after it.

    Parameters
    ----------
    since:
        Id of that snapshot; ``None``: before the first one.
    """
    return _only(Operation.REPLACE, file, snapshot, since)


def only_appended(file: TableFile, snapshot: Snapshot | None, since: int | None) -> bool:
    """Whether a snapshot has all files of an earlier one: nothing but appends came after it."""
    return _only(Operation.APPEND, file, snapshot, since)


def _only(kind: Operation, file: TableFile, snapshot: Snapshot | None, since: int | None) -> bool:
    if since is None:
        return snapshot is None
    for _ in range(MAX_REPLACEMENTS):
        if snapshot is None or snapshot.snapshot_id == since:
            return snapshot is not None
        if snapshot.summary is None or snapshot.summary.operation != kind:
            return False
        parent = snapshot.parent_snapshot_id
        if parent == since:
            return True
        # Nothing is known of expired snapshots, the parent included.
        snapshot = None if parent is None else file.snapshot(parent)
    return False


def removers(file: TableFile, current: Snapshot | None, since: str | None) -> list[Snapshot]:
    """The snapshots since another one that may have removed something, the newest first.

    The present one, if that is unknown since snapshots between have expired.
    """
    removing = []
    snapshot = current
    for _ in range(MAX_LINEAGE):
        if snapshot is None or str(snapshot.snapshot_id) == since:
            break
        if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND:
            removing.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else file.snapshot(parent)
    return removing[:SHOWN] or ([current] if current is not None else [])


def is_ignored(context: FinishContext) -> bool:
    """Whether an operation must change nothing, watermarks included.

    The mode ``ignore`` asks for this when the table holds data by then. All steps of an operation must come
    to the same answer: all see the same head, and the transaction compares it.
    """
    arg = context.view.arg
    if arg.argument.get("mode") != IGNORE or context.table.format != "iceberg":
        return False
    if arg.argument.get("ignored"):
        return True
    head = decode(context.head.value, Head, context.head.key) if context.head.exists else None
    return data_at(head, arg.storage) is not None


def not_empty(table: str, current: Snapshot) -> TableNotEmpty:
    """The error for a table that must be empty and is not."""
    by = writer_of(current)
    return TableNotEmpty(
        f"table {table!r} already holds data: snapshot {current.snapshot_id}, written by {by}",
        hint="append to it, or overwrite what is there",
        details={"table": table, "snapshot": str(current.snapshot_id), "by": by},
    )


def named(snapshot_id: int | None) -> str:
    """A snapshot, or its absence, for use in a sentence."""
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


def writer_of(snapshot: Snapshot | None) -> str:
    """Who wrote a snapshot: an operation of distop, or ``another program``."""
    by = snapshot.summary["distop.operation"] if snapshot is not None and snapshot.summary else None
    return str(by or "another program")
