"""Which of the tables that are due are checked at a time."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from distop.coordinator.schedules import timekeeping
from distop.coordinator.schedules.timekeeping import SLOT_S, Timekeeping
from distop.metastore.etcd.client import Listing
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.record import encode
from distop.metastore.tables.schedules import AgendaRecord
from support.waiting import eventually

SPACE = Keyspace()


async def test_tables_whose_check_hangs_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """G5: each counts for a while only, and is still checked after that."""
    monkeypatch.setattr(timekeeping, "AT_ONCE", 2)
    now = 1000.0
    client: Any = SimpleNamespace(keyspace=SPACE)
    kept = Timekeeping(client, lambda: now, lambda _: True, lambda _: None)

    async def changes() -> AsyncIterator[Listing]:
        kvs = [
            KeyValue(SPACE.table(f"t{at}").agenda, encode(AgendaRecord(due=float(at))), 1, 1)
            for at in range(5)
        ]
        yield Listing(kvs, 1)

    task = asyncio.create_task(kept.run(changes()))
    assert await eventually(lambda: kept.known)
    assert set(kept.due()) == {"t0", "t1"}
    now += SLOT_S / 2
    kept.regroup()
    assert set(kept.due()) == {"t0", "t1"}
    now += SLOT_S / 2
    kept.regroup()
    assert set(kept.due()) == {"t0", "t1", "t2", "t3"}
    now += SLOT_S
    kept.regroup()
    assert set(kept.due()) == {"t0", "t1", "t2", "t3", "t4"}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
