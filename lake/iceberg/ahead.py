"""What a table's storage holds that its head does not know, after etcd was restored from a backup.

The metadata files published after the backup still exist. Each names its predecessors, so the chain from the
head to the newest one can be followed, and its snapshots say what was done. Files that were prepared and
never published exist, too: no other file was built on them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ADDED_RECORDS, Snapshot

from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.iceberg import provenance
from distop.lake.iceberg.metadata_files import Lineage, lineage_of
from distop.lake.layout.model import load_metadata
from distop.lake.storage.storage import StorageOptions, entries
from distop.metastore.records.record import from_json
from distop.metastore.records.table import Watermarks

MAX_READ = 5000
"""Most metadata files that are examined, the newest; a table that keeps its log has some hundred."""

_VERSION = re.compile(r"v?(\d+)[-.]")
_SUFFIXES = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")


class Unclear(PreconditionFailed):
    """The table's files do not show what was published after the backup."""

    code = "RESTORE_UNCLEAR"


@dataclass(frozen=True, kw_only=True)
class AheadSnapshot:
    """The provenance of a snapshot that the head does not know."""

    snapshot_id: int
    at: float
    """Seconds since the Unix epoch."""
    on_main: bool = True
    """Whether the table itself has it, and not only a branch."""
    rows: int = 0
    operation: str = ""
    """Empty: another program made it."""
    uuid: str = ""
    started_by: str = ""
    batches: tuple[str, ...] = ()
    unordered: str = ""
    request: provenance.Request | None = None


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """The newest published metadata of a table, and what was done since its head."""

    location: str
    snapshot_id: int | None
    publications: tuple[AheadSnapshot, ...] = ()
    """The oldest first."""
    watermarks: Watermarks
    """The final watermarks of the main branch."""
    doubts: tuple[str, ...] = ()
    """What cannot be determined."""


@dataclass(frozen=True)
class _File:
    name: str
    version: int
    lineage: Lineage


def find_ahead(
    location: str,
    uuid: str,
    head: str,
    head_snapshot: int | None,
    storage: StorageOptions | None = None,
    *,
    anew: bool = False,
    choose: Collection[str] = (),
) -> Ahead | None:
    """What was published to a table after its head; ``None`` if nothing was. Blocking.

    Parameters
    ----------
    location, uuid:
        Of the table.
    head, head_snapshot:
        Location of the metadata that etcd names, and the snapshot; empty: none.
    anew:
        Nothing is known about the head's own snapshots, since the table was registered just now.
    choose:
        Metadata files that the operator says were published, where that cannot be determined.

    Raises
    ------
    Unclear
        The last published metadata file cannot be determined; or the files are another table's, or are gone.
    """
    try:
        base = load_metadata(head, storage=storage) if head else None
    except CorruptRecord:
        base = None
    uuid = str(base.table_uuid) if base is not None else uuid
    folder = head.rpartition("/")[0] if head else f"{location}/metadata"
    newer = list(_newer(folder, head.rpartition("/")[2], storage))
    own = [file for file in newer if _plain(file.lineage.table_uuid) == _plain(uuid)]
    if not own and (base is None and (head or newer)):
        raise Unclear(
            f"the metadata of table uuid {uuid} is gone from {folder}"
            + (", where another table's is" if newer else ""),
            hint="was the table dropped after the backup? then drop it again, without purging",
        )
    tip = _tip(own, head, base, set(choose)) if own else None
    if tip is None and not anew:
        return None
    where = f"{folder}/{tip.name}" if tip is not None else head
    metadata = load_metadata(where, storage=storage)
    earlier = [f"{folder}/{file.name}" for file in own if file is not tip]
    if anew:
        base, head_snapshot = None, None
    return _ahead(where, metadata, base, head_snapshot, earlier, storage)


def _newer(folder: str, head: str, storage: StorageOptions | None) -> Iterator[_File]:
    """The metadata files with a higher version than the head; only the newest, if there are many."""
    names = [entry.name for entry in entries(folder, storage) if entry.name.endswith(_SUFFIXES)]
    # pyiceberg and distop count the successors of such a file, v12.metadata.json, from zero.
    least = -1 if head.startswith("v") else _version(head)
    newer = sorted(((_version(name), name) for name in names if name != head), reverse=True)
    for version, name in newer[:MAX_READ]:
        if version > least:
            try:
                yield _File(name, version, lineage_of(f"{folder}/{name}", storage))
            except CorruptRecord:
                continue  # incomplete, so never published


def _plain(uuid: str) -> str:
    return uuid.replace("-", "").lower()


def _version(name: str) -> int:
    match = _VERSION.match(name)
    return int(match[1]) if match else -1


