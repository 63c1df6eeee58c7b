"""Appends of other programs that have lost to other commits: put on top of them, where that is asked for."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform

from distop.catalog.catalog import EtcdCatalog
from distop.errors import AlreadyIngested, InvalidArgument
from distop.metastore.crashpoints import VARIABLE
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.etcd.lossy import Fault
from support.tables.catalogs import SCHEMA, faulty, ids, ids_in

ONCE = {"commit.retry.num-retries": "0"}
"""pyiceberg does not try again by itself."""
REBASE = {"distop.on-conflict": "rebase"}
NAME = "default.t"


def made(catalog: EtcdCatalog, **properties: str) -> Table:
    return catalog.create_table(NAME, SCHEMA, properties=ONCE | properties)


def prepared(catalog: EtcdCatalog, rows: pa.Table, **told: str) -> Transaction:
    """An append whose files are written, and that is not committed."""
    transaction = catalog.load_table(NAME).transaction()
    transaction.append(rows, snapshot_properties=told)
    return transaction


def lists(catalog: EtcdCatalog) -> set[Path]:
    folder = Path(catalog.load_table(NAME).location().removeprefix("file://"), "metadata")
    return set(folder.glob("snap-*.avro"))


def test_an_append_that_has_lost_is_put_on_top(catalog: EtcdCatalog) -> None:
    """P6, P7: under its own id, with the numbers and totals of the table as it is by then."""
    made(catalog, **REBASE).append(ids(0, 2))
    late = prepared(catalog, ids(10, 3), note="mine")
    mine = late.table_metadata.current_snapshot_id
    catalog.load_table(NAME).append(ids(5, 1))
    before = catalog.load_table(NAME).metadata
    table = late.commit_transaction()
    snapshot = table.metadata.snapshots[-1]
    assert snapshot.summary is not None
    assert table.metadata.current_snapshot_id == snapshot.snapshot_id
    assert (snapshot.snapshot_id, snapshot.parent_snapshot_id) == (mine, before.current_snapshot_id)
    assert snapshot.sequence_number == before.next_sequence_number()
    told = snapshot.summary.additional_properties
    assert (told["note"], told["added-records"], told["total-records"]) == ("mine", "3", "6")
    assert (told["added-data-files"], told["total-data-files"]) == ("1", "3")
    assert table.metadata == catalog.load_table(NAME).metadata
    assert ids_in(catalog, NAME) == [0, 1, 5, 10, 11, 12]
    assert table.scan(snapshot_id=before.current_snapshot_id).to_arrow().num_rows == 3


def test_a_program_may_remove_the_manifests_of_an_append_that_was_rebased(catalog: EtcdCatalog) -> None:
    """Java's library removes those that the snapshot does not name."""
    made(catalog, **REBASE)
    late = prepared(catalog, ids(0, 1))
    snapshot = late.table_metadata.current_snapshot()
    assert snapshot is not None
    written = [snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(late._table.io))]
    catalog.load_table(NAME).append(ids(5, 1))
    late.commit_transaction()
    for path in written:
        Path(path.removeprefix("file://")).unlink()
    assert ids_in(catalog, NAME) == [0, 5]


def test_a_commit_may_ask_for_it_by_itself_or_against_its_table(catalog: EtcdCatalog) -> None:
    table = made(catalog)
    first, second = (prepared(catalog, ids(start, 1), **REBASE) for start in (0, 1))
    refused = prepared(catalog, ids(2, 1))
    for each in (first, second):
        each.commit_transaction()
    with pytest.raises(CommitFailedException):
        refused.commit_transaction()
    with table.refresh().transaction() as changing:
        changing.set_properties(REBASE)
    refused = prepared(catalog, ids(3, 1), **{"distop.on-conflict": "refuse"})
    catalog.load_table(NAME).append(ids(4, 1))
    with pytest.raises(CommitFailedException):
        refused.commit_transaction()
    assert ids_in(catalog, NAME) == [0, 1, 4]


