"""Watermarks that a program of Iceberg moves with its commits, so that its rows exist exactly once.

They are properties of the snapshot, ``distop.watermark.<source>.<partition>``, with dots inside of a name
written ``%2E``. They move in the transaction that moves the head, and only forward: a program that
repeats a commit whose reply was lost is refused. A snapshot of a branch carries them
until the branch is published, like a snapshot of an operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from distop.commit.partial import Moves
from distop.errors import AlreadyIngested, InvalidArgument
from distop.lake.iceberg.provenance import (
    PRODUCT_PROPERTIES,
    WATERMARKS_BEFORE,
    moves_of,
    watermark_properties,
)
from distop.lake.iceberg.watermarks import is_after, moved
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import KeyValue, Put, Txn, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import unescape
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import encode_plain
from distop.metastore.records.table import TableRecord, Watermarks
from distop.metastore.records.watermarks import Marks, check_room, position
from distop.metastore.tables.watermarks import make_room, marks_at

PREFIX = "distop.watermark."


def marks_moved(
    etcd: SyncEtcd, record: TableRecord | None, base: TableMetadata | None, updates: Sequence[TableUpdate]
) -> Txn:
    """The watermark moves of a commit: those that its snapshots carry, and those that the snapshots of a
    branch have carried, if the commit makes it part of the main branch.

    The commit's last snapshot then records the moves, so that a rollback can undo them; properties with the
    same names in the snapshot itself are removed. A snapshot of another branch records its future moves, and
    moves nothing: its rows are not visible yet.

    Raises
    ------
    InvalidArgument
        The watermarks are invalid, or the commit creates the table, or no branch holds the snapshots.
    AlreadyIngested
        A watermark would not move forward.
    WatermarkConflict
        A move that a branch carries does not start at the table's present watermark.
    """
    added = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
    for snapshot in added:
        if snapshot.summary is not None:
            for name in PRODUCT_PROPERTIES:
                snapshot.summary.additional_properties.pop(name, None)
    wanted, (branch, goal) = _carried(added), _goal(updates)
    if base is None or record is None:
        if wanted:
            raise InvalidArgument("a commit that makes the table moves no watermarks")
        return Txn()
    if wanted and not branch:
        raise InvalidArgument(
            "watermarks move with the rows of one branch: those of this commit are on none, or on several",
            details={"field": "updates"},
        )
    before = _before(base, added, goal) if wanted or branch == MAIN_BRANCH else []
    carried = [moves for snapshot in reversed(before) if (moves := moves_of(snapshot))]
    if not wanted and (branch != MAIN_BRANCH or not carried):
        return Txn()
    txn, moves = _moving(etcd, etcd.keyspace.table(record.name), record, carried, wanted)
    properties = watermark_properties(moves)
    if branch != MAIN_BRANCH and WATERMARKS_BEFORE not in properties:
        raise InvalidArgument(
            f"a snapshot of branch {branch!r} would have to carry more watermarks than it can",
            details={"field": "updates"},
        )
    for name, value in properties.items():
        assert added[-1].summary is not None
        added[-1].summary[name] = value
    return txn if branch == MAIN_BRANCH else Txn()


def _goal(updates: Iterable[TableUpdate]) -> tuple[str, int | None]:
    """The branch that a commit moves, and its new snapshot; of several, the main one. Without a name: it
    moves none, or several others."""
    goals = {
        update.ref_name: update.snapshot_id
        for update in updates
        if isinstance(update, SetSnapshotRefUpdate) and update.type == SnapshotRefType.BRANCH
    }
    if MAIN_BRANCH in goals:
        return MAIN_BRANCH, goals[MAIN_BRANCH]
    return next(iter(goals.items())) if len(goals) == 1 else ("", None)


def _before(base: TableMetadata, added: Iterable[Snapshot], at: int | None) -> list[Snapshot]:
    """The ancestors of a snapshot that are neither new nor part of the main branch; the newest first."""
    new = {new_one.snapshot_id: new_one for new_one in added}
    known: dict[int, Snapshot] | None = None
    lineage: list[Snapshot] = []
    while at is not None and at != base.current_snapshot_id:
        if (snapshot := new.pop(at, None)) is None:
            if known is None:
                known = {existing.snapshot_id: existing for existing in base.snapshots}
                for live in ancestors_of(base.current_snapshot(), base):
                    known.pop(live.snapshot_id, None)
            if (snapshot := known.pop(at, None)) is None:
                break
            lineage.append(snapshot)
        at = snapshot.parent_snapshot_id
    return lineage


def _carried(added: Iterable[Snapshot]) -> Watermarks:
    """The watermarks of the snapshots of a commit."""
    watermarks: Watermarks = {}
    summaries = [snapshot.summary.additional_properties for snapshot in added if snapshot.summary is not None]
    for name, value in ((name, value) for properties in summaries for name, value in properties.items()):
        if not name.startswith(PREFIX):
            continue
        source, _, partition = name.removeprefix(PREFIX).partition(".")
        if not source or not partition or "." in partition or not value:
            raise InvalidArgument(
                f"{name!r} moves no watermark",
                hint=f"write {PREFIX}SOURCE.PARTITION, with dots in either written %2E, and a value",
                details={"field": name},
            )
        watermarks.setdefault(unescape(source), {})[unescape(partition)] = value
    check_room(watermarks)
    return watermarks


def _moving(
    etcd: SyncEtcd, keys: TableKeys, record: TableRecord, carried: Sequence[Moves], wanted: Watermarks
) -> tuple[Txn, Moves]:
    """The transaction part that moves watermarks of a table, if they are still as read: first to what
    snapshots have carried, then to the requested values; and the moves of the latter."""
    room = [
        wanted,
        *({source: list(moves) for source, moves in of_snapshot.items()} for of_snapshot in carried),
    ]

    async def read(client: EtcdClient) -> tuple[KeyValue, Marks]:
        await make_room(client, keys, len(encode_plain(room)))
        present = await client.get_range(keys.watermarks, b"")
        kv = present.kvs[0] if present.kvs else KeyValue.missing(keys.watermarks)
        return kv, marks_at(client, record, kv, present.revision)

    present, marks = etcd.run(read)
    for moves_of_snapshot in carried:
        marks = moved(marks, moves_of_snapshot)
    marks.chunks.know(position(source, partition) for source, to in wanted.items() for partition in to)
    moves: Moves = {}
    for source, partitions in wanted.items():
        for partition, value in partitions.items():
            at = marks.value(source, partition)
            moves.setdefault(source, {})[partition] = WatermarkMove(before=at, after=value)
            if at is not None and not is_after(value, at):
                raise AlreadyIngested(
                    f"watermark {source!r}/{partition!r} is at {at!r}: {value!r} was committed before",
                    details={"source": source, "partition": partition, "present": at, "after": value},
                )
    return Txn((unchanged(present),), (Put(keys.watermarks, marks.then(wanted).encoded()),)), moves