def _tip(own: Sequence[_File], head: str, base: TableMetadata | None, choose: set[str]) -> _File | None:
    """The last published one; ``None`` if none follows the head."""
    name = head.rpartition("/")[2]
    followed = {earlier for file in own for earlier in file.lineage.earlier}
    # Of several built on the same file only one was published: the one that others follow, if any do.
    built_on = {_base(file) for file in own if file.name in followed}
    leaves = [file for file in own if file.name not in followed and _base(file) not in built_on]
    known = {name}
    for candidate in sorted(own, key=lambda file: file.version):
        # Without the head's own file the table's uuid must do: it was removed since others have followed it.
        if not head or base is None or known.intersection(candidate.lineage.earlier):
            known.add(candidate.name)
    leaves = [file for file in leaves if file.name in known]
    leaves = [file for file in leaves if file.name in choose] or leaves
    if len({file.lineage.current_snapshot_id for file in leaves}) > 1:
        raise Unclear(
            f"it is unclear which of these was published last: {', '.join(map(_named, leaves))}",
            hint="compare them; then name the one that readers have seen: --published FILE",
        )
    return max(leaves, key=lambda file: (file.version, file.lineage.last_updated_ms), default=None)


def _base(file: _File) -> str:
    return file.lineage.earlier[-1] if file.lineage.earlier else ""


def _named(file: _File) -> str:
    return f"{file.name} (snapshot {file.lineage.current_snapshot_id})"


# -- what was done -----------------------------------------------------------------------------------


def _ahead(
    where: str,
    metadata: TableMetadata,
    base: TableMetadata | None,
    start: int | None,
    earlier: list[str],
    storage: StorageOptions | None,
) -> Ahead:
    """``start``: the snapshot up to which everything is known."""
    snapshots = {
        snapshot.snapshot_id: snapshot
        for of in (base, metadata)
        if of is not None
        for snapshot in of.snapshots
    }

    def lineage() -> tuple[list[Snapshot], bool]:
        """The ancestors of the present snapshot, the newest first; and whether they reach back to the
        start."""
        ancestors = list(_ancestors(metadata.current_snapshot_id, snapshots))
        return ancestors, any(ancestor.snapshot_id == start for ancestor in ancestors)

    main, whole = lineage()
    while not whole and earlier:
        # Some have expired since, and their successors name no parent any more; older metadata does.
        for older in load_metadata(earlier.pop(0), storage=storage).snapshots:
            if older.snapshot_id not in snapshots or older.parent_snapshot_id is not None:
                snapshots[older.snapshot_id] = older
        main, whole = lineage()
    here = {ancestor.snapshot_id for ancestor in main}
    known = {ancestor.snapshot_id for ancestor in _ancestors(start, snapshots)}
    doubts = []
    if start is not None and known & here and not whole:
        doubts.append("the table was rolled back; it is unknown whether its watermarks were, too")
    elif not whole and (start is not None or (main and main[-1].parent_snapshot_id is not None)):
        doubts.append("snapshots made after the backup have expired; what they did is unknown")
    watermarks: Watermarks = {}
    for snapshot in reversed(main):
        if snapshot.snapshot_id in known:
            continue
        try:
            moves = provenance.moves_of(snapshot)
        except PreconditionFailed as error:
            doubts.append(error.message)
            continue
        for source, partitions in moves.items():
            watermarks.setdefault(source, {}).update({name: move.after for name, move in partitions.items()})
    # A branch that the head knows may have been published since.
    known |= {snapshot.snapshot_id for snapshot in base.snapshots} - here if base is not None else set()
    new = sorted(
        (snapshot for snapshot in snapshots.values() if snapshot.snapshot_id not in known),
        key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms),
    )
    return Ahead(
        location=where,
        snapshot_id=metadata.current_snapshot_id,
        publications=tuple(_publication(snapshot, on_main=snapshot.snapshot_id in here) for snapshot in new),
        watermarks=watermarks,
        doubts=tuple(doubts),
    )


def _ancestors(start: int | None, snapshots: dict[int, Snapshot]) -> Iterator[Snapshot]:
    passed: set[int] = set()
    while start is not None and start in snapshots and start not in passed:
        passed.add(start)
        yield snapshots[start]
        start = snapshots[start].parent_snapshot_id


def _publication(snapshot: Snapshot, *, on_main: bool) -> AheadSnapshot:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    try:
        batches = from_json(properties.get(provenance.BATCHES, "[]").encode(), list[str])
        request = (
            from_json(properties[provenance.REQUEST].encode(), provenance.Request)
            if provenance.REQUEST in properties
            else None
        )
    except msgspec.MsgspecError as error:
        raise Unclear(f"the summary of snapshot {snapshot.snapshot_id} cannot be read: {error}") from error
    rows = properties.get(ADDED_RECORDS, "")
    return AheadSnapshot(
        snapshot_id=snapshot.snapshot_id,
        at=snapshot.timestamp_ms / 1000,
        on_main=on_main,
        rows=int(rows) if rows.isascii() and rows.isdecimal() else 0,
        operation=properties.get(provenance.OPERATION, ""),
        uuid=properties.get(provenance.UUID, ""),
        started_by=properties.get(provenance.STARTED_BY, ""),
        batches=tuple(batches),
        unordered=properties.get(provenance.UNORDERED, ""),
        request=request,
    )
