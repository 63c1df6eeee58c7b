"""Commits of other programs that move watermarks of the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from distop.commit.catalog.catalog import EtcdCatalog
from distop.commit.iceberg.provenance import without
from distop.errors import AlreadyIngested, InvalidArgument
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.tables.watermarks import read_marks
from support.etcd.lossy import Fault
from support.tables.catalogs import SCHEMA, faulty, ids, keys_of, metadata_files

AT = "distop.watermark.orders%2Eeu.0"


def marks(store: SyncEtcd) -> dict[str, dict[str, str]]:
    found, _ = store.run(lambda client: read_marks(client, keys_of(store, "t")))
    return {source: dict(partitions) for source, partitions in found.items()}


def test_watermarks_move_with_the_rows_and_never_back(
    catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path
) -> None:
    """E4, C8, P16: rows that are committed again, by who has not heard of the first time, are refused."""
    catalog.create_table("default.t", SCHEMA, properties={"commit.retry.num-retries": "0"})

    def append(value: str) -> None:
        rows = ids(int(value), 1)
        catalog.load_table("default.t").append(rows, snapshot_properties={AT: value})

    append("9")
    keys = keys_of(store, "t")
    assert store.get(keys.watermarks).mod_revision == store.get(keys.head).mod_revision
    append("10")
    before = metadata_files(tmp_path)
    for value in ("10", "9"):
        with pytest.raises(AlreadyIngested) as refused:
            append(value)
        assert isinstance(refused.value, CommitFailedException)
    assert marks(store) == {"orders.eu": {"0": "10"}}
    assert catalog.load_table("default.t").scan().to_arrow()["id"].to_pylist() == [10, 9]
    assert metadata_files(tmp_path) == before
    # A rollback takes them back.
    last = catalog.load_table("default.t").current_snapshot()
    assert last is not None
    assert without([last], marks(store))["orders.eu"]["0"] == "9"


def test_nobody_elses_snapshot_says_what_only_ours_do(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """S1, P16: a rollback would set watermarks to what it is told there."""
    told = {"distop.watermarks-before": '{"orders.eu":{"0":"1"}}', "distop.operation": "t/ingest/1"}
    table = catalog.create_table("default.t", SCHEMA)
    table.append(ids(0, 1), snapshot_properties={AT: "5"})
    table.append(ids(1, 1), snapshot_properties={**told, "distop.watermarks": '{"orders.eu":{"0":"9"}}'})
    last = catalog.load_table("default.t").current_snapshot()
    assert last is not None
    assert last.summary is not None
    assert not [name for name in last.summary.additional_properties if name.startswith("distop.")]
    assert without([last], marks(store)) == {"orders.eu": {"0": "5"}}


def test_of_a_commit_whose_reply_is_lost_both_have_moved(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """C8, P8"""
    table = catalog.create_table("default.t", SCHEMA)
    faulty(catalog, Fault.LOST_REPLY)
    table.append(ids(0, 1), snapshot_properties={AT: "1"})
    assert marks(store) == {"orders.eu": {"0": "1"}}
    assert catalog.load_table("default.t").scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("name", ["orders", "orders.", ".0", "a.b.c"])
def test_what_moves_no_watermark_is_refused(catalog: EtcdCatalog, name: str) -> None:
    """U3"""
    table = catalog.create_table("default.t", SCHEMA)
    with pytest.raises(InvalidArgument, match="moves no watermark"):
        table.append(ids(0, 1), snapshot_properties={f"distop.watermark.{name}": "1"})


def test_they_move_when_the_rows_are_seen(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """P12: not with a branch that nobody has published."""
    table = catalog.create_table("default.t", SCHEMA)
    table.append(ids(0, 1))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "side").commit()
    with pytest.raises(InvalidArgument, match="main branch"):
        table.append(ids(1, 1), snapshot_properties={AT: "1"}, branch="side")
    assert marks(store) == {}
