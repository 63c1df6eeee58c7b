"""Catalogs on an etcd of the tests, and the keys of their tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, TableIdentifier
from pyiceberg.types import LongType, NestedField, StringType

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode, encode_plain
from support.etcd.lossy import Fault, LossyClient

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))


def ids(start: int, count: int) -> pa.Table:
    return pa.table({"id": list(range(start, start + count)), "kind": ["k"] * count})


def ids_in(catalog: Catalog, table: str) -> list[int]:
    """All ids of a table, sorted."""
    ids: list[int] = catalog.load_table(table).scan().to_arrow()["id"].to_pylist()
    return sorted(ids)


def make_catalog(etcd: EtcdProcess, prefix: str, folder: Path) -> EtcdCatalog:
    kind = {"py-catalog-impl": "distop.catalog.catalog.EtcdCatalog"}
    where = {
        "etcd.endpoints": etcd.endpoint,
        "etcd.prefix": prefix,
        "warehouse": f"file://{folder}/warehouse",
    }
    catalog = load_catalog("distop", **kind, **where)
    assert isinstance(catalog, EtcdCatalog)
    return catalog


def commit_of(catalog: EtcdCatalog, start: int, count: int = 1, table: str = "t") -> dict[str, Any]:
    """What an append of these rows sends over HTTP, whose files are written; nothing is committed."""
    transaction = catalog.load_table(f"default.{table}").transaction()
    transaction.append(ids(start, count))
    request = CommitTableRequest(
        identifier=TableIdentifier(namespace=["default"], name=table),
        requirements=transaction._requirements,
        updates=transaction._updates,
    )
    body: dict[str, Any] = request.model_dump(mode="json", by_alias=True)
    return body


def keys_of(store: SyncEtcd, table: str) -> TableKeys:
    return store.keyspace.table(table)


def all_keys(store: SyncEtcd) -> list[str]:
    """All keys below the prefix but those of the audit trail, without the prefix."""
    kvs = store.scan(store.keyspace.prefix, keys_only=True).kvs
    names = [kv.key.removeprefix(store.keyspace.prefix).decode() for kv in kvs]
    return [name for name in names if not name.startswith("_audit.") and ".auditTrail." not in name]


def give_a_past(store: SyncEtcd, table: str, operations: int = 3) -> None:
    """What operations leave behind: history, runs, counters, watermarks, settings."""
    keys = keys_of(store, table)
    history = encode(HistoryRecord(outcome="success"))
    for start in range(1, operations + 1, 50):
        puts = []
        for i in range(start, min(start + 50, operations + 1)):
            puts += [Put(keys.prefix + b"history.ingest.%d" % i, history), Put(keys.request(f"r{i}"), b"{}")]
        store.txn(Txn(then=tuple(puts)))
    store.put(keys.next_instance("ingest"), str(operations + 1).encode())
    store.put(keys.watermarks, encode_plain({"files": {"2013-01": "done"}}))
    store.put(keys.prefix + b"ordering", b"{}")


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
