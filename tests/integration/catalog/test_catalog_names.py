"""Names of tables and namespaces through the catalog, and what they are called by its errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.errors import both
from distop.catalog.namespaces import namespace_identifier, namespace_name, table_identifier, table_name
from distop.errors import (
    DistopError,
    EtcdUnavailable,
    IncompatibleOperation,
    InvalidArgument,
    InvalidName,
    OutcomeUnknown,
)
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Txn
from distop.metastore.records.record import encode, encode_plain
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.registry import table_puts
from support.tables.catalogs import SCHEMA, all_keys, ids, keys_of

NO_NAMES: list[Any] = ["", (), ("",), " ", ("a", ""), ("", "t"), "a..t", ".t", "t.", "a. .t", "_t"]
"""Identifiers that can name neither a table nor a namespace."""


def test_a_table_below_default_is_no_other_table(catalog: EtcdCatalog) -> None:
    """O29: ``default`` may be left out only where it is the whole namespace."""
    catalog.create_table("default.flights", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("flights", SCHEMA)
    catalog.create_namespace("a")
    catalog.create_table("a.t", SCHEMA).append(ids(0, 3))
    assert not catalog.table_exists("default.a.t")
    for drop in (catalog.drop_table, catalog.purge_table):
        with pytest.raises(NoSuchTableError):
            drop("default.a.t")
    catalog.create_namespace("default.a")
    below = catalog.create_table("default.a.t", SCHEMA)
    assert below.name() == ("default", "a", "t")
    assert below.location() != catalog.load_table("a.t").location()
    assert catalog.list_tables("default.a") == [("default", "a", "t")]
    assert catalog.list_namespaces("default") == [("default", "a")]
    catalog.purge_table("default.a.t")
    assert catalog.load_table("a.t").scan().to_arrow().num_rows == 3


def test_a_name_of_no_table_is_not_found(catalog: EtcdCatalog) -> None:
    """O29, U3: pyiceberg's callers are told in its own words."""
    for identifier in NO_NAMES:
        names_nothing(catalog, identifier)
    assert catalog.list_namespaces() == [("default",)]


def names_nothing(catalog: EtcdCatalog, identifier: Any) -> None:
    assert not catalog.table_exists(identifier)
    assert not catalog.namespace_exists(identifier)
    for call in (catalog.load_table, catalog.drop_table, catalog.purge_table):
        with pytest.raises(NoSuchTableError):
            call(identifier)
    for create in (
        lambda: catalog.create_table(identifier, SCHEMA),
        lambda: catalog.register_table(identifier, "file:///nowhere"),
        lambda: catalog.rename_table("t", identifier),
        lambda: catalog.create_table_transaction(identifier, SCHEMA),
    ):
        with pytest.raises(InvalidName) as refused:
            create()
        assert isinstance(refused.value, (ValueError, NoSuchTableError))
    calls = (catalog.create_namespace, catalog.drop_namespace, catalog.load_namespace_properties)
    for asks in calls:
        with pytest.raises(NoSuchNamespaceError):
            asks(identifier)


