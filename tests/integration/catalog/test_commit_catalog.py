"""The contract of a pyiceberg catalog, on etcd; and what distop adds to it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, AssertCreate, SetDefaultSpecUpdate, SetLocationUpdate
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.namespaces import Naming
from distop.errors import (
    BacklogInUse,
    EtcdOutOfSpace,
    EtcdUnavailable,
    IncompatibleOperation,
    InvalidArgument,
    InvalidName,
    LocationInUse,
    OutcomeUnknown,
    PreconditionFailed,
    TablePaused,
)
from distop.metastore.backlog.batches import BatchRecord
from distop.metastore.backlog.queue import enqueue
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import DeleteRange, KeyValue, Put, Txn
from distop.metastore.etcd.update import MAX_TRIES
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import decode, encode_plain
from distop.metastore.records.table import Head, NamespaceRecord, TableRecord
from distop.metastore.tables.registry import table_puts
from support.etcd.lossy import Fault
from support.tables.catalogs import (
    SCHEMA,
    all_keys,
    faulty,
    give_a_past,
    ids,
    ids_in,
    keys_of,
    metadata_files,
)


def record_of(store: SyncEtcd, table: str) -> TableRecord:
    return decode(store.get(keys_of(store, table).table).value, TableRecord)


def move(table: Table, place: str) -> None:
    """Change where a table lives from now on."""
    table.catalog.commit_table(table, (), (SetLocationUpdate(location=place),))


def head_of(store: SyncEtcd, table: str) -> Head:
    return decode(store.get(keys_of(store, table).head).value, Head)


def keeps_its_name(
    catalog: EtcdCatalog, store: SyncEtcd, error: type[Exception], says: str | None = None, **names: str
) -> None:
    """A renaming is refused, and changes nothing."""
    before = all_keys(store)
    with pytest.raises(error, match=says):
        catalog.rename_table(names.get("old", "flights"), names.get("new", "departures"))
    assert all_keys(store) == before


# -- tables ------------------------------------------------------------------------------------------


def test_a_created_table_is_a_table_of_distop(catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path) -> None:
    """P14: record and head appear together, under the table's keys."""
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
    table = catalog.create_table("default.flights", SCHEMA, partition_spec=spec, properties={"owner": "ada"})
    assert table.name() == ("default", "flights")
    place = table.location()
    assert re.fullmatch(f"file://{tmp_path}/warehouse/default/flights-[0-9a-f]{{32}}", place)
    assert [key for key in all_keys(store) if not key.startswith("_")] == ["flights.head", "flights.table"]
    record, head = record_of(store, "flights"), head_of(store, "flights")
    assert (record.name, record.location) == ("flights", table.location())
    assert (head.metadata_location, head.snapshot_id) == (table.metadata_location, None)
    assert head.operation == "foreign"
    loaded = catalog.load_table("flights")
    assert (loaded.metadata, loaded.properties["owner"]) == (table.metadata, "ada")
    assert loaded.spec() == spec


