"""Iceberg tables on S3: staging, publishing, sweeping, and pyiceberg programs beside it."""

from collections.abc import Iterator

import pytest
from pyiceberg.io import SCHEMA_TO_FILE_IO

from distop.catalog.catalog import EtcdCatalog
from distop.lake.cleanup.staged import sweep
from distop.lake.index import lookup as index_lookup
from distop.lake.layout.model import Layout
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from distop.metastore.records.record import encode
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.registry import table_puts
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots, RemoveOrphans, Rollback
from support.sources.s3 import S3
from support.tables.catalogs import ids, ids_in
from support.tables.indexing import Indexing
from support.tables.maintaining import Run
from support.tables.publishing import ROWS, Staged, Table, rows

IOS = ["pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"]


@pytest.fixture(params=IOS)
def io(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one way to reach S3 that pyiceberg has."""
    monkeypatch.setitem(SCHEMA_TO_FILE_IO, "s3", [request.param])


def table_on(s3: S3) -> Table:
    return Table("flights", f"{s3.url}/my tables/flights", Layout.create(ROWS, ["kind"]), s3.storage)


def with_a_loser(table: Table) -> Staged:
    """An operation of two jobs, one of which was attempted twice."""
    operation = table.staged([rows(0, 9)], [rows(9, 9)])
    loser = operation.writer("1", "7-loser")
    loser.write(rows(9, 9))
    loser.finish()
    return operation


@pytest.mark.usefixtures("io")
def test_a_table_on_s3_is_written_published_and_swept(s3: S3) -> None:
    """P1, P14, C18: reached by the storage options of the table alone."""
    table = table_on(s3)
    first, second = with_a_loser(table), with_a_loser(table)
    contribution = table.publish(first)
    table.publish(second)
    before = s3.names()
    removed = sweep(first.arg, first.history(contribution.facts), first.jobs)
    assert removed >= 4
    gone = set(before) - set(s3.names())
    assert len(gone) == removed
    assert all("loser" in name or name.endswith(".avro") for name in gone)
    assert not [name for name in s3.names() if "loser" in name and first.arg.uuid in name]
    assert [name for name in s3.names() if "loser" in name and second.arg.uuid in name]
    assert table.ids() == sorted([*range(18), *range(18)])


@pytest.fixture
def published(etcd: EtcdProcess, prefix: str, s3: S3) -> Iterator[tuple[SyncEtcd, Table]]:
    """A table on S3 as distop made it, in etcd."""
    with SyncEtcd(EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)) as store:
        table = table_on(s3)
        table.publish(table.staged([rows(0, 6)]))
        keys = store.keyspace.table("flights")
        record = TableRecord(name="flights", location=table.location, options={"storage": s3.storage})
        store.txn(Txn(then=(*table_puts(keys, record), Put(keys.head, table.head.value))))
        yield store, table


def test_pyiceberg_works_on_it(etcd: EtcdProcess, prefix: str, published: tuple[SyncEtcd, Table]) -> None:
    """P14: it learns from etcd how the table is reached."""
    with EtcdCatalog("distop", **{"etcd.endpoints": etcd.endpoint, "etcd.prefix": prefix}) as catalog:
        catalog.load_table("flights").append(ids(100, 1))
        assert ids_in(catalog, "flights") == [*range(6), 100]


def test_a_catalog_makes_tables_on_s3(etcd: EtcdProcess, prefix: str, s3_in_environment: S3) -> None:
    """P14: reached by what the environment says."""
    properties = {"etcd.endpoints": etcd.endpoint, "etcd.prefix": prefix, "warehouse": s3_in_environment.url}
    with EtcdCatalog("distop", **properties) as catalog:
        catalog.create_table("made", ROWS).append(ids(1, 1))
        assert ids_in(catalog, "made") == [1]
    assert s3_in_environment.names()


def test_a_table_on_s3_is_looked_after(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13, C18: snapshots expire with their files, orphans go; times and names are those of the store."""
    # Nobody can make a file of S3 look old.
    monkeypatch.setattr("distop.spark_jobs.maintenance.snapshots.MIN_ORPHAN_AGE_S", 0.0)
    table = table_on(s3)
    for i in range(3):
        table.publish(table.staged([rows(10 * i, 3)]), IcebergOverwrite())
    first = table.iceberg().metadata.snapshots[0].snapshot_id
    Run.of(table, Rollback(), snapshot=str(first)).finish()
    assert table.ids() == [0, 1, 2]
    facts = Run.of(table, ExpireSnapshots(), older_than="0s").finish()
    assert facts["expiredSnapshots"] == 2
    left = [name for name in s3.names() if name.endswith(".parquet")]
    assert len(left) == 3
    running = table.staged([rows(100, 3)])
    litter = f"{s3.bucket}/my tables/flights/data/kind=a b/litter #1.parquet"
    s3.fs.pipe_file(litter, b"of a program that was killed")
    dead = table.staged([rows(200, 3)])
    found = Run.of(table, RemoveOrphans(), running.arg, older_than="0s", dry_run=False).finish()
    gone = {name for name in (*found["examples"],) if name.endswith(".parquet")}
    assert "data/kind=a b/litter #1.parquet" in gone
    assert not [name for name in s3.names() if "litter" in name or dead.arg.uuid in name]
    table.publish(running)
    assert table.ids() == [0, 1, 2, 100, 101, 102]


@pytest.mark.usefixtures("io")
def test_an_index_on_s3_is_built_asked_and_replaced(s3: S3) -> None:
    """C18: by the storage options of the table alone."""
    world = Indexing(table_on(s3))
    for start in (0, 9):
        world.table.publish(world.table.staged([rows(start, 9)]))
        facts = world.build("id")
    assert (facts["files"], facts["newFiles"], facts["parts"]) == (6, 3, 2)
    assert len(world.narrowed("id", 4)) == 1
    assert world.build("id", full=True)["parts"] == 1
    assert len([name for name in s3.names() if "/index/" in name and name[-1] != "/"]) == 2
    index_lookup._manifests.clear()
    assert len(world.narrowed("id", 4, 17)) == 2


def test_credentials_of_a_dropped_table_do_not_open_the_next(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """S2"""
    location = "s3://bucket/place"
    head = encode(Head(metadata_location=f"{location}/metadata/0.metadata.json"))
    opened = []
    for name, options in (("before", {"storage": {"key": "k", "secret": "s"}}), ("now", {})):
        keys = store.keyspace.table(name)
        record = TableRecord(name=name, location=location, options=options)
        store.txn(Txn(then=(Put(keys.table, encode(record)), Put(keys.head, head))))
        catalog._published(f"default.{name}")
        opened.append(catalog.file_io(f"{location}/metadata/0.metadata.json").properties)
        store.txn(Txn(then=(DeleteRange(keys.table), DeleteRange(keys.head))))
    assert "s3.secret-access-key" in opened[0]
    assert "s3.secret-access-key" not in opened[1]
