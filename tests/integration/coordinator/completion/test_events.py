"""What has happened to an operation: told while it runs and after its end, whoever led it or ran its jobs."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import AsyncClient, Event
from distop.coordinator.leading import driver
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.runs import Run, release_runner, take_operation, wait_again
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, RunnerRecord
from distop.metastore.records.record import decode
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service, config_of, running
from support.services.executing import lease
from support.waiting import eventually


async def taken(client: LossyClient, operation: OperationId, member: str, lease_id: int) -> Run:
    record, keys = RunnerRecord(member=member, started_at=time.time()), client.keyspace.operation(operation)
    found = await take_operation(client, keys, record, lease_id)
    assert found is not None
    return found.run


async def told(address: str, operation: OperationId) -> list[Event]:
    async with AsyncClient(address) as sdk:
        return list((await sdk.operation(str(operation)).get(events=True)).events)


async def written(client: LossyClient, operation: OperationId, text: bytes) -> bool:
    return text in (await client.get(client.keyspace.operation(operation).events)).value


async def test_events_outlive_runners_leaders_and_the_operation(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1, A7: each with its time, and in that order."""
    monkeypatch.setattr(driver, "TAKES_OVER_S", 0.0)
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as first:
        await first.create_table("t")
        argument = {"log": str(tmp_path / "log"), "raises": 1}
        operation = await first.start("t", "hooked", argument, started_by="ann")
        assert await eventually(partial(written, client, operation, coordinator.member.encode()))
        async with lease(client) as session:
            run = await taken(client, operation, "e1", session.lease_id)
            await release_runner(client, run, again=True)
            await taken(client, operation, "e2", session.lease_id)
            assert await eventually(partial(written, client, operation, b"e2"))
        await wait_again(client, [client.keyspace.operation(operation)])  # as other executors do
        assert await eventually(partial(written, client, operation, b"lost"))
        before = await told(coordinator.address, operation)
        leader = coordinator.member
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as second:
        assert await eventually(partial(written, client, operation, coordinator.member.encode()))
        assert await mark(client, operation, "0")
        ended = await second.ended(operation)
        assert not ended.events
        events, successor = await told(coordinator.address, operation), coordinator.member
        words = ["operation", "show", str(operation), "--events", "--address", coordinator.address]
        shown = await asyncio.to_thread(CliRunner().invoke, app, words, prog_name="distop")
        line = await client.get(client.keyspace.table("t").history(operation))
    assert {*before} <= {*events}
    found = [(one.what, one.by, one.about) for one in events if one.what != "first job done"]
    failed = next(about for what, _, about in found if what == "completion failed")
    assert failed.startswith("attempt 1: ")
    assert found == [
        ("started", "ann", ""),
        ("led", leader, ""),
        ("taken", "e1", ""),
        ("waits again", "", "given back"),
        ("taken", "e2", ""),
        ("waits again", "", "lost"),
        ("led", successor, ""),
        ("sealed", "", "committing"),
        ("completion failed", "", failed),
        ("finished", "", "success"),
    ]
    assert "taken by e2" in shown.stdout, shown.output
    assert len(decode(line.value, HistoryRecord).events) == len(events) - 2


async def test_an_operation_that_goes_well_costs_no_request_for_its_events(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """They are written with its seal and its end."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        operation = await service.start("t", "noop", {"partitions": 3})
        key = client.keyspace.operation(operation).events
        async with lease(client) as session:
            await taken(client, operation, "e1", session.lease_id)
            assert not (await client.get(key)).exists
            for job in ("0", "1"):
                assert await mark(client, operation, job)
            live = {one.what for one in await told(coordinator.address, operation)}
            assert "first job done" in live
            assert "last job done" not in live, "another job may be the last one"
            assert await mark(client, operation, "2")
            await service.ended(operation)
    line = decode((await client.get(client.keyspace.table("t").history(operation))).value, HistoryRecord)
    assert {one.what for one in line.events} == {"led", "taken", "first job done", "last job done", "sealed"}
