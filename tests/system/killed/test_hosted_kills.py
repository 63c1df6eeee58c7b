"""Programs that ingest rows which only they have, and are killed or halted half-way."""

import asyncio
from pathlib import Path

import pytest

from distop.client import OperationState
from distop.errors import AlreadyIngested, InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.spark_jobs.ingest.operation import DataFrameIngest
from support.etcd.lossy import LossyClient
from support.services.executing import Child, runner
from support.services.hosting_program import ROWS
from support.services.whole import Whole, coordinated
from support.waiting import eventually

NAME = f"t/{DataFrameIngest.type}/1"


def program(service: Whole, folder: Path) -> Child:
    return Child(service.etcd, folder, "-m", "support.services.hosting_program", service.address, str(folder))


async def half_way(service: Whole, files: int) -> None:
    await eventually(lambda: len(service.data_files()) >= files, 90)


@pytest.mark.process
@pytest.mark.slow("three programs, the first of which is killed and has a lease")
async def test_a_program_that_was_killed_is_started_again_and_every_row_is_there_once(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """O7, O11, P2: the same call goes on with the same operation, on rows that are cut in another way.
    Executors leave it alone meanwhile."""
    async with (
        coordinated(etcd_config, tmp_path, client, partitionBy=[]) as service,
        runner(client) as (serving, _),
    ):
        with program(service, tmp_path) as first:
            await half_way(service, 1)
            first.kill()
        assert (await service.client.operation(NAME).get()).state is OperationState.RUNNING
        (tmp_path / "release").touch()
        with program(service, tmp_path) as second:
            assert await second.exit_code() == 0, second.log.read_text()
            assert f"'rows': {ROWS}" in second.log.read_text()
        assert not serving._waiting.resting
        await service.at_rest()
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))
        assert await service.only_published()
        with program(service, tmp_path) as third:
            assert await third.exit_code() == 0, third.log.read_text()
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))
        argument = {"columns": {"type": "struct", "fields": []}, "source": "own"}
        with pytest.raises(AlreadyIngested):
            await service.client.start("t", DataFrameIngest.type, {**argument, "watermark": {"day": "2024"}})


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


async def test_rows_that_do_not_fit_the_table_are_refused_at_the_start(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """U3"""
    async with coordinated(
        etcd_config, tmp_path, client, schema=["id: long not null"], partitionBy=[]
    ) as service:
        field = {"id": 1, "name": "id", "type": "boolean", "required": False}
        for columns, reason in (
            ([field], "bool in the source cannot become int64"),
            ([{**field, "type": "long"}, {**field, "id": 2, "name": "x"}], "no column 'x'"),
            ([{**field, "name": "ID"}], "no column 'ID'"),
        ):
            argument = {"columns": {"type": "struct", "schema-id": 0, "fields": columns}}
            with pytest.raises(InvalidArgument, match=reason):
                await service.client.start("t", DataFrameIngest.type, argument)