def test_an_append_with_an_unknown_choice_on_conflict_is_refused(catalog: EtcdCatalog) -> None:
    """U3"""
    with pytest.raises(InvalidArgument, match="refuse or rebase"):
        made(catalog, **{"distop.on-conflict": "yes"})
    table = made(catalog)
    with pytest.raises(InvalidArgument, match="refuse or rebase"):
        table.append(ids(0, 1), snapshot_properties={"distop.on-conflict": "yes"})


def drop_kind(table: Table) -> None:
    table.update_schema(allow_incompatible_changes=True).delete_column("kind").commit()


def partition(table: Table) -> None:
    table.update_spec().add_field("kind", IdentityTransform()).commit()


def roll_back(table: Table) -> None:
    table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[0].snapshot_id).commit()


@pytest.mark.parametrize("meanwhile", [drop_kind, partition, roll_back])
def test_to_a_table_that_has_another_shape_or_past_it_is_refused(
    catalog: EtcdCatalog, meanwhile: Callable[[Table], None]
) -> None:
    table = made(catalog, **REBASE)
    for start in (0, 1):
        table.append(ids(start, 1))
    late = prepared(catalog, ids(10, 1))
    meanwhile(catalog.load_table(NAME))
    catalog.load_table(NAME).append(ids(5, 1) if meanwhile is not drop_kind else ids(5, 1).select(["id"]))
    before, standing = ids_in(catalog, NAME), lists(catalog)
    with pytest.raises(CommitFailedException):
        late.commit_transaction()
    assert ids_in(catalog, NAME) == before
    assert lists(catalog) <= standing


def append_twice(transaction: Transaction) -> None:
    transaction.append(ids(10, 1))
    transaction.append(ids(11, 1))


def append_and_describe(transaction: Transaction) -> None:
    transaction.append(ids(10, 1))
    transaction.set_properties(a="b")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda transaction: transaction.overwrite(ids(10, 1)), id="overwrite"),
        pytest.param(lambda transaction: transaction.append(ids(10, 1), branch="main2"), id="append aside"),
        pytest.param(lambda transaction: transaction.delete(AlwaysTrue()), id="delete"),
        append_twice,
        append_and_describe,
    ],
)
def test_more_than_an_append_is_refused(catalog: EtcdCatalog, change: Callable[[Transaction], None]) -> None:
    """P7: who overwrites or deletes must see what is there."""
    table = made(catalog, **REBASE)
    table.append(ids(0, 1))
    table.manage_snapshots().create_branch(table.metadata.snapshots[-1].snapshot_id, "main2").commit()
    late = catalog.load_table(NAME).transaction()
    change(late)
    catalog.load_table(NAME).append(ids(5, 1))
    with pytest.raises(CommitFailedException):
        late.commit_transaction()
    assert ids_in(catalog, NAME) == [0, 5]


def test_a_manifest_that_joins_earlier_files_brings_none_of_them_again(catalog: EtcdCatalog) -> None:
    """As Java's appends and pyiceberg's do when a table has many."""
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = made(catalog, **REBASE, **merging)
    for start in range(3):
        table.append(ids(start, 1))
    late = prepared(catalog, ids(10, 1))
    catalog.load_table(NAME).append(ids(5, 1))
    catalog.load_table(NAME).delete("id = 1")
    late.commit_transaction()
    assert ids_in(catalog, NAME) == [0, 2, 5, 10]


