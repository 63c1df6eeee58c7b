"""Programs that die right after they have renamed or dropped a table: what is left under the name is finished
by whoever comes by."""

from collections.abc import Callable, Iterator

import pytest
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.namespaces import Naming
from distop.client import AsyncClient
from distop.errors import TableNotFound
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode
from distop.metastore.tables.schedules import MAX_SCHEDULES
from support.services.coordinators import config_of, running
from support.tables.catalogs import SCHEMA, all_keys, give_a_past, keys_of
from support.tables.nowhere import nowhere
from support.waiting import eventually

OPERATIONS = 120
"""More than one transaction moves."""


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Programs die right after their transaction; until this is called."""
    with monkeypatch.context() as patched:
        patched.setattr(Naming, "_tidy", lambda *args: None)
        yield patched.undo


def rename(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    catalog.create_table("flights", SCHEMA)
    give_a_past(store, "flights", operations=OPERATIONS)
    catalog.rename_table("flights", "departures")
    assert past(store, "flights") == OPERATIONS
    assert past(store, "departures") == 0


def drop(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    catalog.create_table("flights", SCHEMA)
    give_a_past(store, "flights", operations=OPERATIONS)
    catalog.drop_table("flights")
    assert past(store, "flights") == OPERATIONS


def past(store: SyncEtcd, table: str) -> int:
    """Operations that a table remembers."""
    return len(store.scan(keys_of(store, table).history_prefix, keys_only=True).kvs)


def below(store: SyncEtcd, table: str) -> list[str]:
    own = (f"{table}.", f"_dropped.{table}")
    return [key for key in all_keys(store) if key.startswith(own) and key != f"{table}.coordinator"]


def trail(store: SyncEtcd, table: str) -> int:
    return len(store.scan(keys_of(store, table).audit_prefix, keys_only=True).kvs)


def again(catalog: EtcdCatalog) -> None:
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("flights", "elsewhere")


def drop_again(catalog: EtcdCatalog) -> None:
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("flights")


@pytest.mark.parametrize("then", [again, drop_again, lambda catalog: catalog.create_table("flights", SCHEMA)])
def test_what_a_rename_has_left_follows_the_table(
    catalog: EtcdCatalog, store: SyncEtcd, dies: Callable[[], None], then: Callable[[EtcdCatalog], None]
) -> None:
    """C4, U2, O22: done by the next who comes by, and none of it is another table's past."""
    rename(catalog, store)
    dies()
    then(catalog)
    assert (past(store, "flights"), past(store, "departures")) == (0, OPERATIONS)
    assert trail(store, "departures") == 2
    if not catalog.table_exists("flights"):
        assert below(store, "flights") == []


def test_the_past_of_a_table_follows_each_rename_and_goes_with_a_drop(
    catalog: EtcdCatalog, store: SyncEtcd, dies: Callable[[], None]
) -> None:
    """C4: a table under its third name has all of its past, a dropped one none."""
    rename(catalog, store)
    catalog.rename_table("departures", "leaving")
    dies()
    drop_again(catalog)
    assert (past(store, "departures"), past(store, "leaving")) == (OPERATIONS, 0)
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("departures")
    assert past(store, "leaving") == OPERATIONS
    catalog.drop_table("leaving")
    assert not [key for key in all_keys(store) if not key.startswith("_")]


def test_the_past_of_tables_goes_too(catalog: EtcdCatalog, store: SyncEtcd, dies: Callable[[], None]) -> None:
    """C4: also if a table of the new name has been made since."""
    rename(catalog, store)
    dies()
    catalog.drop_table("departures")
    catalog.create_table("departures", SCHEMA)
    catalog.create_table("flights", SCHEMA)
    assert (past(store, "flights"), past(store, "departures")) == (0, 0)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("flights", "departures")


def test_a_table_with_many_settings_is_renamed(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """C4: as many schedules as it may have, and an index of each of its columns."""
    catalog.create_table("flights", SCHEMA)
    keys, new = keys_of(store, "flights"), keys_of(store, "departures")
    settings = {keys.index(f"column{number}"): b"{}" for number in range(40)}
    settings |= {keys.schedule(f"schedule{number}"): b"{}" for number in range(MAX_SCHEDULES)}
    settings |= {keys.next_instance(kind): b"7" for kind in ("ingest", "build_index", "compact", "delete")}
    for key, value in settings.items():
        store.txn(Txn(then=(Put(key, value),)))
    catalog.rename_table("flights", "departures")
    found = {kv.key: kv.value for kv in store.scan(new.prefix).kvs}
    assert settings.items() <= {keys.prefix + key[len(new.prefix) :]: found[key] for key in found}.items()
    assert below(store, "flights") == []


def test_a_past_of_large_records_is_moved(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """C4: more than one request can write."""
    catalog.create_table("flights", SCHEMA)
    keys, facts = keys_of(store, "flights"), {"note": "x" * 40_000}
    record = encode(HistoryRecord(outcome="success", finished_at=1.0, facts=facts))
    for instance in range(1, 61):
        store.txn(Txn(then=(Put(keys.history(OperationId("flights", "noop", instance)), record),)))
    catalog.rename_table("flights", "departures")
    assert (past(store, "flights"), past(store, "departures")) == (0, 60)
    assert below(store, "flights") == []


def test_a_leftover_that_cannot_be_read_prevents_no_rename_of_other_tables(
    catalog: EtcdCatalog, store: SyncEtcd, dies: Callable[[], None]
) -> None:
    """C4"""
    rename(catalog, store)
    dies()
    store.run(lambda client: client.put(client.keyspace.dropped("damaged"), b"damaged"))
    catalog.rename_table("departures", "leaving")
    assert past(store, "leaving") == OPERATIONS


@pytest.mark.parametrize("change", [rename, drop])
async def test_a_coordinator_finishes_what_nobody_comes_back_to(
    catalog: EtcdCatalog,
    store: SyncEtcd,
    dies: Callable[[], None],
    change: Callable[[EtcdCatalog, SyncEtcd], None],
    etcd_config: EtcdConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C4, C13."""
    change(catalog, store)
    dies()
    monkeypatch.setattr("distop.coordinator.leading.leadership.DROPS_EVERY_S", 0.05)
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:

        async def finished() -> bool:
            return not below(store, "flights")

        await eventually(finished)
        if change is rename:
            assert past(store, "departures") == OPERATIONS
        await sdk.create_table("flights", nowhere())


async def test_a_drop_of_the_old_name_of_a_renamed_table_drops_nothing(
    catalog: EtcdCatalog, store: SyncEtcd, dies: Callable[[], None], etcd_config: EtcdConfig
) -> None:
    """U3: there is no table of that name."""
    rename(catalog, store)
    dies()
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        with pytest.raises(TableNotFound):
            await sdk.table("flights").drop()
    assert (past(store, "flights"), past(store, "departures")) == (0, OPERATIONS)
