"""Request ids of commits by programs of Iceberg: a repeated commit takes effect once.

The id is the property ``distop.request-id`` of the snapshot. It is stored in etcd like those of operations,
and is written in the transaction that moves the head. A program that lost the reply writes the rows again,
commits them under the same id, and gets the answer that it is done: its second files belong to no
snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate

from distop.commit.catalog.pointer import FOREIGN
from distop.errors import DistopError, InvalidArgument, RequestIdReused
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Txn
from distop.metastore.operations.requests import done_otherwise, forget
from distop.metastore.records.keyspace import OperationId, TableKeys
from distop.metastore.records.names import check_name
from distop.metastore.records.operation import RequestRecord
from distop.metastore.records.record import decode

PROPERTY = "distop.request-id"


def request_of(updates: Iterable[TableUpdate]) -> str:
    """The request id of a commit; empty if it has none. Raises :class:`~distop.errors.InvalidArgument`."""
    summaries = [update.snapshot.summary for update in updates if isinstance(update, AddSnapshotUpdate)]
    given = {told.additional_properties.get(PROPERTY, "") for told in summaries if told is not None} - {""}
    if len(given) > 1:
        raise InvalidArgument(
            "the snapshots of one commit have several request ids", details={"field": PROPERTY}
        )
    return check_name(given.pop(), PROPERTY) if given else ""


def is_done(etcd: SyncEtcd, keys: TableKeys, request_id: str) -> bool:
    """Whether a commit under this id has happened.

    Raises :class:`~distop.errors.RequestIdReused` if it was an operation's.
    """
    kv = etcd.get(keys.request(request_id))
    if not kv.exists:
        return False
    record = decode(kv.value, RequestRecord, kv.key)
    if record.digest != FOREIGN:
        raise RequestIdReused(
            f"request id {request_id!r} was used for {record.operation}", details={"field": PROPERTY}
        )
    return True


def noting(etcd: SyncEtcd, keys: TableKeys, request_id: str) -> Txn:
    """The writes that note the id, if it is unused. The table may have no leader, so old ids are removed
    here."""
    now = time.time()
    with suppress(DistopError):
        etcd.run(lambda client: forget(client, keys, now))
    return done_otherwise(keys, request_id, OperationId(keys.name, FOREIGN, 0), FOREIGN, now)
