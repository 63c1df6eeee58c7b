"""Types that sweep what their attempts have left in places of their own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from distop.coordinator.completion.attempts import Parking
from distop.coordinator.completion.completion import Collector
from distop.coordinator.starting.services import Term
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.work import Work
from distop.lake.storage.storage import entries
from distop.metastore.members.lease import Epoch
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import encode
from distop.operations.job import staging_folder
from distop.operations.registry import Registry
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.etcd.starts import make_table
from support.services.coordinators import Service
from support.services.executing import lease
from support.services.sharing import services_of
from support.waiting import eventually


async def collected(client: LossyClient, operation: OperationId) -> None:
    """Its last key is gone."""
    prefix = client.keyspace.operation(operation).prefix
    await eventually(lambda: client.scan(prefix, keys_only=True), holds=lambda found: not found.kvs)


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


async def test_sweeping_is_given_the_attempts_that_count(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """Of an operation that succeeds those of the jobs that did, of another one none."""
    argument = {"log": str(tmp_path / "log"), "partitions": 2}
    succeeds = await service.start("t", "sweeping", argument, options={"max_failed_partitions": 1})
    assert await mark(client, succeeds, "0")
    assert await mark(client, succeeds, "1", error="no")
    await collected(client, succeeds)
    assert [told[1:] for told in lines(tmp_path / "log")] == [["a1", "-"]]

    (tmp_path / "log").unlink()
    fails = await service.start("t", "sweeping", argument)
    assert await mark(client, fails, "0")
    assert await mark(client, fails, "1", error="no")
    await collected(client, fails)
    assert [told[1:] for told in lines(tmp_path / "log")] == [["-", "JOB_FAILED"]]

    (tmp_path / "log").unlink()
    cancelled = await service.start("t", "sweeping", argument)
    await service.cancel(cancelled)
    await collected(client, cancelled)
    assert [told[1:] for told in lines(tmp_path / "log")] == [["-", "CANCELLED"]]


async def test_sweeping_waits_until_no_runner_has_the_operation(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """Attempts may be writing until then."""
    operation = await service.start("t", "sweeping", {"log": str(tmp_path / "log")})
    keys = client.keyspace.operation(operation)
    async with lease(client) as session:
        await client.put(keys.runner, b'{"member": "r", "version": 1}', lease=session.lease_id)
        assert await mark(client, operation, "0")
        await service.ended(operation)
        assert not lines(tmp_path / "log")
        assert (await client.get(keys.arg)).exists
    await collected(client, operation)
    assert len(lines(tmp_path / "log")) == 1


async def test_nothing_is_swept_by_the_outcome_of_another_operation_of_that_name(
    client: LossyClient, tmp_path: Path
) -> None:
    """P8: a leader that was halted while its table was renamed, and one of its old name made anew."""
    await make_table(client)
    keys = client.keyspace.table("t")
    fields: dict[str, Any] = {"location": tmp_path.as_uri(), "stages_files": True, "uuid": "old"}
    arg = OperationArg(table="t", type="noop", instance=1, **fields)
    folder = Path(staging_folder(arg, "data").removeprefix("file://"))
    await asyncio.to_thread(folder.mkdir, parents=True)
    await asyncio.to_thread((folder / "0-a1.parquet").touch)
    tracked = Tracked(keys.operation(arg.id), arg)
    term = Term(keys, Epoch(keys.coordinator, 1), Mock())
    with ThreadPoolExecutor(1) as threads:
        work = Work(Registry(), threads)
        services = services_of(client, work)
        collector = Collector(services, Parking(services))
        for uuid, left in (("new", 1), ("old", 0)):
            line = HistoryRecord(outcome="failed", uuid=uuid)
            await client.put(keys.history(arg.id), encode(line))
            await collector.collect(term, tracked)
            assert len(entries(str(folder))) == left


async def test_sweeping_that_raises_is_tried_again_until_it_succeeds(
    service: Service, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: as when storage is away for long. Its operation is over meanwhile, and keeps its keys."""
    monkeypatch.setattr("distop.metastore.records.operation.FIRST_PAUSE_S", 0.002)
    operation = await service.start("t", "sweeping", {"log": str(tmp_path / "log"), "raises": 6})
    assert await mark(client, operation, "0")
    await collected(client, operation)
    assert len(lines(tmp_path / "log")) == 7
    assert len({tuple(told) for told in lines(tmp_path / "log")}) == 1
