"""Views through the catalog: their names and folders are shared with tables, whatever happens meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.table.update import SetLocationUpdate, SetPropertiesUpdate

from distop.catalog.catalog import EtcdCatalog
from distop.errors import DistopError, InvalidArgument, LocationInUse
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.record import decode
from distop.metastore.records.table import AuditRecord
from support.etcd.lossy import Fault
from support.tables.catalogs import SCHEMA, all_keys, faulty, ids, metadata_files
from support.tables.views import replaced, view_version

V = "default.v"


def make(catalog: EtcdCatalog, name: str = V, sql: str = "SELECT 1", place: str | None = None) -> None:
    catalog.create_view(name, SCHEMA, view_version(sql), place)


def sql_of(catalog: EtcdCatalog, name: str = V) -> str:
    return catalog.load_view(name).current_version().representations[0].root.sql


def test_a_view_is_made_renamed_and_dropped(catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path) -> None:
    """P6, O29: and nothing of it is left in etcd; who did what stands in the audit trail."""
    catalog.create_namespace("sales.eu")
    made = catalog.create_view("sales.eu.v", ids(0, 1).schema, view_version(), properties={"comment": "all"})
    assert made == catalog.load_view("sales.eu.v")
    assert made.schema().find_field("id").field_id == 1
    assert Path(made.metadata_location.removeprefix("file://")) in metadata_files(tmp_path)
    assert catalog.list_views("sales.eu") == [("sales", "eu", "v")]
    assert (catalog.list_views("sales"), catalog.list_views("default")) == ([], [])
    changed = catalog.commit_view("sales.eu.v", (), replaced("SELECT 2"))
    assert (changed.current_version().version_id, sql_of(catalog, "sales.eu.v")) == (2, "SELECT 2")
    catalog.rename_view("sales.eu.v", V)
    assert not catalog.view_exists("sales.eu.v")
    assert catalog.load_view(V).metadata == changed.metadata
    catalog.drop_namespace("sales.eu")
    catalog.drop_view(V)
    for gone in (catalog.load_view, catalog.drop_view):
        with pytest.raises(NoSuchViewError, match=r"View does not exist: default\.v"):
            gone(V)
    assert all_keys(store) == []
    trail = [decode(kv.value, AuditRecord) for kv in store.scan(store.keyspace.audit_prefix).kvs]
    done = [f"{one.action} {one.target}" for one in trail if "view" in one.action]
    assert done == ["create-view sales.eu.v", "alter-view sales.eu.v", "rename-view v", "drop-view v"]


def test_a_view_is_registered_from_its_file(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """U3: a file that holds none is an invalid argument, whatever it is."""
    make(catalog)
    there = catalog.load_view(V)
    with pytest.raises(LocationInUse):
        catalog.register_view("default.w", there.metadata_location)
    catalog.drop_view(V)
    assert catalog.register_view("default.w", there.metadata_location).metadata == there.metadata
    assert catalog.load_view("default.w").metadata == there.metadata
    (tmp_path / "no.json").write_text('{"view-uuid": 5}')
    odd = {"view_uuid": "mine", "location": f"file://{tmp_path}/x"}
    (tmp_path / "uuid.json").write_text(there.metadata.model_copy(update=odd).model_dump_json())
    for bad in ("no.json", "missing.json", "uuid.json"):
        with pytest.raises(InvalidArgument):
            catalog.register_view("default.x", f"file://{tmp_path / bad}")
    assert catalog.list_views("default") == [("default", "w")]


def test_a_namespace_with_a_view_is_not_dropped(catalog: EtcdCatalog) -> None:
    """U3: also one that nobody has created, and the views are found in the right one."""
    with pytest.raises(NoSuchNamespaceError):
        make(catalog, "a.v")
    catalog.create_namespace("a")
    make(catalog, "a.v")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("a")
    catalog.rename_view("a.v", V)
    catalog.drop_namespace("a")
    assert catalog.list_namespaces() == [("default",)]
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("default")


def taken(catalog: EtcdCatalog) -> list[Callable[[], object]]:
    """Each way to give something the name of a view (``v``) or of a table (``t``)."""
    staged = catalog.create_table_transaction("default.late", SCHEMA)
    other = catalog.create_table("default.other", SCHEMA)
    catalog.create_view("default.another", SCHEMA, view_version())
    catalog.drop_table("default.other")
    make(catalog, "default.late")
    return [
        lambda: catalog.create_table(V, SCHEMA),
        lambda: catalog.register_table(V, other.metadata_location),
        lambda: catalog.staged(V, SCHEMA),
        lambda: staged.commit_transaction(),
        lambda: catalog.rename_table("default.t", V),
        lambda: make(catalog, "default.t"),
        lambda: make(catalog),
        lambda: catalog.register_view("default.t", "file:///nowhere"),
        lambda: catalog.rename_view(V, "default.t"),
        lambda: catalog.rename_view(V, "default.another"),
    ]


def test_names_are_shared_with_tables(catalog: EtcdCatalog) -> None:
    """O29, P6: each way in; and neither is taken for the other."""
    make(catalog)
    catalog.create_table("default.t", SCHEMA)
    for attempt in taken(catalog):
        with pytest.raises((TableAlreadyExistsError, ViewAlreadyExistsError), match="already exists"):
            attempt()
    for of_tables, of_views in (
        (catalog.load_table, catalog.load_view),
        (catalog.drop_table, catalog.drop_view),
    ):
        with pytest.raises(NoSuchTableError):
            of_tables(V)
        with pytest.raises(NoSuchViewError):
            of_views("default.t")
    assert catalog.list_tables("default") == [("default", "t")]
    assert [name for _, name in catalog.list_views("default")] == ["another", "late", "v"]


def test_a_table_and_a_view_made_at_once_under_one_name_cannot_both_exist(
    catalog: EtcdCatalog, other: EtcdCatalog, store: SyncEtcd, tmp_path: Path
) -> None:
    """P6: both have looked, and seen that the name is free; one transaction finds out."""
    with ThreadPoolExecutor(2) as threads:
        for number in range(5):
            name, ready = f"default.n{number}", Barrier(2)

            def once(way: Callable[[str], object], name: str = name, ready: Barrier = ready) -> bool:
                ready.wait(30)
                try:
                    way(name)
                except (TableAlreadyExistsError, ViewAlreadyExistsError):
                    return False
                return True

            ways = (lambda name: make(catalog, name), lambda name: other.create_table(name, SCHEMA))
            assert sum(threads.map(once, ways)) == 1
            assert catalog.view_exists(name) + other.table_exists(name) == 1
    claims = [key for key in all_keys(store) if key.startswith("_locations.")]
    assert len(claims) == len(metadata_files(tmp_path)) == 5


@pytest.mark.parametrize("name", ["table", "view"])
def test_a_name_that_is_taken_after_the_look_is_noticed(
    catalog: EtcdCatalog, other: EtcdCatalog, tmp_path: Path, name: str
) -> None:
    """P6: between the look and the transaction; what was written for the loser is removed."""
    losing = faulty(catalog, Fault.LOST_REQUEST)
    if name == "view":
        losing.meanwhile.append(lambda: other.create_table(V, SCHEMA))
        with pytest.raises(ViewAlreadyExistsError, match="Table with same name"):
            make(catalog)
    else:
        losing.meanwhile.append(lambda: make(other))
        with pytest.raises(TableAlreadyExistsError):
            catalog.create_table(V, SCHEMA)
    assert len(metadata_files(tmp_path)) == 1


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
def test_lost_replies_are_known(catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path, fault: Fault) -> None:
    """P8: of everything that changes a view; each happens once."""
    faulty(catalog, fault)
    make(catalog)
    faulty(catalog, fault)
    catalog.commit_view(V, (), replaced("SELECT 2"))
    faulty(catalog, fault)
    catalog.rename_view(V, "default.w")
    assert sql_of(catalog, "default.w") == "SELECT 2"
    assert len(catalog.load_view("default.w").versions) == len(metadata_files(tmp_path)) == 2
    faulty(catalog, fault)
    catalog.drop_view("default.w")
    assert all_keys(store) == []


@pytest.mark.parametrize("mine_was_first", [True, False])
def test_a_view_that_another_caller_changes_after_a_lost_reply_loses_no_file(
    catalog: EtcdCatalog, other: EtcdCatalog, tmp_path: Path, mine_was_first: bool
) -> None:
    """P8: where nobody knows, it is said so, and no file is removed; else both changes are there."""
    make(catalog)
    losing = faulty(catalog, Fault.LOST_REPLY if mine_was_first else Fault.LOST_REQUEST)
    losing.meanwhile.append(lambda: other.commit_view(V, (), replaced("SELECT 3")))
    with pytest.raises(CommitStateUnknownException):
        catalog.commit_view(V, (), replaced("SELECT 2"))
    assert sql_of(catalog) == "SELECT 3"
    assert len(catalog.load_view(V).versions) == (3 if mine_was_first else 2)
    assert len(metadata_files(tmp_path)) == 3


def test_an_overtaken_change_is_made_on_top(catalog: EtcdCatalog, other: EtcdCatalog, tmp_path: Path) -> None:
    """P6: neither change is lost, and the file of the lost attempt is removed."""
    make(catalog)

    def change(through: EtcdCatalog, name: str) -> None:
        for number in range(4):
            through.commit_view(V, (), replaced(f"SELECT '{name}{number}'"))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(change, [catalog, other], "ab"))
    view = catalog.load_view(V)
    assert [one.version_id for one in view.versions] == list(range(1, 10))
    assert len({one.representations[0].root.sql for one in view.versions}) == 9
    assert len(metadata_files(tmp_path)) == 9


def test_a_folder_is_one_views_or_one_tables(catalog: EtcdCatalog, tmp_path: Path) -> None:
    """S2: nor does it lie in another's; it is given up with the view, and moves with it."""
    table = catalog.create_table("default.t", SCHEMA)
    place = f"file://{tmp_path}/place"
    make(catalog, place=place)
    make(catalog, "default.theirs", place=f"file://{tmp_path}/theirs")
    refused: list[Callable[[], object]] = [
        lambda: make(catalog, "default.w", place=table.location()),
        lambda: make(catalog, "default.w", place=f"{place}/inner"),
        lambda: catalog.create_table("default.u", SCHEMA, place),
        lambda: catalog.commit_view(V, (), [SetLocationUpdate(location=f"{table.location()}/in")]),
        lambda: catalog.commit_view(V, (), [SetLocationUpdate(location=f"file://{tmp_path}/theirs/in")]),
    ]
    for attempt in refused:
        with pytest.raises(LocationInUse):
            attempt()
    assert len(metadata_files(tmp_path)) == 3
    assert not (tmp_path / "theirs" / "in").exists()  # nothing was written there, not even for a moment
    moved = catalog.commit_view(V, (), [SetLocationUpdate(location=f"file://{tmp_path}/moved")])
    assert moved.metadata_location.startswith(f"file://{tmp_path}/moved/metadata/")
    make(catalog, "default.w", place=place)
    catalog.rename_view(V, "default.x")
    catalog.drop_view("default.x")
    catalog.create_table("default.u", SCHEMA, f"file://{tmp_path}/moved")


def test_a_place_that_may_not_be_opened_is_refused(
    catalog: EtcdCatalog, store: SyncEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: to make a view there, to move one there, and to register one from there."""
    make(catalog)
    there = catalog.load_view(V)
    monkeypatch.setenv("DISTOP_ALLOW_LOCATIONS", str(tmp_path / "warehouse"))
    outside = f"file://{tmp_path}/outside"
    (tmp_path / "outside.json").write_text(there.metadata.model_dump_json())
    for attempt in (
        lambda: make(catalog, "default.w", place=outside),
        lambda: catalog.commit_view(V, (), [SetLocationUpdate(location=outside)]),
        lambda: catalog.register_view("default.w", f"{outside}.json"),
    ):
        with pytest.raises(DistopError, match="may not be opened here") as caught:
            attempt()
        assert caught.value.code == "NOT_ALLOWED"
    assert catalog.list_views("default") == [("default", "v")]
    assert not (tmp_path / "outside").exists()
    catalog.commit_view(V, (), [SetPropertiesUpdate(updates={"comment": "x"})])
