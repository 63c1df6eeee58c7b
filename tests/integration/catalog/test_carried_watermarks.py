"""Commits of other programs that move watermarks of the table."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from distop.catalog.catalog import EtcdCatalog
from distop.errors import AlreadyIngested, InvalidArgument, WatermarkConflict
from distop.lake.iceberg.provenance import as_of
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.tables.watermarks import read_marks
from support.refusals import refused
from support.tables.catalogs import SCHEMA, ids, ids_in, keys_of, metadata_files

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
    assert ids_in(catalog, "t") == [9, 10]
    assert metadata_files(tmp_path) == before
    # A rollback takes them back.
    metadata = catalog.load_table("default.t").metadata
    assert as_of(metadata.snapshots[-2], metadata, marks(store))["orders.eu"]["0"] == "9"


def test_nobody_elses_snapshot_says_what_only_ours_do(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """S1, P16: a rollback would set watermarks to what it is told there."""
    told = {"distop.watermarks-before": '{"orders.eu":{"0":"1"}}', "distop.operation": "t/ingest/1"}
    table = catalog.create_table("default.t", SCHEMA)
    table.append(ids(0, 1), snapshot_properties={AT: "5"})
    table.append(ids(1, 1), snapshot_properties={**told, "distop.watermarks": '{"orders.eu":{"0":"9"}}'})
    metadata = catalog.load_table("default.t").metadata
    first, last = metadata.snapshots
    assert last.summary is not None
    assert not [name for name in last.summary.additional_properties if name.startswith("distop.")]
    assert as_of(first, metadata, marks(store)) == {"orders.eu": {"0": "5"}}


@pytest.mark.parametrize("name", ["orders", "orders.", ".0", "a.b.c"])
def test_a_commit_whose_watermarks_move_nothing_is_refused(catalog: EtcdCatalog, name: str) -> None:
    """U3"""
    table = catalog.create_table("default.t", SCHEMA)
    with pytest.raises(InvalidArgument, match="moves no watermark"):
        table.append(ids(0, 1), snapshot_properties={f"distop.watermark.{name}": "1"})


def branched(catalog: EtcdCatalog) -> Table:
    """A table of one row, and a branch of it."""
    table = catalog.create_table("default.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    table.append(ids(0, 1))
    table.manage_snapshots().create_branch(present(table), "side").commit()
    return table


def present(table: Table, branch: str = "main") -> int:
    return table.refresh().metadata.refs[branch].snapshot_id


def forward(table: Table, branch: str) -> None:
    """What Spark's procedure ``fast_forward`` commits."""
    to: dict[str, Any] = {"ref-name": "main", "type": "branch", "snapshot-id": present(table, branch)}
    table.catalog.commit_table(table, (), (SetSnapshotRefUpdate(**to),))
    table.refresh()


def test_a_branch_carries_them_until_its_rows_are_seen(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """P12, E4, C8: whoever makes it the main one moves them in the same transaction; and on the branch, too,
    what is written again is refused."""
    table = branched(catalog)
    for value in ("3", "4"):
        table.append(ids(int(value), 1), branch="side", snapshot_properties={AT: value})
        with pytest.raises(AlreadyIngested):
            table.append(ids(int(value), 1), branch="side", snapshot_properties={AT: value})
    table.refresh().append(ids(5, 1), branch="side")
    assert marks(store) == {}
    assert ids_in(catalog, "t") == [0]
    forward(table, "side")
    assert marks(store) == {"orders.eu": {"0": "4"}}
    assert ids_in(catalog, "t") == [0, 3, 4, 5]
    keys = keys_of(store, "t")
    assert store.get(keys.watermarks).mod_revision == store.get(keys.head).mod_revision
    with pytest.raises(AlreadyIngested):
        table.append(ids(4, 1), snapshot_properties={AT: "4"})
    # A rollback takes back what each of them has moved.
    metadata = table.refresh().metadata
    first, third, *_ = metadata.snapshots
    assert as_of(third, metadata, marks(store))["orders.eu"]["0"] == "3"
    assert not any(as_of(first, metadata, marks(store)).values())


def test_a_branch_that_a_branch_began_with_carries_on(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """E4: and a commit to the main branch that has it below moves what both carry."""
    table = branched(catalog)
    table.append(ids(1, 1), branch="side", snapshot_properties={AT: "1"})
    table.manage_snapshots().create_branch(present(table, "side"), "more").commit()
    with pytest.raises(AlreadyIngested):
        table.refresh().append(ids(1, 1), branch="more", snapshot_properties={AT: "1"})
    table.refresh().append(ids(2, 1), branch="more", snapshot_properties={AT: "2"})
    forward(table, "more")
    assert marks(store) == {"orders.eu": {"0": "2"}}


def test_a_branch_that_was_overtaken_is_not_made_the_main_one(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """P16: the rows of one source would be there twice."""
    table = branched(catalog)
    table.append(ids(3, 1), branch="side", snapshot_properties={AT: "3"})
    table.refresh().append(ids(2, 1), snapshot_properties={AT: "2"})
    with pytest.raises(WatermarkConflict, match=r"'2'.* None"):
        forward(table, "side")
    with pytest.raises(WatermarkConflict):
        table.refresh().append(ids(4, 1), branch="side", snapshot_properties={AT: "4"})
    assert marks(store) == {"orders.eu": {"0": "2"}}
    assert table.refresh().scan().to_arrow().num_rows == 2
    # An Iceberg program goes back to the first snapshot: that brings none, and moves none.
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    assert marks(store) == {"orders.eu": {"0": "2"}}


def test_watermarks_of_rows_on_no_branch_are_refused(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3: nobody would move them; nor those that a snapshot has no room for."""
    table = branched(catalog)
    with table.transaction() as making:
        making.append(ids(1, 1), branch="side", snapshot_properties={AT: "1"})
        added = [one for one in making._updates if isinstance(one, AddSnapshotUpdate)]
        making._updates = ()
    tag: dict[str, Any] = {"ref-name": "x", "type": "tag", "snapshot-id": added[0].snapshot.snapshot_id}
    tagged: list[TableUpdate] = [*added, SetSnapshotRefUpdate(**tag)]
    for updates in (added, tagged):
        with refused("updates", "on none"):
            catalog.commit(("default", "t"), (), tuple(one.model_copy(deep=True) for one in updates))
    many = {f"distop.watermark.s.{number:0100}": "1" for number in range(200)}
    with refused("updates", "more watermarks"):
        table.append(ids(1, 1), branch="side", snapshot_properties=many)
    assert marks(store) == {}