def test_a_commit_that_comes_twice_is_done_once(catalog: EtcdCatalog) -> None:
    """P8: what was put on top is found by its id, which others have built on since."""
    made(catalog, **REBASE)
    late = prepared(catalog, ids(0, 1))
    requirements, updates = late._requirements, late._updates
    catalog.load_table(NAME).append(ids(5, 1))
    for start in (6, 7):
        answered = catalog.commit_table(late._table, requirements, updates)
        assert answered.metadata_location == catalog.load_table(NAME).metadata_location
        catalog.load_table(NAME).append(ids(start, 1))
    assert ids_in(catalog, NAME) == [0, 5, 6, 7]


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.DOWN])
def test_an_append_in_doubt_or_refused_leaves_the_table_whole(catalog: EtcdCatalog, fault: Fault) -> None:
    """P8"""
    made(catalog, **REBASE)
    late = prepared(catalog, ids(0, 1))
    catalog.load_table(NAME).append(ids(5, 1))
    standing = lists(catalog)
    faulty(catalog, fault)
    if fault is Fault.LOST_REPLY:
        late.commit_transaction()
        assert ids_in(catalog, NAME) == [0, 5]
    else:
        with pytest.raises(Exception, match="etcd"):
            late.commit_transaction()
        assert ids_in(catalog, NAME) == [5]
        assert lists(catalog) <= standing


def test_watermarks_of_a_rebased_append_never_go_back(catalog: EtcdCatalog) -> None:
    """C8: rows that were committed before are refused on top of others, too."""
    made(catalog, **REBASE)
    told = {"distop.watermark.topic.0": "2"}
    first, again = (prepared(catalog, ids(0, 2), **told) for _ in range(2))
    catalog.load_table(NAME).append(ids(5, 1))
    first.commit_transaction()
    with pytest.raises(AlreadyIngested):
        again.commit_transaction()
    assert ids_in(catalog, NAME) == [0, 1, 5]


def test_many_writers_of_one_table_are_all_served(catalog: EtcdCatalog) -> None:
    """P7: all began on the same snapshot; each row is there once, and what lost a race has left nothing."""
    made(catalog, **REBASE)
    late = [prepared(catalog, ids(10 * number, 1)) for number in range(6)]
    ready = threading.Barrier(len(late))

    def commit(transaction: Transaction) -> None:
        ready.wait(60)
        transaction.commit_transaction()

    with ThreadPoolExecutor(len(late)) as threads:
        list(threads.map(commit, late))
    assert ids_in(catalog, NAME) == [10 * number for number in range(6)]
    metadata = catalog.load_table(NAME).metadata
    assert len(metadata.snapshots) == 6
    own = {Path(one.manifest_list.removeprefix("file://")) for one in metadata.snapshots}
    assert len(lists(catalog) - own) <= 5  # those that the programs have written themselves


LATE = """
import pyarrow as pa

def append_late(catalog):
    late = catalog.load_table("default.t").transaction()
    late.append(pa.table({"id": [10], "kind": ["k"]}), {"distop.run": "ten"})
    other = pa.table({"id": [5], "kind": ["k"]})
    catalog.load_table("default.t").append(other, {"distop.run": "five"})
    late.commit_transaction()
"""
IN_ITS_PROCESS = """
import sys
from distop.catalog.catalog import EtcdCatalog

endpoint, prefix = sys.argv[1:]
with EtcdCatalog("late", **{"etcd.endpoints": endpoint, "etcd.prefix": prefix}) as catalog:
    append_late(catalog)
"""


@pytest.mark.parametrize("point", ["snapshot.middle", "catalog.swap.before", "catalog.swap.after"])
def test_a_killed_writer_that_repeats_its_append_has_its_rows_once(
    catalog: EtcdCatalog, etcd: EtcdProcess, etcd_config: EtcdConfig, point: str
) -> None:
    """P8, C8"""
    made(catalog, **REBASE)
    hit = 1 if point == "snapshot.middle" else 2  # of the commit that is put on top
    command = [sys.executable, "-c", LATE + IN_ITS_PROCESS, etcd.endpoint, etcd_config.prefix]
    environment = {**os.environ, VARIABLE: f"{point}=die@{hit}"}
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == -9
    names: dict[str, Any] = {}
    exec(LATE, names)
    names["append_late"](catalog)
    assert ids_in(catalog, NAME) == [5, 10]
