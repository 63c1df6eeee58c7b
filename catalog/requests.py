"""Commits of programs of Iceberg that are sent again: each takes effect once.

The snapshot of a commit that has happened is in the table, under an id that no other snapshot has. If it were
refused, a program would commit the same rows on top, or remove files of an attempt that it takes for failed:
Iceberg's Java library sends a commit again where a gateway answers 503 (1.9: at 502 and 504, too).

A program that writes its rows again makes another snapshot. For that there are request ids: the property
``distop.request-id`` of the snapshot, stored in etcd like those of operations, in the transaction that moves
the head. The second commit under an id gets the answer that it is done: its files belong to no snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Identifier

from distop.catalog.pointers import FOREIGN
from distop.catalog.rebasing import is_same
from distop.errors import DistopError, InvalidArgument, RequestIdReused
from distop.lake.iceberg.provenance import FOREIGN_REQUEST, difference_of_rollback
from distop.metastore.backlog.undoing import effective_operation, rollback_txn
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Txn
from distop.metastore.operations.starting import done_otherwise, forget_requests
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, check_name
from distop.metastore.records.operation import RequestRecord
from distop.metastore.records.record import decode

Change = tuple[Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""Of one table: what must hold of it, and what becomes of it."""


def came_before(tables: Sequence[Table | None], changes: Sequence[Change]) -> bool:
    """Whether a request has happened: it adds snapshots, and all of them are in the tables, in the branches
    that it has them in. Then all that it asks for besides has happened, too, in the same transaction."""
    added = 0
    for table, (_, _, updates) in zip(tables, changes, strict=True):
        snapshots = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
        if snapshots and (table is None or not _holds(table.metadata, snapshots, updates)):
            return False
        added += len(snapshots)
    return added > 0


def _holds(base: TableMetadata, snapshots: Iterable[Snapshot], updates: Iterable[TableUpdate]) -> bool:
    added = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    there = {snapshot.snapshot_id: snapshot for snapshot in base.snapshots if snapshot.snapshot_id in added}
    if len(there) < len(added) or not all(
        is_same(snapshot, there[number]) for number, snapshot in added.items()
    ):
        return False
    moved = [
        update
        for update in updates
        if isinstance(update, SetSnapshotRefUpdate) and update.snapshot_id in added
    ]
    return all(update.snapshot_id in _history(base, update.ref_name) for update in moved)


def _history(base: TableMetadata, ref: str) -> set[int]:
    """The snapshots that a branch is made of; of the main one also what was rolled back since."""
    made_of = {snapshot.snapshot_id for snapshot in ancestors_of(base.snapshot_by_name(ref), base)}
    return made_of | {entry.snapshot_id for entry in base.snapshot_log} if ref == MAIN_BRANCH else made_of


def request_of(updates: Iterable[TableUpdate]) -> str:
    """The request id of a commit; empty if it has none. Raises :class:`~distop.errors.InvalidArgument`."""
    summaries = [update.snapshot.summary for update in updates if isinstance(update, AddSnapshotUpdate)]
    given = {
        summary.additional_properties.get(FOREIGN_REQUEST, "") for summary in summaries if summary is not None
    } - {""}
    if len(given) > 1:
        raise InvalidArgument(
            "the snapshots of one commit have several request ids", details={"field": FOREIGN_REQUEST}
        )
    return check_name(given.pop(), FOREIGN_REQUEST) if given else ""


def rollback_share(etcd: SyncEtcd, keys: TableKeys, before: TableMetadata, after: TableMetadata) -> Txn:
    """The part of a commit that moves the main branch to a snapshot that existed before, as a rollback does:
    what is gone from the table counts as applied no more."""
    known = before.snapshot_by_id(after.current_snapshot_id or 0)
    if known is None or after.current_snapshot_id == before.current_snapshot_id:
        return Txn()
    undoes, by = difference_of_rollback(before, known), str(OperationId(keys.name, FOREIGN, 0))
    return etcd.run(lambda client: rollback_txn(client, keys, undoes, by=by, now=time.time()))


def is_done(etcd: SyncEtcd, keys: TableKeys, request_id: str, metadata: TableMetadata) -> bool:
    """Whether a commit under this id has happened: the table's history shows it, also after etcd was restored
    or the table renamed; where its snapshot has expired, the key does.

    Raises :class:`~distop.errors.RequestIdReused` if it was an operation's, and
    :class:`~distop.errors.RolledBack` if its rows are gone.
    """
    history = ancestors_of(metadata.current_snapshot(), metadata)
    summaries = (
        snapshot.summary.additional_properties for snapshot in history if snapshot.summary is not None
    )
    if any(summary.get(FOREIGN_REQUEST) == request_id for summary in summaries):
        return True
    kv = etcd.get(keys.request(request_id))
    if not kv.exists:
        return False
    record = decode(kv.value, RequestRecord, kv.key)
    etcd.run(lambda client: effective_operation(client, keys, request_id, record))
    if record.digest != FOREIGN:
        raise RequestIdReused(
            f"request id {request_id!r} was used for {record.operation}", details={"field": FOREIGN_REQUEST}
        )
    return True


def noting(etcd: SyncEtcd, keys: TableKeys, request_id: str) -> Txn:
    """The writes that note the id, if it is unused. The table may have no leader, so old ids are removed
    here."""
    now = time.time()
    with suppress(DistopError):
        etcd.run(lambda client: forget_requests(client, keys, now))
    return done_otherwise(keys, request_id, OperationId(keys.name, FOREIGN, 0), FOREIGN, now)
