"""Rules of a table, and programs that commit rows which nobody has checked."""

from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate

from distop.catalog.catalog import EtcdCatalog
from distop.errors import InvalidArgument
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from support.tables.catalogs import SCHEMA, ids, ids_in, keys_of


def with_rules(catalog: EtcdCatalog, store: SyncEtcd, checks: Any) -> Table:
    """A table of two rows that gets rules."""
    table = catalog.create_table("default.t", SCHEMA)
    table.append(ids(0, 2))
    key = keys_of(store, "t").table
    record = decode(store.get(key).value, TableRecord, key)
    record.options = {**record.options, "checks": checks}
    store.txn(Txn(then=(Put(key, encode(record)),)))
    return table.refresh()


def test_rows_that_nobody_has_checked_do_not_come_in(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """Neither appended, nor in place of others, nor by a branch that becomes main."""
    table = with_rules(catalog, store, {"rules": ["id >= 0"]})
    first = table.metadata.snapshots[0]
    for write in (table.append, table.overwrite):
        with pytest.raises(InvalidArgument, match="must keep rules"):
            write(ids(5, 1))
    table.manage_snapshots().create_branch(first.snapshot_id, "side").commit()
    table.append(ids(7, 1), branch="side")
    side = table.refresh().metadata.refs["side"].snapshot_id
    with pytest.raises(InvalidArgument, match="publish it"):
        table.manage_snapshots().set_current_snapshot(side).commit()
    assert ids_in(catalog, "t") == [0, 1]


@pytest.mark.parametrize("operation", [Operation.OVERWRITE, Operation.DELETE])
def test_a_summary_without_counts_brings_in_nothing(
    catalog: EtcdCatalog, store: SyncEtcd, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    """Some programs write none. What counts is in the manifests."""
    table = with_rules(catalog, store, {"rules": ["id >= 0"]})
    commit_table = catalog.commit_table

    def told_little(on: Table, requirements: Any, updates: Any) -> Any:
        bare = {"summary": Summary(operation=operation)}
        told = (
            AddSnapshotUpdate(snapshot=one.snapshot.model_copy(update=bare))
            if isinstance(one, AddSnapshotUpdate)
            else one
            for one in updates
        )
        return commit_table(on, requirements, tuple(told))

    monkeypatch.setattr(table.catalog, "commit_table", told_little)
    with pytest.raises(InvalidArgument, match="must keep rules"):
        table.append(ids(5, 1))
    assert ids_in(catalog, "t") == [0, 1]


def test_a_commit_that_adds_no_rows_needs_no_check(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """Deletes of whole files, properties, and a way back to an earlier snapshot."""
    table = with_rules(catalog, store, ["id >= 0"])
    first = table.metadata.snapshots[0]
    with table.transaction() as transaction:
        transaction.set_properties(a="b")
    table.delete("id >= 0")
    assert ids_in(catalog, "t") == []
    table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    assert ids_in(catalog, "t") == [0, 1]


def test_rules_that_are_only_reported_keep_nobody_out(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    table = with_rules(catalog, store, {"rules": ["id >= 0"], "report_only": True})
    table.append(ids(2, 1))
    assert ids_in(catalog, "t") == [0, 1, 2]
