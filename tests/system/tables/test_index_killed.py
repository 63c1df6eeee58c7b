"""A build of an index whose executor is killed."""

import asyncio
from pathlib import Path

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.tables.registry import read_indexes
from distop.spark_jobs.tables import open_snapshot
from support.etcd.lossy import LossyClient
from support.services.executing import executor_process, runner
from support.services.whole import coordinated, write_csv
from support.types.index_types import FOLDER, HOLD_AT, opened
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("kills an executor, and waits for its lease")]

HELD = 5
"""The file at which the executor is killed: so many less one are finished."""


async def test_a_build_that_was_killed_repeats_no_finished_file(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """O9, O13: kill -9 of the executor between two files of a job; another one goes on behind the last."""
    environment = {
        "DISTOP_OPERATIONS": "support.types.index_types:Noted",
        FOLDER: str(tmp_path),
        HOLD_AT: str(HELD),
    }
    async with coordinated(etcd_config, tmp_path, client) as service:
        async with runner(client, serving=["ingest"]):
            for i in range(3):
                folder = tmp_path / "src" / str(i)
                (await service.ingest(write_csv(folder, "1.csv", 100 * i, 50))).raise_for_outcome()
        files = sorted(task.file.file_path for task in service.table().scan().plan_files())
        operation = await service.client.start("t", "build_index", {"column": "id"})
        with executor_process(etcd_config, tmp_path, **environment) as first:
            await eventually(lambda: len(opened(tmp_path)) == HELD, 90)
            first.kill()
        assert opened(tmp_path) == files[:HELD]
        with executor_process(etcd_config, tmp_path, **environment):
            ended = await operation.wait(timeout_s=180)
        assert ended.raise_for_outcome().facts["entries"] == 150
        assert opened(tmp_path) == [*files[:HELD], *files[HELD - 1 :]]

        indexes = await read_indexes(client, client.keyspace.table("t"))
        table = await asyncio.to_thread(service.table)
        snapshot = open_snapshot(table.metadata_location, indexes=indexes)
        for number in (0, 149, 249):
            wanted = f"id == {number}"
            plain = snapshot.plan_files(wanted, use_indexes=False)
            found = snapshot.plan_files(wanted)
            rows = [row for batch in snapshot.batches(found, where=wanted) for row in batch.to_pylist()]
            assert len(rows) == (number < 50 or 100 <= number < 150 or number >= 200)
            assert len(found) == len(rows) <= len(plain)