def test_only_tables_that_can_be_loaded_are_listed(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O22: not those without anything published, nor those of another format; they fill their namespace."""
    catalog.create_namespace("n")
    for number in range(120):
        name = f"n.t{number:03d}"
        keys, kind = keys_of(store, name), "files" if number % 3 == 0 else "iceberg"
        record = TableRecord(name=name, location="file:///x", format=kind)
        store.txn(Txn(then=table_puts(keys, record)))
        if number % 2 == 0:
            store.put(keys.head, encode(Head(metadata_location="file:///x/m.json")))
    damaged = keys_of(store, "n.u")
    for key in (damaged.entry, damaged.table, damaged.head):
        store.put(key, b"damaged")
    wanted = [("n", f"t{number:03d}") for number in range(120) if number % 2 == 0 and number % 3]
    # One that cannot be read is listed: whoever loads it is told why.
    assert catalog.list_tables("n") == [*wanted, ("n", "u")]
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("n")


# -- namespaces --------------------------------------------------------------------------------------


def test_the_first_to_create_default_gives_it_its_properties(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O29: it is there from the beginning, but nobody has made it."""
    catalog.create_table("flights", SCHEMA)
    catalog.create_namespace("default", {"owner": "ada"})
    assert catalog.load_namespace_properties("default") == {"owner": "ada"}
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("default")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("default")
    catalog.drop_table("flights")
    catalog.drop_namespace("default")
    assert all_keys(store) == []
    assert catalog.load_namespace_properties("default") == {}
    with pytest.raises(NamespaceNotEmptyError, match="always there"):
        catalog.drop_namespace("default")


def test_a_namespace_that_only_holds_tables_can_be_created(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """O29"""
    store.put(keys_of(store, "ny.t").table, encode(TableRecord(name="ny.t", location="file:///x")))
    catalog.create_namespace("ny", {"owner": "ada"})
    assert catalog.load_namespace_properties("ny") == {"owner": "ada"}


NO_PROPERTIES: list[Any] = [
    *({"a": value} for value in (1, None, ["b"], b"b", "\ud800")),
    *({name: "b"} for name in (None, 1, ("a",))),
]


def test_properties_that_are_no_strings_are_refused(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3: what could not be read again is not stored."""
    catalog.create_namespace("ny", {"owner": "ada"})
    before = all_keys(store)
    for properties in NO_PROPERTIES:
        with pytest.raises(InvalidArgument) as refused:
            catalog.create_namespace("new", properties)
        assert isinstance(refused.value, ValueError)
        with pytest.raises(InvalidArgument):
            catalog.update_namespace_properties("ny", updates=properties)
    assert all_keys(store) == before
    assert catalog.load_namespace_properties("ny") == {"owner": "ada"}
    catalog.create_table("ny.flights", SCHEMA)


def test_names_that_read_as_others_are_refused(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3: of namespaces too, in which no table could be made; nothing is left."""
    catalog.create_namespace("ny")
    catalog.create_table("ny.t", SCHEMA)
    before = all_keys(store)
    for part in (".", "..", "a\0b", "a\x1bb", "a\x1fb", "a\u202eb", "a ", "Zu\u0308rich"):
        calls: list[Callable[[], object]] = [
            partial(catalog.create_namespace, (part,)),
            partial(catalog.create_namespace, ("ny", part)),
            partial(catalog.create_table, ("ny", part), SCHEMA),
            partial(catalog.rename_table, "ny.t", ("ny", part)),
        ]
        for create in calls:
            with pytest.raises(InvalidName):
                create()
    assert all_keys(store) == before


# -- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (OutcomeUnknown("x"), CommitStateUnknownException),
        (EtcdUnavailable("x"), ServiceUnavailableError),
        (IncompatibleOperation("x", hint="y", details={"table": "t"}), CommitFailedException),
        (InvalidArgument("x"), ValueError),
    ],
)
def test_an_error_is_distops_and_pyicebergs(error: DistopError, theirs: type[Exception]) -> None:
    """U3: whichever of the two a program knows; also after it was sent to another process."""
    for made in (both(error), both(both(error)), pickle.loads(pickle.dumps(both(error)))):
        assert isinstance(made, theirs)
        assert isinstance(made, type(error))
        assert type(made).__name__ == type(error).__name__
        assert (made.code, str(made), made.details) == (error.code, str(error), error.details)


def test_a_program_of_pyiceberg_catches_what_distop_raises(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """U3"""
    catalog.create_table("flights", SCHEMA)
    store.put(keys_of(store, "flights").run_ops, encode_plain({"ingest": ["17"]}))
    for change in (lambda: catalog.drop_table("flights"), lambda: catalog.rename_table("flights", "x")):
        with pytest.raises(CommitFailedException, match="flights/ingest/17") as refused:
            change()
        assert isinstance(refused.value, IncompatibleOperation)
    properties = {"etcd.endpoints": "127.0.0.1:1", "etcd.timeout": "0.5"}
    with EtcdCatalog("down", **properties) as down, pytest.raises(ServiceUnavailableError):
        down.list_namespaces()


@given(st.lists(st.text(st.sampled_from(".%25Ea"), min_size=1, max_size=8), min_size=2, max_size=3))
def test_names_with_dots_in_their_parts_are_told_apart(parts: list[str]) -> None:
    """O29: there and back; and no other identifier has that name."""
    identifier = tuple(parts)
    assert table_identifier(table_name(identifier)) == identifier
    assert namespace_identifier(namespace_name(identifier)) == identifier


@given(st.lists(st.text(st.sampled_from("%25Ea"), min_size=1, max_size=8), min_size=1, max_size=3))
@example(["default", "x", "y"])
@example(["ü/x"])
@example(["default"])
def test_every_name_is_the_name_of_one_identifier(parts: list[str]) -> None:
    """O29"""
    assert table_name(table_identifier(".".join(parts))) == ".".join(parts)


def test_a_dot_in_a_part_is_no_level(catalog: EtcdCatalog) -> None:
    """O29: other names are what they seem; the default namespace may be left out."""
    assert table_name("t") == table_name("default.t") == table_name(("default", "t")) == "t"
    assert (table_identifier("t"), table_identifier("ny.t")) == (("default", "t"), ("ny", "t"))
    for name in ("t", "a.b.c", "default.x.y", "a b", "ü/x", "default"):
        assert table_name(".".join(table_identifier(name))) == name
    assert table_name(("a", "b", "t")) == table_name("a.b.t") == "a.b.t"
    assert table_name(("a.b", "100%")) == "a%2Eb.100%"
    for namespace in (("a.b",), ("a", "b")):
        catalog.create_namespace(namespace, {"is": repr(namespace)})
        catalog.create_table((*namespace, "t.1"), SCHEMA)
    assert catalog.list_namespaces() == [("a",), ("a.b",), ("default",)]
    assert catalog.load_namespace_properties(("a.b",)) == {"is": "('a.b',)"}
    assert catalog.list_tables(("a.b",)) == [("a.b", "t.1")]
    assert catalog.list_tables(("a", "b")) == [("a", "b", "t.1")]
    catalog.rename_table(("a.b", "t.1"), ("a.b", "u"))
    assert catalog.list_tables(("a.b",)) == [("a.b", "u")]
