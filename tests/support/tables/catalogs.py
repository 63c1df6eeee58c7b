"""Catalogs on an etcd of the tests, and what stands there of their tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from distop.commit.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.keyspace import TableKeys
from support.etcd.lossy import Fault, LossyClient

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))


def ids(start: int, count: int) -> pa.Table:
    return pa.table({"id": list(range(start, start + count)), "kind": ["k"] * count})


def make_catalog(etcd: EtcdProcess, prefix: str, folder: Path) -> EtcdCatalog:
    properties = {
        "py-catalog-impl": "distop.commit.catalog.catalog.EtcdCatalog",
        "etcd.endpoints": etcd.endpoint,
        "etcd.prefix": prefix,
        "warehouse": f"file://{folder}/warehouse",
    }
    catalog = load_catalog("distop", **properties)
    assert isinstance(catalog, EtcdCatalog)
    return catalog


def keys_of(store: SyncEtcd, table: str) -> TableKeys:
    return store.keyspace.table(table)


def all_keys(store: SyncEtcd) -> list[str]:
    """All but what the audit trail holds."""
    found = store.scan(store.keyspace.prefix, keys_only=True).kvs
    names = [kv.key.removeprefix(store.keyspace.prefix).decode() for kv in found]
    return [name for name in names if not name.startswith("_audit.") and ".auditTrail." not in name]


def metadata_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*.metadata.json"))


def faulty(catalog: EtcdCatalog, *faults: Fault) -> LossyClient:
    """Let the next writes of a catalog meet these faults."""
    etcd = catalog._pointers.etcd

    async def client(present: EtcdClient) -> LossyClient:
        return present if isinstance(present, LossyClient) else LossyClient(etcd.config)

    etcd._client = lossy = etcd.run(client)
    lossy.fail(*faults)
    return lossy