def test_creating_twice_is_refused_and_leaves_no_file(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """P5, U3"""
    catalog.create_table("flights", SCHEMA)
    before = metadata_files(tmp_path)
    with pytest.raises(TableAlreadyExistsError, match=r"default\.flights"):
        catalog.create_table("flights", SCHEMA)
    assert metadata_files(tmp_path) == before
    assert catalog.create_table_if_not_exists("flights", SCHEMA).name() == ("default", "flights")


def test_wrong_names_and_locations_are_refused(catalog: EtcdCatalog, etcd: EtcdProcess, prefix: str) -> None:
    """O29, U3"""
    with pytest.raises(InvalidName):
        catalog.create_table("_flights", SCHEMA)
    with pytest.raises(NoSuchNamespaceError, match="nowhere"):
        catalog.create_table("nowhere.flights", SCHEMA, location="file:///tmp/x")
    properties = {"etcd.endpoints": etcd.endpoint, "etcd.prefix": prefix}
    with EtcdCatalog("bare", **properties) as bare, pytest.raises(ValueError, match="specify a location"):
        bare.create_table("flights", SCHEMA)


def test_a_missing_table_is_said_to_be_missing(catalog: EtcdCatalog) -> None:
    """U3"""
    for call in (catalog.load_table, catalog.drop_table, catalog.purge_table):
        with pytest.raises(NoSuchTableError, match=r"default\.nothing"):
            call("nothing")
    assert not catalog.table_exists("nothing")


def test_a_table_that_nothing_was_published_to_is_called_empty(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3: created through distop, not yet written."""
    record = TableRecord(name="flights", location="file:///tmp/nowhere")
    store.txn(Txn(then=table_puts(keys_of(store, "flights"), record)))
    with pytest.raises(NoSuchTableError, match="no operation has published anything"):
        catalog.load_table("flights")
    assert not catalog.table_exists("flights")
    assert catalog.list_tables("default") == []
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("flights", SCHEMA)
    catalog.drop_table("flights")
    assert all_keys(store) == []


def test_tables_are_written_and_read(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """P14: append, overwrite, delete, schema and properties, through pyiceberg alone."""
    table = catalog.create_table("flights", SCHEMA)
    table.append(ids(0, 5))
    table.append(ids(5, 5))
    table.delete("id < 2")
    with table.transaction() as transaction:
        transaction.set_properties(owner="ada")
        with transaction.update_schema() as update:
            update.add_column("note", StringType())
    fresh = catalog.load_table("flights")
    assert ids_in(catalog, "flights") == list(range(2, 10))
    assert fresh.properties["owner"] == "ada"
    assert fresh.schema().find_field("note").field_type == StringType()
    fresh.overwrite(pa.table({"id": [1], "kind": ["k"], "note": ["n"]}))
    metadata = catalog.load_table("flights").metadata
    assert head_of(store, "flights").snapshot_id == metadata.current_snapshot_id
    assert ids_in(catalog, "flights") == [1]
    assert len(metadata.metadata_log) == 5


def test_a_new_table_says_how_its_files_are_compressed(catalog: EtcdCatalog) -> None:
    """Iceberg's Java library takes gzip for a table that does not say, which costs engines twice the time."""
    codec = "write.parquet.compression-codec"
    assert catalog.create_table("flights", SCHEMA).properties == {codec: "zstd"}
    assert catalog.create_table("trips", SCHEMA, properties={codec: "snappy"}).properties == {codec: "snappy"}


def test_a_commit_of_no_change_writes_nothing(catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path) -> None:
    """P10"""
    table = catalog.create_table("flights", SCHEMA, properties={"a": "b"})
    before, head = metadata_files(tmp_path), store.get(keys_of(store, "flights").head)
    response = catalog.commit_table(table, (), (SetDefaultSpecUpdate.model_validate({"spec-id": 0}),))
    assert response.metadata_location == table.metadata_location
    assert (metadata_files(tmp_path), store.get(keys_of(store, "flights").head)) == (before, head)


def test_a_stale_table_is_refused(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """P6: what a commit was based on is compared; nothing is left of one that lost."""
    catalog.create_table("flights", SCHEMA)
    one, other = catalog.load_table("flights"), catalog.load_table("flights")
    with one.update_schema() as update:
        update.add_column("x", LongType())
    before = metadata_files(tmp_path)
    with pytest.raises(CommitFailedException), other.update_schema() as update:
        update.add_column("y", LongType())
    assert metadata_files(tmp_path) == before
    assert [c.name for c in catalog.load_table("flights").schema().columns] == ["id", "kind", "x"]


def test_a_table_can_be_created_with_its_first_rows(catalog: EtcdCatalog) -> None:
    """P3, P5: or not at all; one of two creators wins."""
    catalog.create_namespace("ny.air")
    name = "ny.air.flights"
    with catalog.create_table_transaction(name, SCHEMA) as transaction:
        transaction.append(ids(0, 3))
        assert not catalog.table_exists(name)
        catalog.create_table("other", SCHEMA)
    assert catalog.load_table(name).scan().to_arrow().num_rows == 3
    late = catalog.create_table_transaction(name, SCHEMA)
    with pytest.raises(CommitFailedException, match="already exists"):
        late.commit_transaction()
    assert catalog.list_tables(("ny", "air")) == [("ny", "air", "flights")]


def test_files_of_a_table_can_be_registered(catalog: EtcdCatalog) -> None:
    """P14"""
    table = catalog.create_table("flights", SCHEMA)
    table.append(ids(0, 3))
    with pytest.raises(LocationInUse, match="'flights'"):
        catalog.register_table("copy", table.metadata_location)
    catalog.drop_table("flights")
    copy = catalog.register_table("copy", table.metadata_location)
    assert copy.scan().to_arrow().num_rows == 3
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("copy", table.metadata_location)
    with pytest.raises(NotImplementedError):
        catalog.register_table("copy", table.metadata_location, overwrite=True)
    assert Path(table.metadata_location.removeprefix("file://")).exists()


def test_moving_a_table_moves_its_record(catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path) -> None:
    """P1: operations write where the record says."""
    table = catalog.create_table("flights", SCHEMA)
    move(table, f"file://{tmp_path}/elsewhere")
    assert record_of(store, "flights").location == f"file://{tmp_path}/elsewhere"
    catalog.load_table("flights").append(ids(0, 3))
    assert catalog.load_table("flights").scan().to_arrow().num_rows == 3


def test_the_folder_of_another_table_is_refused_however_one_gets_there(catalog: EtcdCatalog) -> None:
    """S2: the claim follows a table that is renamed, and one that moves."""
    place = catalog.create_table("flights", SCHEMA).location()
    other = catalog.create_table("other", SCHEMA)
    for wanted in (place, f"{place}/kind", place.rpartition("/")[0]):
        with pytest.raises(LocationInUse):
            catalog.create_table("more", SCHEMA, location=wanted)
        with pytest.raises(LocationInUse):
            move(other, wanted)
    moved = f"{place}-moved"
    flights = catalog.rename_table("flights", "departures")
    with pytest.raises(LocationInUse, match="'departures'"):
        catalog.create_table("flights", SCHEMA, location=place)
    move(flights, moved)
    with pytest.raises(LocationInUse, match="'departures'"):
        catalog.create_table("flights", SCHEMA, location=moved)


# -- dropping and renaming ---------------------------------------------------------------------------


def test_a_dropped_table_leaves_no_key(catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path) -> None:
    """O29: of its own; its files stay, and so do the keys of tables named alike."""
    for name in ("flights", "flights2", "flight"):
        catalog.create_table(name, SCHEMA)
    give_a_past(store, "flights", operations=1500)
    give_a_past(store, "flights2", operations=2)
    before = metadata_files(tmp_path)
    catalog.drop_table("flights")
    assert {key.split(".")[0] for key in all_keys(store)} == {"flights2", "flight", "_locations", "_tables"}
    assert len(all_keys(store)) == 3 + 3 + 2 * 2 + 3 + 2
    assert metadata_files(tmp_path) == before


def test_times_in_the_metadata_do_not_go_back_where_those_of_programs_do(catalog: EtcdCatalog) -> None:
    """P14: Iceberg's Java library would not read the table."""
    table = catalog.create_table("flights", SCHEMA)
    transaction = table.transaction()
    transaction.append(ids(0, 1))
    updates = []
    for update in transaction._updates:
        if isinstance(update, AddSnapshotUpdate):
            at_ms = update.snapshot.timestamp_ms + 600_000
            update = AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"timestamp_ms": at_ms}))
        updates.append(update)
    catalog.commit(table.name(), transaction._requirements, tuple(updates))
    table.refresh().append(ids(1, 1))
    with table.transaction() as changing:
        changing.set_properties({"user.note": "x"})
    metadata = table.refresh().metadata
    log = [entry.timestamp_ms for entry in metadata.snapshot_log]
    versions = [entry.timestamp_ms for entry in metadata.metadata_log]
    assert (log, versions) == (sorted(log), sorted(versions))
    assert metadata.last_updated_ms >= max(log[-1], versions[-1])
    assert table.scan().to_arrow().num_rows == 2


