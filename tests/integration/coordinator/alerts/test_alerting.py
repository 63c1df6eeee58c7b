"""What is sent of histories in etcd, to a webhook that answers as the test says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from distop.coordinator.alerts import alerting as alerting_module
from distop.coordinator.alerts.alerting import Alerting, AlertingConfig, Outcomes, current_alerts
from distop.coordinator.alerts.conditions import BLOCKED, PARKED, Lateness, name_of
from distop.coordinator.alerts.webhook import Webhook
from distop.errors import PreconditionFailed, Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode
from distop.metastore.records.table import AlertCursor, AlertRecord
from distop.process.secret import Secret
from support.etcd.starts import make_table
from support.waiting import eventually

NOW = 1_000_000.0


class Receiver(Webhook):
    """Keeps the names of what it accepts."""

    def __init__(self) -> None:
        super().__init__(Secret("http://127.0.0.1:1/"))
        self.accepted: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.errors: dict[str, Exception] = {}
        """What it raises, by the name of an alert."""

    async def send(self, document: Mapping[str, Any]) -> None:
        name = document["name"]
        self.asked.append(name)
        if name in self.errors:
            raise self.errors[name]
        self.accepted.append((document["status"], name))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting_module, "SHARE", 0)


@asynccontextmanager
async def alerting(client: EtcdClient, config: EtcdConfig, receiver: Receiver) -> AsyncIterator[None]:
    settings = AlertingConfig(etcd=config, every_s=0.02)
    task = asyncio.create_task(Alerting(client, receiver, settings, wall=lambda: NOW).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def end(
    client: EtcdClient, table: str, *, outcome: str = "failed", at: float = NOW, instance: int = 1
) -> None:
    """An operation that has ended, as its finish leaves it."""
    operation = OperationId(table, "noop", instance)
    record = HistoryRecord(outcome=outcome, error_code="JOB_FAILED", finished_at=at)
    await client.put(client.keyspace.table(table).history(operation), encode(record))


async def ready(client: EtcdClient, *tables: str) -> None:
    """Tables, and failures that count from here on."""
    for table in tables:
        await make_table(client, table)
    cursor = AlertCursor(revision=await client.revision(), at=NOW)
    await client.put(client.keyspace.alert_cursor, encode(cursor))


async def test_a_failure_of_a_coordinator_whose_clock_is_behind_is_sent_and_no_record_is_skipped_silently(
    client: EtcdClient, etcd_config: EtcdConfig, caplog: pytest.LogCaptureFixture
) -> None:
    await ready(client, "behind", "good", "moved")
    receiver, ending = Receiver(), OperationId("behind", "noop", 1)
    await end(client, "moved", at=NOW - 7200)
    await end(client, "good")
    await client.put(client.keyspace.active_operation(ending), b"")
    with caplog.at_level(logging.WARNING):
        async with alerting(client, etcd_config, receiver):
            await eventually(lambda: ("firing", "failed:good/noop") in receiver.accepted)
            await end(client, "behind", at=NOW - 7200)
            await client.delete(client.keyspace.active_operation(ending))
            await eventually(lambda: ("firing", "failed:behind/noop") in receiver.accepted)
    assert [vars(record)["first"] for record in caplog.records if record.msg == "alerts_skipped"] == ["moved"]
    assert len(receiver.accepted) == 2


async def test_alerts_that_get_no_answer_or_are_refused_hold_up_no_others(
    client: EtcdClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are all histories read again for them; and each arrives when it is accepted."""
    receiver, read_all, times = Receiver(), Outcomes.read_all, list[int]()

    async def counted(outcomes: Outcomes, client: EtcdClient) -> None:
        times.append(1)
        await read_all(outcomes, client)

    monkeypatch.setattr(Outcomes, "read_all", counted)
    bad = ("a", "b", "c", "d")
    await ready(client, *bad, "good")
    for table in (*bad, "good"):
        await end(client, table)
    receiver.errors = {f"failed:{table}/noop": Unavailable("status 500") for table in bad}
    receiver.errors["failed:d/noop"] = PreconditionFailed("status 400")
    await client.put(client.keyspace.active_operation(OperationId("d", "noop", 1)), b"")  # being cleaned up
    async with alerting(client, etcd_config, receiver):
        await eventually(lambda: ("firing", "failed:good/noop") in receiver.accepted)
        asked = len(receiver.asked)
        await eventually(lambda: len(receiver.asked) > asked + 2 * len(bad))
        assert len(times) == 1
        await end(client, "a", outcome="success", instance=2)
        await client.put(client.keyspace.active_operation(OperationId("a", "noop", 2)), b"")
        receiver.errors.clear()
        expected = [*(("firing", f"failed:{table}/noop") for table in (*bad, "good"))]
        expected.append(("resolved", "failed:a/noop"))
        await eventually(lambda: len(receiver.accepted) == len(expected))
    assert sorted(receiver.accepted) == expected


async def test_a_record_that_cannot_be_read_ends_no_alert(client: EtcdClient) -> None:
    space, parked = client.keyspace, OperationId("bad", "noop", 1)
    await make_table(client, "bad")
    records = [
        AlertRecord(kind=BLOCKED, table="bad", batch="a"),
        AlertRecord(kind=PARKED, table="bad", operation=str(parked)),
    ]
    for record in records:
        await client.put(space.alert(name_of(record)), encode(record))
    await client.put(space.active_operation(parked), b"")
    for key in (space.table("bad").ordering, space.operation(parked).completion):
        await client.put(key, b"{")
    assert await current_alerts(client, Lateness()) == records
