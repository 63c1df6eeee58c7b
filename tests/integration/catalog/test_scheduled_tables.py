"""What is done to a table by itself goes where the table goes."""

from concurrent.futures import Future
from typing import Any

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.namespaces import Naming
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import DeleteRange, KeyValue
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import encode_plain
from distop.metastore.tables.schedules import (
    MAX_SCHEDULE_BYTES,
    MAX_SCHEDULES,
    ScheduleRecord,
    add_schedule,
    agenda_of,
    read_schedules,
    remove_schedule,
)
from support.tables.catalogs import SCHEMA, all_keys, keys_of

LARGE = {"x": "y" * (MAX_SCHEDULE_BYTES - 200)}


def add(store: SyncEtcd, keys: TableKeys, name: str, **fields: Any) -> None:
    record = ScheduleRecord(type="noop", cron="0 0 1 1 *", request=name, **fields)
    store.run(lambda client: add_schedule(client, keys, name, record, check=lambda _: None))


def names(store: SyncEtcd, keys: TableKeys) -> list[str]:
    return list(store.run(lambda client: read_schedules(client, keys))[0])


def test_a_rename_takes_schedules_along_a_drop_removes_them(catalog: EtcdCatalog, store: SyncEtcd) -> None:
    """As many as there may be, each as large as it may be."""
    catalog.create_table("flights", SCHEMA)
    old, new = keys_of(store, "flights"), keys_of(store, "departures")
    for number in range(MAX_SCHEDULES):
        add(store, old, f"s{number:02}.of flights", tick=7.0, started=3, argument=LARGE)
    catalog.rename_table("flights", "departures")
    assert names(store, new) == [f"s{number:02}.of flights" for number in range(MAX_SCHEDULES)]
    moved = store.run(lambda client: read_schedules(client, new))[0]["s07.of flights"]
    assert isinstance(moved, ScheduleRecord)
    assert (moved.tick, moved.started, moved.argument) == (7.0, 3, LARGE)
    assert not store.get(old.agenda).exists
    agenda = agenda_of(store.get(new.agenda))
    assert (agenda.due, len(agenda.decided)) == (0.0, 16), "a leader looks, and repeats are recognised"
    catalog.drop_table("departures")
    assert not [key for key in all_keys(store) if "schedule" in key]


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_schedule_that_is_changed_during_a_rename_is_not_lost(
    catalog: EtcdCatalog, store: SyncEtcd, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The rename has read the schedules, and then somebody changes them: it loses, and reads them again."""
    catalog.create_table("flights", SCHEMA)
    old, new = keys_of(store, "flights"), keys_of(store, "departures")
    add(store, old, "first")
    listed, told = Naming._settings, Future[None]()

    def list_and_be_too_slow(self: Naming, keys: TableKeys) -> tuple[list[KeyValue], list[DeleteRange]]:
        found = listed(self, keys)
        if not told.done():
            told.set_result(None)
            if change == "add":
                add(store, old, "second")
            else:
                store.run(lambda client: remove_schedule(client, old, "first", request="gone"))
        return found

    monkeypatch.setattr(Naming, "_settings", list_and_be_too_slow)
    catalog.rename_table("flights", "departures")
    assert names(store, new) == (["first", "second"] if change == "add" else [])
    assert not [key for key in all_keys(store) if key.startswith(("flights.schedule", "_schedules.flights"))]


def test_watermarks_that_are_set_by_hand_during_a_rename_are_not_lost(
    catalog: EtcdCatalog, store: SyncEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: the first ones of a table."""
    catalog.create_table("flights", SCHEMA)
    old, new = keys_of(store, "flights"), keys_of(store, "departures")
    listed, set_by_hand = Naming._settings, encode_plain({"source": {"0": "7"}})

    def list_and_be_too_slow(self: Naming, keys: TableKeys) -> tuple[list[KeyValue], list[DeleteRange]]:
        found = listed(self, keys)
        if not store.get(old.watermarks).exists:
            store.put(old.watermarks, set_by_hand)
        return found

    monkeypatch.setattr(Naming, "_settings", list_and_be_too_slow)
    catalog.rename_table("flights", "departures")
    assert store.get(new.watermarks).value == set_by_hand
