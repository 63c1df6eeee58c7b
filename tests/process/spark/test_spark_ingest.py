"""Ingest on a real Spark, end to end, with a driver that is killed half-way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from distop.client import OperationState
from distop.executor.host.sidecar_folder import BASE_VARIABLE
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.executing import executor_process, short_folder
from support.services.whole import Whole, coordinated, write_csv
from support.sources.kafka import Brokers
from support.waiting import eventually

pytestmark = pytest.mark.spark

ROWS = 24_000


async def validated(service: Whole) -> None:
    """P12: rules are checked by tasks of Spark as well, with their keys in the scratch of the worker."""
    rules = ["id >= 0", {"unique": "id"}, {"column": "id", "type": "smallint"}, {"unique": "day"}]
    started = await service.client.start("t", "validate", {"rules": rules})
    ended = await service.client.wait(started.name, timeout_s=270)
    assert ended.error is not None
    assert (ended.error.code, ended.jobs.total, ended.jobs.failed) == ("VALIDATION_FAILED", 3, 0)
    # 28 days in each of three partitions.
    assert [(one["rule"], one["rows"]) for one in ended.facts["violations"]] == [
        ("unique(day)", ROWS - 3 * 28)
    ]


async def test_a_killed_driver_costs_time_and_no_row(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient, brokers: Brokers
) -> None:
    """P2, P3, O11: what was done stays done, the next driver does the rest, every row is there once."""
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, ROWS)
    with short_folder() as base:
        environment = {BASE_VARIABLE: str(base)}
        async with coordinated(etcd_config, tmp_path, client) as service:
            argument = {"paths": [str(source)], "split_bytes": 8192}
            operation = await service.client.start("t", "ingest", argument)
            assert operation.jobs.total > 40
            with executor_process(etcd_config, tmp_path, "local[2]", **environment) as first:

                async def under_way() -> bool:
                    return (await service.client.get(operation.name)).jobs.succeeded > 5

                await eventually(under_way, 150.0)
                first.kill()
            kept = (await service.client.get(operation.name)).jobs.succeeded
            assert 5 < kept < operation.jobs.total
            with executor_process(etcd_config, tmp_path, "local[2]", **environment) as second:
                ended = await service.client.wait(operation.name, timeout_s=270)
                assert ended.state is OperationState.SUCCEEDED, ended.error
                # Spark's workers read topics as well; here, since starting Spark takes longer than that.
                topic = brokers.topic()
                topic.ids(ROWS, 900)
                argument = {"kafka": topic.argument(records_per_job=50)}
                operation = await service.client.start("t", "ingest", argument)
                ended = await service.client.wait(operation.name, timeout_s=180)
                assert (ended.error, ended.jobs.succeeded) == (None, 18)
                await service.at_rest()
                await validated(service)
                second.terminate()
                second.wait(60)
            assert await asyncio.to_thread(service.ids) == list(range(ROWS + 900))
            assert service.data_files() == await asyncio.to_thread(service.published_files)
