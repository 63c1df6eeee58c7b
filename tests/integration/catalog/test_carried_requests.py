"""Commits of other programs that name a run: each is done once."""

import time

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.errors import InvalidName, RunReused
from distop.lake.iceberg.provenance import done_by
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from distop.metastore.operations.starting import forget_requests
from distop.metastore.records.operation import RequestRecord
from distop.metastore.records.record import encode
from distop.metastore.tables.watermarks import read_marks
from support.etcd.lossy import Fault
from support.tables.catalogs import SCHEMA, faulty, ids, ids_in, keys_of

REQUEST = {"distop.run": "day 1"}


def test_a_commit_that_comes_again_is_answered_and_not_done(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """C8: also by who loaded the table before the first time, and after other commits."""
    table = catalog.create_table("default.t", SCHEMA)
    early = catalog.load_table("default.t")
    table.append(ids(0, 2), snapshot_properties=REQUEST)
    keys = keys_of(store, "t")
    assert store.get(keys.request("day 1")).mod_revision == store.get(keys.head).mod_revision
    table.append(ids(2, 1))
    at = store.get(keys.head).mod_revision
    early.append(ids(0, 2), snapshot_properties=REQUEST)
    catalog.load_table("default.t").append(ids(0, 2), snapshot_properties=REQUEST)
    assert ids_in(catalog, "t") == [0, 1, 2]
    assert store.get(keys.head).mod_revision == at
    table.refresh().append(ids(3, 1), snapshot_properties={"distop.run": "day 2"})
    assert ids_in(catalog, "t") == [0, 1, 2, 3]


def test_a_commit_whose_reply_is_lost_leaves_rows_and_watermarks_once(
    catalog: EtcdCatalog, store: SyncEtcd
) -> None:
    """C8, P8: neither rows nor watermarks."""
    table = catalog.create_table("default.t", SCHEMA)
    for number, told in enumerate((REQUEST, {"distop.watermark.orders.0": "1"})):
        faulty(catalog, Fault.LOST_REPLY)
        table.append(ids(number, 1), snapshot_properties=told)
    catalog.load_table("default.t").append(ids(0, 1), snapshot_properties=REQUEST)
    assert ids_in(catalog, "t") == [0, 1]
    found, _ = store.run(lambda client: read_marks(client, keys_of(store, "t")))
    assert found["orders"]["0"] == "1"


@pytest.mark.parametrize("again", ["distop.run", "distop.request-id"])
def test_a_run_under_the_property_of_release_0_2_0_is_done_once(
    catalog: EtcdCatalog, store: SyncEtcd, again: str
) -> None:
    """C8: programs are changed after the coordinators; also where only the table's history knows the run."""
    table = catalog.create_table("default.t", SCHEMA)
    table.append(ids(0, 1), snapshot_properties={"distop.request-id": "day 1"})
    key = keys_of(store, "t").request("day 1")
    assert store.get(key).exists
    catalog.load_table("default.t").append(ids(0, 1), snapshot_properties={again: "day 1"})
    store.txn(Txn(then=(DeleteRange(key),)))
    catalog.load_table("default.t").append(ids(0, 1), snapshot_properties={again: "day 1"})
    assert ids_in(catalog, "t") == [0]
    current = catalog.load_table("default.t").metadata.current_snapshot()
    assert current is not None
    assert done_by([current]).requests.keys() == {"day 1"}


def test_a_run_is_of_one_table_which_may_be_made_with_its_first_rows(catalog: EtcdCatalog) -> None:
    for name in ("default.t", "default.u"):
        with catalog.create_table_transaction(name, SCHEMA) as transaction:
            transaction.append(ids(0, 1), snapshot_properties=REQUEST)
        catalog.load_table(name).append(ids(0, 1), snapshot_properties=REQUEST)
        assert ids_in(catalog, name) == [0]


def test_a_run_that_an_operation_has_had_is_refused(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    table = catalog.create_table("default.t", SCHEMA)
    keys = keys_of(store, "t")
    record = RequestRecord(operation="t/ingest/1", digest="of its body")
    store.txn(Txn(then=(Put(keys.request("day 1"), encode(record)),)))
    with pytest.raises(RunReused, match="t/ingest/1"):
        table.append(ids(0, 1), snapshot_properties=REQUEST)
    with pytest.raises(InvalidName):
        table.append(ids(0, 1), snapshot_properties={"distop.run": "x" * 2000})
    assert ids_in(catalog, "t") == []


def test_a_run_is_forgotten_in_time(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O9: as those of operations are."""
    catalog.create_table("default.t", SCHEMA).append(ids(0, 1), snapshot_properties=REQUEST)
    keys = keys_of(store, "t")
    assert store.run(lambda client: forget_requests(client, keys, time.time() + 6 * 86_400)) == 0
    assert store.run(lambda client: forget_requests(client, keys, time.time() + 8 * 86_400)) == 1
    assert not store.get(keys.request("day 1")).exists
