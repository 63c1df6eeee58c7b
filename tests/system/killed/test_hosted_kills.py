"""Programs that ingest rows which only they have, and are killed or halted half-way."""

import asyncio
from pathlib import Path

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.spark_jobs.ingest.operation import DataFrameIngest
from support.etcd.lossy import LossyClient
from support.services.executing import Child
from support.services.hosting_program import ROWS
from support.services.whole import Whole, coordinated
from support.waiting import eventually

NAME = f"t/{DataFrameIngest.type}/1"


def program(service: Whole, folder: Path) -> Child:
    return Child(service.etcd, folder, "-m", "support.services.hosting_program", service.address, str(folder))


async def half_way(service: Whole, files: int) -> None:
    await eventually(lambda: len(service.data_files()) >= files, 90)


@pytest.mark.process
@pytest.mark.slow("waits until a program that was halted has lost its lease")
async def test_a_program_that_slept_past_its_lease_marks_and_seals_nothing(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """O10: it wakes up with all its rows written, while another one has taken over."""
    async with coordinated(etcd_config, tmp_path, client, partitionBy=[]) as service:
        with program(service, tmp_path) as sleeper:
            await half_way(service, 1)
            sleeper.stop()
            with program(service, tmp_path) as other:
                pid = f"-{other.pid}-"
                await eventually(
                    lambda: service.client.operation(NAME).get(), 90, holds=lambda now: pid in now.runner
                )
                (tmp_path / "release").touch()
                sleeper.resume()
                assert await other.exit_code() == 0, other.log.read_text()
                assert await sleeper.exit_code() == 0, sleeper.log.read_text()
        await service.at_rest()
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))
        assert await service.only_published()
