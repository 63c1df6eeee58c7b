"""What is done through the catalog stands in the audit trail."""

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.record import decode
from distop.metastore.records.table import AuditRecord
from distop.proto.identity import default_identity
from support.etcd.lossy import Fault
from support.tables.catalogs import SCHEMA, faulty, keys_of


def trail(store: SyncEtcd, prefix: bytes) -> list[tuple[str, str]]:
    entries = [decode(kv.value, AuditRecord) for kv in store.scan(prefix).kvs]
    assert {entry.by for entry in entries} <= {default_identity()}
    return [(entry.action, entry.target) for entry in entries]


def test_every_change_of_tables_and_namespaces_is_recorded(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U2: in the transaction that makes it, once, also when a reply is lost; by whom."""
    audit = store.keyspace.audit_prefix
    faulty(catalog, Fault.LOST_REPLY)
    catalog.create_namespace("ny", {"a": "b"})
    catalog.update_namespace_properties("ny", updates={"a": "c"})
    faulty(catalog, Fault.LOST_REPLY)
    table = catalog.create_table("flights", SCHEMA)
    faulty(catalog, Fault.LOST_REPLY)
    catalog.rename_table("flights", "ny.flights")
    renamed = keys_of(store, "ny.flights").audit_prefix
    assert sorted(trail(store, renamed)) == [("create-table", "flights"), ("rename-table", "ny.flights")]
    faulty(catalog, Fault.LOST_REPLY)
    catalog.drop_table("ny.flights")
    catalog.drop_namespace("ny")
    catalog.register_table("again", table.metadata_location)
    of_namespaces = [(f"{verb}-namespace", "ny") for verb in ("create", "alter", "drop")]
    of_tables = [("create-table", "flights"), ("rename-table", "ny.flights"), ("drop-table", "ny.flights")]
    assert sorted(trail(store, audit)) == sorted([*of_namespaces, *of_tables, ("register-table", "again")])
    assert trail(store, keys_of(store, "again").audit_prefix) == [("register-table", "again")]


def test_the_audit_trail_records_no_change_that_did_not_happen(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U2"""
    catalog.create_namespace_if_not_exists("ny")
    catalog.create_namespace_if_not_exists("ny")
    catalog.create_table("flights", SCHEMA)
    catalog.create_table_if_not_exists("flights", SCHEMA)
    done = [("create-namespace", "ny"), ("create-table", "flights")]
    assert sorted(trail(store, store.keyspace.audit_prefix)) == done
