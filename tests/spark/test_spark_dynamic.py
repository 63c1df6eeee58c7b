"""Ingest whose input is a DataFrame, on a real Spark."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from distop.client import OperationState
from distop.executor.place import BASE_VARIABLE
from distop.metastore.config import EtcdConfig
from support.executing import executor_process, place_in, short_folder, sidecar_pid
from support.lossy import LossyClient
from support.waiting import eventually
from support.whole import coordinated, write_csv

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROWS = 24_000
SCHEMA = ["id: long", "kind: string", "day: date"]
PATIENCE_S = 240.0


@asynccontextmanager
async def hosts(etcd: EtcdConfig) -> AsyncIterator[dict[str, str]]:
    """The environment of executors whose sidecars are ended with the test."""
    with short_folder() as base:
        place = place_in(base, etcd)
        try:
            yield {BASE_VARIABLE: str(base)}
        finally:
            if pid := sidecar_pid(place):
                os.kill(pid, signal.SIGTERM)


async def test_a_driver_killed_half_way_through_a_query_that_deals_rows_at_random(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """P2, P3, O11: the next driver cuts the rows in another way, and each is there once; what the first one
    had written is removed."""
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, ROWS)
    query = (
        "SELECT /*+ REPARTITION(40) */ id, kind, day FROM "
        "(SELECT * FROM source WHERE id >= 0 DISTRIBUTE BY rand()) -- a comment at the end"
    )
    async with (
        hosts(etcd_config) as environment,
        coordinated(etcd_config, tmp_path, client, schema=SCHEMA) as service,
    ):
        argument = {"paths": [str(source)], "split_bytes": 65536, "transform": query}
        operation = await service.client.start("t", "ingest", argument)
        with (
            executor_process(etcd_config, tmp_path, "local[2]", **environment) as first,
            executor_process(etcd_config, tmp_path, "local[2]", **environment) as second,
        ):
            members = {first.pid: first, second.pid: second}
            await eventually(lambda: len(service.data_files()) > 3, PATIENCE_S)
            now = await service.client.get(operation.name)
            assert now.state is OperationState.RUNNING
            assert now.jobs.counting
            # "runner-<host>-<pid>-<random>"
            members[int(now.runner.split("-")[-2])].kill()
            of_the_dead = service.data_files()
            ended = await service.client.wait(operation.name, timeout_s=PATIENCE_S)
            assert ended.state is OperationState.SUCCEEDED, ended.error
            assert ended.jobs.total == ended.jobs.succeeded == 40
            await service.at_rest()
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))
        assert service.data_files() == await asyncio.to_thread(service.published_files)
        assert not service.data_files() & of_the_dead
