"""Types that sweep what their attempts have left in places of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from distop.coordinator.completion.collector import MAX_SWEEPS
from distop.metastore.records.operation_id import OperationId
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service
from support.services.executing import lease
from support.waiting import eventually


async def collected(client: LossyClient, operation: OperationId) -> None:
    """Its last key is gone."""
    prefix = client.keyspace.operation(operation).prefix
    await eventually(lambda: client.scan(prefix, keys_only=True), holds=lambda found: not found.kvs)


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


async def test_it_is_told_which_attempts_count(service: Service, client: LossyClient, tmp_path: Path) -> None:
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


async def test_it_waits_until_no_runner_has_it(service: Service, client: LossyClient, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("raises", [2, 1000])
async def test_what_raises_is_tried_again_and_given_up_in_the_end(
    service: Service, client: LossyClient, tmp_path: Path, raises: int
) -> None:
    """Its operation is over in any case, and leaves no keys behind."""
    operation = await service.start("t", "sweeping", {"log": str(tmp_path / "log"), "raises": raises})
    assert await mark(client, operation, "0")
    await collected(client, operation)
    assert len(lines(tmp_path / "log")) == min(raises + 1, MAX_SWEEPS)
    assert len({tuple(told) for told in lines(tmp_path / "log")}) == 1