def test_the_leadership_of_a_dropped_table_ends(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """H4: before there is another table of that name."""
    catalog.create_table("flights", SCHEMA)
    give_a_past(store, "flights")
    store.put(keys_of(store, "flights").coordinator, b"{}")
    catalog.drop_table("flights")
    assert all_keys(store) == []


@pytest.mark.parametrize("change", ["drop", "purge", "rename"])
def test_a_busy_table_is_not_dropped_nor_renamed(catalog: EtcdCatalog, store: SyncEtcd, change: str) -> None:
    """P13, O2: the error names the operation in the way."""
    catalog.create_table("flights", SCHEMA)
    keys = keys_of(store, "flights")

    changes: dict[str, Callable[[], object]] = {
        "drop": lambda: catalog.drop_table("flights"),
        "purge": lambda: catalog.purge_table("flights"),
        "rename": lambda: catalog.rename_table("flights", "departures"),
    }
    attempt = changes[change]
    store.put(keys.run_ops, encode_plain({"ingest": ["17"], "build_index": ["tail%2Enum.3"]}))
    with pytest.raises(IncompatibleOperation, match=r"flights/ingest/17.*|flights/build_index/tail\.num/3"):
        attempt()
    store.delete(keys.run_ops)
    active = store.keyspace.active + b"flights.ingest.17"
    store.put(active, b"{}")
    with pytest.raises(IncompatibleOperation, match="being collected"):
        attempt()
    assert catalog.table_exists("flights")
    store.delete(active)
    attempt()
    assert not catalog.table_exists("flights")


def test_purging_removes_the_files(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """P13"""
    table = catalog.create_table("flights", SCHEMA)
    table.append(ids(0, 3))
    table.append(ids(3, 3))
    catalog.purge_table("flights")
    assert [path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()] == []


def test_purging_removes_no_files_that_others_may_need(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """S2, V5: a folder that is not certainly the table's own, and Iceberg's property that forbids it."""
    table = catalog.create_table("flights", SCHEMA)
    table.append(ids(0, 3))
    catalog.drop_table("flights")
    catalog.register_table("flights", table.metadata_location)
    files = sorted((tmp_path / "warehouse").rglob("*"))
    catalog.purge_table("flights")
    assert not catalog.table_exists("flights")
    assert sorted((tmp_path / "warehouse").rglob("*")) == files
    table = catalog.create_table("flights", SCHEMA, properties={"gc.enabled": "false"})
    table.append(ids(0, 3))
    with pytest.raises(PreconditionFailed, match=r"gc\.enabled"):
        catalog.purge_table("flights")
    assert catalog.load_table("flights").scan().to_arrow().num_rows == 3


def test_a_renamed_table_keeps_its_rows_and_its_past(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O1, O22, C8, U2: history, watermarks, instance numbers and the audit trail go with it; runs were
    for the old name."""
    table = catalog.create_table("flights", SCHEMA)
    table.append(ids(0, 3))
    give_a_past(store, "flights", operations=120)
    old, new = keys_of(store, "flights"), keys_of(store, "ny.departures")
    trail = [b"%013d-00000000" % number for number in range(120)]
    store.txn(Txn(then=tuple(Put(old.audit_prefix + entry, b"{}") for entry in trail)))
    catalog.create_namespace("ny")
    renamed = catalog.rename_table("flights", "ny.departures")
    assert (renamed.name(), renamed.scan().to_arrow().num_rows) == (("ny", "departures"), 3)
    assert not catalog.table_exists("flights")
    found = [key for key in all_keys(store) if not key.startswith("_")]
    assert {key.split(".")[0] for key in found} == {"ny%2Edepartures"}
    moved = {kv.key.removeprefix(new.audit_prefix) for kv in store.scan(new.audit_prefix).kvs}
    assert moved >= set(trail)
    assert len(found) == 120 + len(("table", "head", "watermarks", "ordering", "nextInstanceId"))
    assert record_of(store, "ny.departures").name == "ny.departures"
    renamed.append(ids(3, 3))
    assert catalog.load_table("ny.departures").scan().to_arrow().num_rows == 6


def test_a_paused_table_keeps_its_name_a_drop_ends_the_pause(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O21: who resumes it knows it by that name; nothing holds a table that is made under it after a drop."""
    catalog.create_table("flights", SCHEMA)
    keys, index = keys_of(store, "flights"), store.keyspace.paused_table("flights")
    store.txn(Txn(then=(Put(keys.pause, b"{}"), Put(index, b"{}"))))
    keeps_its_name(catalog, store, TablePaused, "distop table resume flights")
    catalog.drop_table("flights")
    assert all_keys(store) == []


def test_a_table_of_more_keys_than_fit_keeps_its_name(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    catalog.create_table("flights", SCHEMA)
    keys = keys_of(store, "flights")
    store.txn(Txn(then=tuple(Put(keys.index_prefix + b"c%d" % number, b"{}") for number in range(120))))
    keeps_its_name(catalog, store, PreconditionFailed, "has 121 keys of its own")


@pytest.mark.parametrize("where", ["queued", "applied"])
def test_a_table_with_batches_keeps_its_name(catalog: EtcdCatalog, store: SyncEtcd, where: str) -> None:
    """B1, B3: under another name none would be known as applied, and none would find its way there."""
    catalog.create_table("flights", SCHEMA)
    keys = keys_of(store, "flights")
    if where == "queued":
        store.run(lambda client: enqueue(client, keys, "a", BatchRecord(type="noop", uid="u"), ordered=True))
    else:
        store.put(keys.applied("a"), b'{"outcome":"applied"}')
    keeps_its_name(catalog, store, BacklogInUse, "flights")


def test_a_batch_queued_during_a_rename_is_not_lost(
    catalog: EtcdCatalog, store: SyncEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: the rename has found no batch, and then one comes: the rename loses, looks again and is refused."""
    catalog.create_table("flights", SCHEMA)
    old = keys_of(store, "flights")
    listed = Naming._settings

    def list_and_be_too_slow(self: Naming, keys: TableKeys) -> tuple[list[KeyValue], list[DeleteRange]]:
        found = listed(self, keys)
        store.run(lambda client: enqueue(client, old, "a", BatchRecord(type="noop", uid="u"), ordered=True))
        return found

    monkeypatch.setattr(Naming, "_settings", list_and_be_too_slow)
    with pytest.raises(BacklogInUse):
        catalog.rename_table("flights", "departures")
    assert store.get(old.backlog("a")).exists
    assert store.get(old.backlog_index).exists
    assert catalog.table_exists("flights")
    assert not catalog.table_exists("departures")


def test_renaming_onto_a_table_or_into_nowhere_is_refused(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3: and changes nothing."""
    catalog.create_table("flights", SCHEMA)
    catalog.create_table("other", SCHEMA)
    keeps_its_name(catalog, store, TableAlreadyExistsError, new="other")
    keeps_its_name(catalog, store, NoSuchNamespaceError, new="nowhere.flights")
    keeps_its_name(catalog, store, NoSuchTableError, old="nothing")


# -- listing -----------------------------------------------------------------------------------------


def test_tables_and_namespaces_are_listed_level_by_level(catalog: EtcdCatalog) -> None:
    """O29, P14: names beginning alike, names with dots."""
    assert catalog.list_namespaces() == [("default",)]
    for namespace in ("a", "a.b", "a.b.c", "ab"):
        catalog.create_namespace(namespace)
    assert catalog.list_namespaces() == [("a",), ("ab",), ("default",)]
    assert catalog.list_namespaces("a") == [("a", "b")]
    assert catalog.list_namespaces(("a", "b")) == [("a", "b", "c")]
    assert catalog.list_namespaces("ab") == []
    for name in ("flights", "a.t", "a.u", "a.b.t", "ab.t", "a b"):
        catalog.create_table(name, SCHEMA)
    assert catalog.list_tables("default") == [("default", "a b"), ("default", "flights")]
    assert catalog.list_tables("a") == [("a", "t"), ("a", "u")]
    assert catalog.list_tables(("a", "b")) == [("a", "b", "t")]
    assert catalog.list_tables("ab") == [("ab", "t")]
    for listing in (catalog.list_tables, catalog.list_namespaces):
        with pytest.raises(NoSuchNamespaceError):
            listing("b")


def test_tables_with_a_long_past_do_not_hide_others(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O22: a listing reads around thousands of keys of one table."""
    for name in ("a", "b", "c"):
        catalog.create_table(name, SCHEMA)
    give_a_past(store, "b", operations=1200)
    assert [name for _, name in catalog.list_tables("default")] == ["a", "b", "c"]


# -- namespaces --------------------------------------------------------------------------------------


def test_namespaces_have_properties_and_one_says_where_tables_go(
    catalog: EtcdCatalog, tmp_path: Path
) -> None:
    """P14: one of them says where tables go."""
    place = f"file://{tmp_path}/ny"
    catalog.create_namespace("ny", {"owner": "ada", "old": "x", "location": place})
    assert catalog.create_table("ny.flights", SCHEMA).location().startswith(f"{place}/flights-")
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("ny")
    summary = catalog.update_namespace_properties("ny", {"old", "never"}, {"owner": "bob", "new": "y"})
    assert (summary.removed, summary.missing) == (["old"], ["never"])
    assert sorted(summary.updated) == ["new", "owner"]
    assert catalog.load_namespace_properties("ny") == {"owner": "bob", "new": "y", "location": place}
    with pytest.raises(ValueError, match="overlap"):
        catalog.update_namespace_properties("ny", {"owner"}, {"owner": "x"})
    known = (catalog.load_namespace_properties, catalog.update_namespace_properties, catalog.drop_namespace)
    for call in known:
        with pytest.raises(NoSuchNamespaceError):
            call("nowhere")


def test_only_empty_namespaces_are_dropped(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3"""
    catalog.create_namespace("a")
    catalog.create_namespace("a.b")
    catalog.create_table("a.b.t", SCHEMA)
    for namespace in ("a", "a.b", "default"):
        with pytest.raises(NamespaceNotEmptyError):
            catalog.drop_namespace(namespace)
    catalog.drop_table("a.b.t")
    catalog.drop_namespace("a.b")
    catalog.drop_namespace("a")
    assert all_keys(store) == []
    assert not catalog.namespace_exists("a")


def test_a_namespace_exists_while_something_is_in_it(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O29: distop's own tables may have dots in their names without anybody creating a namespace."""
    record = TableRecord(name="ny.flights", location="file:///x")
    store.txn(Txn(then=table_puts(keys_of(store, record.name), record)))
    assert catalog.namespace_exists("ny")
    assert catalog.list_namespaces() == [("default",), ("ny",)]
    assert catalog.load_namespace_properties("ny") == {}
    catalog.update_namespace_properties("ny", updates={"owner": "ada"})
    kv = store.get(store.keyspace.namespace("ny"))
    assert decode(kv.value, NamespaceRecord).properties == {"owner": "ada"}


# -- lost replies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [[Fault.LOST_REPLY], [Fault.LOST_REQUEST], [Fault.LOST_REQUEST, Fault.LOST_REQUEST, Fault.LOST_REPLY]],
)
def test_a_lost_reply_neither_repeats_nor_undoes_a_commit(catalog: EtcdCatalog, faults: list[Fault]) -> None:
    """P8: sent again, it happens once; its files are there."""
    table = catalog.create_table("flights", SCHEMA)
    faulty(catalog, *faults)
    table.append(ids(0, 3))
    assert ids_in(catalog, "flights") == [0, 1, 2]
    assert len(catalog.load_table("flights").metadata.snapshots) == 1


@pytest.mark.parametrize("renamed", [True, False])
def test_what_somebody_does_to_a_table_whose_creation_is_in_doubt_costs_no_file(
    catalog: EtcdCatalog, other: EtcdCatalog, tmp_path: Path, renamed: bool
) -> None:
    """P8: never deleted on doubt, although what stands under the name is not what was put there."""
    losing, elsewhere = faulty(catalog, Fault.LOST_REPLY), f"file://{tmp_path}/elsewhere"
    if renamed:
        losing.meanwhile.append(lambda: other.rename_table("flights", "departures"))
        with pytest.raises(CommitStateUnknownException):
            catalog.create_table("flights", SCHEMA)
    else:
        losing.meanwhile.append(lambda: move(other.load_table("flights"), elsewhere))
        catalog.create_table("flights", SCHEMA)
    other.load_table("departures" if renamed else "flights").append(ids(0, 3))


def test_a_table_that_goes_says_nothing_of_its_companions(catalog: EtcdCatalog, other: EtcdCatalog) -> None:
    """P8: all were made, nobody has heard of it, and one is dropped: the files of the other stay."""
    made = [catalog.create_table_transaction(name, SCHEMA) for name in ("flights", "planes")]
    faulty(catalog, Fault.LOST_REPLY).meanwhile.append(lambda: other.drop_table("flights"))
    catalog.commit_all([(one._table.name(), (AssertCreate(),), one._updates) for one in made])
    other.load_table("planes").append(ids(0, 3))


def test_lost_replies_to_create_rename_and_drop_are_understood(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """P8"""
    faulty(catalog, Fault.LOST_REPLY)
    catalog.create_table("flights", SCHEMA).append(ids(0, 3))
    faulty(catalog, Fault.LOST_REPLY)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("flights", SCHEMA)
    faulty(catalog, Fault.LOST_REPLY)
    assert catalog.rename_table("flights", "departures").scan().to_arrow().num_rows == 3
    faulty(catalog, Fault.LOST_REPLY)
    catalog.drop_table("departures")
    assert all_keys(store) == []


@pytest.mark.parametrize("drop", [EtcdCatalog.drop_table, EtcdCatalog.purge_table])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_drop_takes_no_table_that_was_made_after_it(
    catalog: EtcdCatalog,
    other: EtcdCatalog,
    tmp_path: Path,
    drop: Callable[[EtcdCatalog, str], None],
    elsewhere: bool,
) -> None:
    """P8: by the time at which the drop is found to have happened its name is another table's."""
    catalog.create_table("flights", SCHEMA).append(ids(0, 2))
    place = f"file://{tmp_path}/elsewhere" if elsewhere else None
    losing = faulty(catalog, Fault.LOST_REPLY)
    losing.meanwhile.append(lambda: other.create_table("flights", SCHEMA, place).append(ids(0, 3)))
    drop(catalog, "flights")
    assert other.load_table("flights").scan().to_arrow().num_rows == 3


def test_a_rename_is_known_by_the_table(catalog: EtcdCatalog, other: EtcdCatalog, tmp_path: Path) -> None:
    """P8: it has moved since, or nobody knows who has taken it where it is."""
    catalog.create_table("flights", SCHEMA).append(ids(0, 3))
    moved, losing = f"file://{tmp_path}/moved", faulty(catalog, Fault.LOST_REPLY)
    losing.meanwhile.append(lambda: move(other.load_table("departures"), moved))
    assert catalog.rename_table("flights", "departures").location() == moved
    other.rename_table("departures", "flights")
    faulty(catalog, Fault.LOST_REPLY).meanwhile.append(lambda: other.rename_table("departures", "leaving"))
    with pytest.raises(OutcomeUnknown):
        catalog.rename_table("flights", "departures")


@pytest.mark.parametrize("mine_was_first", [True, False])
def test_a_commit_after_a_lost_reply(catalog: EtcdCatalog, other: EtcdCatalog, mine_was_first: bool) -> None:
    """P8: the log of the table tells whether ours is behind what stands there; no row is lost or doubled."""
    table = catalog.create_table("flights", SCHEMA)
    losing = faulty(catalog, Fault.LOST_REPLY if mine_was_first else Fault.LOST_REQUEST)
    losing.meanwhile.append(lambda: other.load_table("flights").append(ids(100, 1)))
    table.append(ids(0, 3))
    assert ids_in(catalog, "flights") == [0, 1, 2, 100]


def test_a_commit_in_doubt_is_reported_and_keeps_its_files(catalog: EtcdCatalog) -> None:
    """P8: never deleted on doubt."""
    table = catalog.create_table("flights", SCHEMA)
    faulty(catalog, *[Fault.LOST_REQUEST] * (MAX_TRIES - 1), Fault.LOST_REPLY)
    with pytest.raises(CommitStateUnknownException):
        table.append(ids(0, 3))
    assert catalog.load_table("flights").scan().to_arrow().num_rows == 3


def test_a_full_etcd_may_have_made_the_commit_that_it_refuses(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """P8, O27: what was refused and not done leaves no metadata; what was done is a commit."""
    table = catalog.create_table("flights", SCHEMA)
    before = metadata_files(tmp_path)
    faulty(catalog, Fault.FULL)
    with pytest.raises(EtcdOutOfSpace):
        table.append(ids(0, 3))
    assert metadata_files(tmp_path) == before
    faulty(catalog, Fault.FULL_YET_DONE)
    table.append(ids(0, 3))
    assert catalog.load_table("flights").scan().to_arrow().num_rows == 3


def test_an_etcd_that_is_down_is_reported_within_the_deadline(tmp_path: Path) -> None:
    """U4, U3: and leaves no file."""
    properties = {"etcd.endpoints": "127.0.0.1:1", "etcd.timeout": "0.5", "warehouse": f"file://{tmp_path}"}
    with EtcdCatalog("down", **properties) as catalog:
        for call in (catalog.list_namespaces, lambda: catalog.create_table("flights", SCHEMA)):
            with pytest.raises(EtcdUnavailable):
                call()
    assert metadata_files(tmp_path) == set()


@pytest.mark.parametrize("name", ["py-io-impl", "write.py-location-provider.impl", "hf.token"])
def test_properties_that_name_code_are_refused(catalog: EtcdCatalog, name: str) -> None:
    """S1: at create, with a commit, and in metadata that is registered."""
    code = {name: "subprocess.Popen"}
    table = catalog.create_table("flights", SCHEMA)
    with pytest.raises(InvalidArgument, match=name):
        catalog.create_table("other", SCHEMA, properties=code)
    with pytest.raises(InvalidArgument, match=name), table.transaction() as change:
        change.set_properties(code)
    assert catalog.list_tables("default") == [("default", "flights")]
    assert catalog.load_table("flights").properties == table.properties
    catalog.drop_table("flights")
    path = table.metadata_location.removeprefix("file://")
    foreign = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**foreign, "properties": {**foreign["properties"], **code}}))
    with pytest.raises(InvalidArgument, match=name):
        catalog.register_table("flights", table.metadata_location)
    assert catalog.list_tables("default") == []


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
def test_files_of_a_table_go_into_its_folder_only(catalog: EtcdCatalog, tmp_path: Path, name: str) -> None:
    """S2: neither into another table's nor into one that nobody has claimed; whoever asks for it."""
    flights, other = catalog.create_table("flights", SCHEMA), catalog.create_table("other", SCHEMA)
    before = metadata_files(tmp_path)
    for place in (other.location(), f"{flights.location()}2", f"file://{tmp_path}/elsewhere", "nowhere"):
        with pytest.raises(InvalidArgument), flights.transaction() as change:
            change.set_properties({name: place})
        with pytest.raises(InvalidArgument):
            catalog.create_table("third", SCHEMA, properties={name: place})
    assert metadata_files(tmp_path) == before
    with flights.transaction() as change:
        change.set_properties({name: f"{flights.location()}/aside"})
    flights.append(ids(0, 1))
    assert list(Path(flights.location().removeprefix("file://"), "aside").iterdir())
    with pytest.raises(InvalidArgument, match="own folder"):
        move(flights, f"file://{tmp_path}/elsewhere")
