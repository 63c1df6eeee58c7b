"""The REST catalog with pyiceberg's client, beside a program that uses etcd itself."""

import re
from pathlib import Path

import pytest
from pyiceberg import exceptions
from pyiceberg.catalog.rest import RestCatalog as RestClient
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from distop.catalog.catalog import EtcdCatalog
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA, ids, ids_in, metadata_files
from support.tables.formats import newer_metadata


def test_a_table_made_over_rest_is_seen_by_python_and_the_other_way_round(
    rest: RestClient, python: EtcdCatalog, tmp_path: Path
) -> None:
    """P14: one table, whichever door it is reached by; the server chooses where a new one lies."""
    rest.create_namespace("ny", {"owner": "ada"})
    assert python.load_namespace_properties("ny") == {"owner": "ada"}
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
    made = rest.create_table("ny.taxis", SCHEMA, partition_spec=spec, properties={"a": "b"})
    assert re.fullmatch(f"file://{tmp_path}/warehouse/ny/taxis-[0-9a-f]{{32}}", made.location())
    made.append(ids(0, 3))
    python.load_table("ny.taxis").append(ids(3, 2))
    made.refresh()
    made.append(ids(5, 1))
    assert ids_in(rest, "ny.taxis") == ids_in(python, "ny.taxis") == list(range(6))
    found = python.load_table("ny.taxis")
    assert found.metadata == rest.load_table("ny.taxis").metadata
    assert (found.properties["a"], found.spec().fields[0].name) == ("b", "kind")


def test_a_client_that_asks_for_planning_by_the_server_plans_by_itself(
    door: RestDoor, python: EtcdCatalog
) -> None:
    """E1: what is not there is not among the endpoints, so clients know."""
    python.create_table("default.t", SCHEMA).append(ids(0, 3))
    with door.client(**{"scan-planning-mode": "server"}) as client:
        assert not client.supports_server_side_planning()
        assert client.load_table("default.t").scan(row_filter="id = 1").to_arrow()["id"].to_pylist() == [1]


def test_tables_are_listed_renamed_and_dropped(rest: RestClient, python: EtcdCatalog) -> None:
    """P14"""
    rest.create_namespace("ny")
    python.create_table("ny.a", SCHEMA)
    rest.create_table("ny.b", SCHEMA)
    rest.create_table("default.c", SCHEMA)
    assert rest.list_tables("ny") == python.list_tables("ny") == [("ny", "a"), ("ny", "b")]
    assert rest.list_tables("default") == [("default", "c")]
    rest.rename_table("ny.a", "ny.z")
    assert python.table_exists("ny.z")
    assert not rest.table_exists("ny.a")
    with pytest.raises(exceptions.TableAlreadyExistsError):
        rest.rename_table("ny.z", "ny.b")
    rest.drop_table("ny.z")
    assert not python.table_exists("ny.z")
    with pytest.raises(exceptions.NoSuchTableError):
        rest.drop_table("ny.z")
    with pytest.raises(exceptions.NoSuchTableError):
        rest.load_table("ny.z")


def test_purging_removes_the_files(rest: RestClient, tmp_path: Path) -> None:
    kept, purged = rest.create_table("default.kept", SCHEMA), rest.create_table("default.purged", SCHEMA)
    for table in (kept, purged):
        table.append(ids(0, 2))
    rest.drop_table("default.kept")
    rest.purge_table("default.purged")
    left = set(tmp_path.rglob("*.parquet"))
    assert {str(path).startswith(kept.location().removeprefix("file://")) for path in left} == {True}


def test_a_table_is_taken_over_where_it_lies(rest: RestClient, python: EtcdCatalog) -> None:
    table = rest.create_table("default.a", SCHEMA)
    table.append(ids(0, 2))
    where = table.metadata_location
    rest.drop_table("default.a")
    assert rest.register_table("default.b", where).metadata_location == where
    assert ids_in(python, "default.b") == [0, 1]
    with pytest.raises(exceptions.TableAlreadyExistsError):
        rest.register_table("default.b", where)


def test_a_table_of_format_3_is_taken_over_unless_a_type_is_not_known(rest: RestClient) -> None:
    """V5: the answer was 501, which says that nothing has happened, and the table was there."""
    table = rest.create_table("default.a", SCHEMA)
    table.append(ids(0, 2))
    where = table.metadata_location
    rest.drop_table("default.a")
    with pytest.raises(exceptions.BadRequestError, match="column 'x' of the type variant"):
        rest.register_table("default.b", newer_metadata(where, {"name": "x", "type": "variant"}))
    assert not rest.table_exists("default.b")
    taken = rest.register_table("default.b", newer_metadata(where))
    assert taken.metadata.format_version == 3
    assert taken.metadata == rest.load_table("default.b").metadata


