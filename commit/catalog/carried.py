"""Watermarks that a program of Iceberg moves with what it commits, so that its rows are there exactly once.

They are properties of the snapshot, ``distop.watermark.<source>.<partition>``, with dots inside of a name
written ``%2E``. They move in the transaction that moves the head, and only forward: a program that commits
the same rows again, since it never heard of the first time, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from distop.commit.iceberg.provenance import OURS, watermarks_told
from distop.commit.iceberg.watermarks import is_after
from distop.commit.steps.partial import Moves
from distop.errors import AlreadyIngested, InvalidArgument
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import KeyValue, Put, Txn, unchanged
from distop.metastore.records.components import unescape
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import encode_plain
from distop.metastore.records.table import TableRecord, Watermarks
from distop.metastore.records.watermark_chunks import position
from distop.metastore.records.watermarks import Marks, check_room
from distop.metastore.tables.watermarks import make_room, marks_at

PREFIX = "distop.watermark."


def marks_moved(etcd: SyncEtcd, record: TableRecord | None, updates: Sequence[TableUpdate]) -> Txn:
    """What moves the watermarks of a table that a commit carries. Its last snapshot then says what that is,
    so that a rollback can take it back; what a snapshot says by such names of its own is left out.

    Raises
    ------
    InvalidArgument
        That cannot be, the table is to be made, or the watermarks are on a branch: its rows are not seen yet.
    AlreadyIngested
        One would not go forward.
    """
    for update in updates:
        if isinstance(update, AddSnapshotUpdate) and update.snapshot.summary is not None:
            for name in OURS:
                update.snapshot.summary.additional_properties.pop(name, None)
    if not (marks := _carried(updates)):
        return Txn()
    if record is None:
        raise InvalidArgument("a commit that makes the table moves no watermarks")
    txn, told = _moving(etcd, etcd.keyspace.table(record.name), record, marks)
    last = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)][-1]
    assert last.summary is not None
    for name, value in told.items():
        last.summary[name] = value
    return txn


def _carried(updates: Iterable[TableUpdate]) -> Watermarks:
    """What the snapshots of a commit say of watermarks."""
    found: Watermarks = {}
    adds, refs = [], set()
    for update in updates:
        if isinstance(update, AddSnapshotUpdate) and update.snapshot.summary is not None:
            adds.append(update.snapshot.summary.additional_properties)
        elif isinstance(update, SetSnapshotRefUpdate):
            refs.add(update.ref_name)
    for name, value in ((name, value) for properties in adds for name, value in properties.items()):
        if not name.startswith(PREFIX):
            continue
        source, _, partition = name.removeprefix(PREFIX).partition(".")
        if not source or not partition or "." in partition or not value:
            raise InvalidArgument(
                f"{name!r} moves no watermark",
                hint=f"write {PREFIX}SOURCE.PARTITION, with dots in either written %2E, and a value",
                details={"field": name},
            )
        found.setdefault(unescape(source), {})[unescape(partition)] = value
    if found and MAIN_BRANCH not in refs:
        raise InvalidArgument(
            "watermarks move with the main branch: the rows of this commit are not seen there",
            details={"field": "updates"},
        )
    check_room(found)
    return found


def _moving(
    etcd: SyncEtcd, keys: TableKeys, record: TableRecord, wanted: Watermarks
) -> tuple[Txn, dict[str, str]]:
    """What moves watermarks of a table, if they are still as read; and what the snapshot is to say of it."""

    async def read(client: EtcdClient) -> tuple[KeyValue, Marks]:
        await make_room(client, keys, len(encode_plain(wanted)))
        standing = await client.get_range(keys.watermarks, b"")
        kv = standing.kvs[0] if standing.kvs else KeyValue.missing(keys.watermarks)
        return kv, marks_at(client, record, kv, standing.revision)

    standing, marks = etcd.run(read)
    marks.chunks.know(position(source, partition) for source, to in wanted.items() for partition in to)
    moves: Moves = {}
    for source, partitions in wanted.items():
        for partition, value in partitions.items():
            at = marks.value(source, partition)
            moves.setdefault(source, {})[partition] = WatermarkMove(before=at, after=value)
            if at is not None and not is_after(value, at):
                raise AlreadyIngested(
                    f"watermark {source!r}/{partition!r} stands at {at!r}: {value!r} was committed before",
                    details={"source": source, "partition": partition, "present": at, "after": value},
                )
    txn = Txn((unchanged(standing),), (Put(keys.watermarks, marks.then(wanted).encoded()),))
    return txn, watermarks_told(moves)