def test_a_table_made_with_its_first_rows_appears_with_them(rest: RestClient, python: EtcdCatalog) -> None:
    """A staged table is nothing until it is committed, and then all of it at once."""
    transaction = rest.create_table_transaction("default.t", SCHEMA)
    assert not python.table_exists("default.t")
    with transaction:
        transaction.update_schema().add_column("more", StringType()).commit()
        transaction.set_properties(a="b")
    found = python.load_table("default.t")
    assert (found.properties["a"], found.schema().column_names) == ("b", ["id", "kind", "more"])
    with pytest.raises(exceptions.TableAlreadyExistsError):
        rest.create_table_transaction("default.t", SCHEMA)


def test_one_of_two_commits_on_the_same_state_wins(rest: RestClient, python: EtcdCatalog, tmp_path: Path):
    """P7: the other is told that nothing has happened, and leaves no metadata."""
    first = rest.create_table("default.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    python.load_table("default.t").append(ids(0, 1))
    with pytest.raises(exceptions.CommitFailedException):
        first.append(ids(1, 1))
    assert len(metadata_files(tmp_path)) == 2
    first.refresh().append(ids(1, 1))
    assert ids_in(rest, "default.t") == [0, 1]


def test_a_commit_to_another_branch_makes_one_late_and_not_wrong(rest: RestClient) -> None:
    """P7: both took the same sequence number; the later one is to refresh and try again."""
    table = rest.create_table("default.t", SCHEMA)
    table.append(ids(0, 1))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
    one, other = rest.load_table("default.t"), rest.load_table("default.t")
    one.append(ids(1, 1), branch="side")
    other.append(ids(2, 1))
    assert ids_in(rest, "default.t") == [0, 2]


def test_namespaces_are_created_listed_changed_and_dropped_over_rest(
    rest: RestClient, tmp_path: Path
) -> None:
    for name in ("a", "a.b", "c"):
        rest.create_namespace(name)
    assert rest.list_namespaces() == [("a",), ("c",), ("default",)]
    assert rest.list_namespaces("a") == [("a", "b")]
    summary = rest.update_namespace_properties("c", {"no"}, {"x": "1"})
    assert (summary.updated, summary.missing) == (["x"], ["no"])
    assert rest.load_namespace_properties("c") == {"x": "1", "location": f"file://{tmp_path}/warehouse/c"}
    assert rest.namespace_exists("a.b")
    assert not rest.namespace_exists("z")
    with pytest.raises(exceptions.NamespaceAlreadyExistsError):
        rest.create_namespace("a")
    with pytest.raises(exceptions.NamespaceNotEmptyError):
        rest.drop_namespace("a")
    rest.drop_namespace("a.b")
    for missing in (rest.list_tables, rest.drop_namespace, rest.load_namespace_properties):
        with pytest.raises(exceptions.NoSuchNamespaceError):
            missing("a.b")
    with pytest.raises(exceptions.NoSuchNamespaceError):
        rest.create_table("z.t", SCHEMA)


def test_a_namespace_tells_where_tables_lie(rest: RestClient, python: EtcdCatalog, tmp_path: Path) -> None:
    """E1: Trino makes a place for each table below it. It is not kept, nor in the way of another one."""
    below = f"file://{tmp_path}/warehouse"
    rest.create_namespace("a.b")
    for name in ("default", "a.b"):
        assert rest.load_namespace_properties(name) == {"location": f"{below}/{name}"}
        made = rest.create_table(f"{name}.t", SCHEMA)
        assert made.location().startswith(f"{below}/{name}/t-")
    assert python.load_namespace_properties("a.b") == {}
    assert rest.update_namespace_properties("a.b", {"location"}).missing == ["location"]
    rest.update_namespace_properties("a.b", updates={"location": f"{below}/elsewhere"})
    assert rest.load_namespace_properties("a.b") == {"location": f"{below}/elsewhere"}
    assert rest.create_table("a.b.u", SCHEMA).location().startswith(f"{below}/elsewhere/u-")


def test_lists_come_in_pages(door: RestDoor, python: EtcdCatalog) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in ("n0", "n1", "n2"):
        python.create_namespace(name)
    for name in names:
        python.create_table(f"n1.{name}", SCHEMA)
    with door.client(**{"rest-page-size": "2"}) as client:
        assert client.list_tables("n1") == [("n1", name) for name in names]
        assert client.list_namespaces() == [("default",), ("n0",), ("n1",), ("n2",)]
    first = door.ask("GET", "namespaces/n1/tables?pageSize=2&pageToken=").json
    assert [one["name"] for one in first["identifiers"]] == names[:2]
    assert door.ask("GET", "namespaces?pageSize=none").problem == (400, "BadRequestException")


def test_a_property_that_names_code_is_refused(rest: RestClient) -> None:
    """S4"""
    table = rest.create_table("default.t", SCHEMA)
    with pytest.raises(exceptions.BadRequestError, match="names code"), table.transaction() as transaction:
        transaction.set_properties(**{"py-io-impl": "os.system"})
