"""Operations with dynamic plans from their start to their end, computed in threads instead of Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from distop.client import Operation, OperationState
from distop.errors import InvalidArgument
from distop.executor.runner import dynamic_run
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.dynamic_runs import DynamicRun
from distop.metastore.operations.jobs import Mark, mark_txn, success_record
from distop.metastore.records.operation import OperationArg, RunRecord
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode
from distop.spark_jobs.ingest import operation as ingest_operation
from support.etcd.lossy import Fault, LossyClient, puts
from support.services.executing import job_records, runner, take
from support.services.whole import Whole, coordinated, write_csv
from support.types.dealing import DEALING, Dealing, attempts, computations
from support.waiting import eventually

ROWS = 600
SCHEMA = ["id: long", "kind: string", "day: date"]


@asynccontextmanager
async def under_way(
    client: LossyClient, etcd: EtcdConfig, folder: Path
) -> AsyncIterator[tuple[Whole, Operation]]:
    """An operation of 90 rows, some of which are written; it continues once the folder holds ``release``."""
    source = write_csv(folder / "src" / "a", "1.csv", 0, 90)
    async with (
        coordinated(etcd, folder, client, more=[DEALING], schema=SCHEMA) as service,
        runner(client, more=[DEALING]),
    ):
        operation = await start(service, source, folder=str(folder))
        await eventually(lambda: attempts(folder, "wrote"))
        yield service, operation


async def start(service: Whole, source: Path, **argument: object) -> Operation:
    return await service.client.start("t", "dealing", {"paths": [str(source)], **argument})


async def test_rows_that_are_cut_differently_each_time_are_there_once(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """P1, P10, O6: their number is known in the end; an empty computation is a success."""
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, ROWS)
    async with (
        coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=SCHEMA) as service,
        runner(client, more=[DEALING]),
    ):
        operation = await start(service, source, split_bytes=4096, folder=str(tmp_path))
        assert operation.jobs.counting
        assert operation.jobs.total == 0
        (tmp_path / "release").touch()
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.SUCCEEDED, ended.error
        assert (ended.jobs.total, ended.jobs.succeeded) == (computations(tmp_path)[0],) * 2
        assert not ended.jobs.counting
        assert ended.facts["rows"] == ROWS
        assert not [key for key in await service.at_rest() if key.startswith("t.dealing.1.")]
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))
        assert service.data_files() == await asyncio.to_thread(service.published_files)
        assert len(await service.client.watermarks("t")) == 1


async def test_a_run_of_which_only_marks_are_left_is_done_away_with(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O10, O11, P2: all its results are marked, but their count is not sealed: none of its rows counts.
    The leader has seen these results come, and does not see them go."""
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, ROWS)
    async with coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=SCHEMA) as service:
        operation = await start(service, source, folder=str(tmp_path))
        (tmp_path / "release").touch()
        async with LeaseSession(client, 10) as session:
            arg = await first_run(client, operation, session)
        assert (await service.client.get(operation.name)).state is OperationState.RUNNING
        async with runner(client, more=[DEALING]):
            ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.SUCCEEDED, ended.error
        assert ended.jobs.total == computations(tmp_path)[0] < len(arg)
        await service.at_rest()
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))


async def first_run(client: LossyClient, operation: Operation, session: LeaseSession) -> list[str]:
    """A run that has marked nine jobs, and then gone."""
    keys = client.keyspace.operation(OperationId.parse(operation.name))
    arg = decode((await client.get(keys.arg)).value, OperationArg)
    run = (await take(client, arg, session)).run
    assert await DynamicRun(client, run).begin()
    names = [str(number) for number in range(9)]
    value = success_record("old", {"rows": 1, "files": 1}, 1.0, run=run.token)
    await client.txn(mark_txn(run, [Mark(name, "old", value) for name in names]))
    assert set(await job_records(client, arg)) == set(names)
    return names


async def test_a_permanent_failure_ends_it_at_once(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O16, O20: while other jobs are still at work."""
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 40)
    schema = ["id: long", "kind: string", "day: date", "more: long not null"]
    async with (
        coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=schema) as service,
        runner(client, more=[DEALING]),
    ):
        operation = await start(service, source)
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.FAILED
        assert ended.error is not None
        assert "'more' is required and has no value" in ended.error.message
        await service.at_rest()
        assert service.data_files() == set()


async def test_a_query_that_exits_has_failed(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exits(*_: object) -> None:
        raise SystemExit(2)

    monkeypatch.setattr(Dealing, "frame", exits)
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 40)
    async with (
        coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=SCHEMA) as service,
        runner(client, more=[DEALING]),
    ):
        operation = await start(service, source)
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.FAILED
        assert ended.error is not None
        assert "a task failed: SystemExit: 2" in ended.error.message


async def test_what_ends_all_executors_is_given_up(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: a query may take the memory of an executor, but not of one after the other for ever."""
    monkeypatch.setattr(dynamic_run, "MAX_RUNS", 2)
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 40)
    async with coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=SCHEMA) as service:
        operation = await start(service, source)
        for _ in range(2):
            async with LeaseSession(client, 10) as session:
                await first_run(client, operation, session)
        async with runner(client, more=[DEALING]):
            ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.FAILED
        assert ended.error is not None
        assert "it was started 2 times" in ended.error.message
        await service.at_rest()


async def test_executors_that_are_replaced_in_order_do_not_fail_it(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O16: an executor that releases it lives, so the operation does not kill executors."""
    monkeypatch.setattr(dynamic_run, "MAX_RUNS", 1)
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 90)
    async with coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=SCHEMA) as service:
        operation = await start(service, source, folder=str(tmp_path))
        key = client.keyspace.prefix + b"t.dealing.1.run"
        for _ in range(3):
            before = len(computations(tmp_path))
            async with runner(client, more=[DEALING]) as (_, stop):
                await eventually(lambda before=before: len(computations(tmp_path)) > before)
                client.fail(Fault.LOST_REPLY, when=puts(key))
                stop.set()
            assert client.spent
            assert decode((await client.get(key)).value, RunRecord).begun == 0
        (tmp_path / "release").touch()
        async with runner(client, more=[DEALING]):
            ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.SUCCEEDED, ended.error
        assert await asyncio.to_thread(service.ids) == list(range(90))


async def test_a_query_that_takes_too_long_fails(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: also one that cannot be cancelled; its executor continues once it has ended."""
    monkeypatch.setattr(ingest_operation, "QUERY_S", 1.0)
    async with under_way(client, etcd_config, tmp_path) as (service, operation):
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.FAILED
        assert ended.error is not None
        assert "its query has not ended within 1 s" in ended.error.message
        (tmp_path / "release").touch()
        monkeypatch.undo()
        source = write_csv(tmp_path / "src" / "b", "1.csv", 90, 10)
        other = await start(service, source, folder=str(tmp_path))
        ended = await service.client.wait(other.name, timeout_s=90)
        assert ended.state is OperationState.SUCCEEDED, ended.error
        assert await asyncio.to_thread(service.ids) == list(range(90, 100))


async def test_a_lost_reply_of_the_seal_costs_nothing(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O7, P8"""
    async with under_way(client, etcd_config, tmp_path) as (service, operation):
        run = client.keyspace.prefix + b"t.dealing.1.run"
        client.fail(Fault.LOST_REPLY, when=puts(run))
        (tmp_path / "release").touch()
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert client.spent
        assert ended.state is OperationState.SUCCEEDED, ended.error
        assert len(computations(tmp_path)) == 1
        assert await asyncio.to_thread(service.ids) == list(range(90))


async def test_a_pause_gives_the_computation_up_and_another_one_follows(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O21"""
    async with under_way(client, etcd_config, tmp_path) as (service, operation):
        await service.client.pause(operation.name)
        await eventually(lambda: attempts(tmp_path, "told"))
        (tmp_path / "release").touch()

        async def let_go() -> bool:
            return not (await service.client.get(operation.name)).runner

        await eventually(let_go)
        assert (await service.client.get(operation.name)).jobs.counting
        await service.client.resume(operation.name)
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.SUCCEEDED, ended.error
        assert len(computations(tmp_path)) == 2
        await service.at_rest()
        assert await asyncio.to_thread(service.ids) == list(range(90))
        assert service.data_files() == await asyncio.to_thread(service.published_files)


async def test_jobs_of_a_dynamic_plan_may_not_fail(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 9)
    async with coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=SCHEMA) as service:
        with pytest.raises(InvalidArgument) as refused:
            await service.client.start("t", "dealing", {"paths": [str(source)]}, max_failed_partitions=1)
        assert refused.value.details["field"] == "options.max_failed_partitions"
        assert not [key for key in await service.keys() if ".arg" in key]


async def test_an_executor_without_spark_leaves_a_transform_to_others(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 9)
    async with (
        coordinated(etcd_config, tmp_path, client, schema=SCHEMA) as service,
        runner(client) as (serving, _),
    ):
        argument = {"paths": [str(source)], "transform": "SELECT * FROM source"}
        operation = await service.client.start("t", "ingest", argument)
        await eventually(lambda: serving.resting)
        now = await service.client.get(operation.name)
        assert now.state is OperationState.RUNNING
        assert not now.jobs.failed
        await service.client.cancel(operation.name)
        assert (await service.client.wait(operation.name, timeout_s=60)).state is OperationState.CANCELLED


async def test_a_cancellation_in_the_middle_leaves_nothing(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O19; until then its progress is shown."""
    async with under_way(client, etcd_config, tmp_path) as (service, operation):
        told = (await service.client.explain("t")).sentence
        assert told.startswith("dealing/1 running: 0 of an unknown number of jobs done, run by "), told
        assert await service.findings() == []
        await service.client.cancel(operation.name)
        await eventually(lambda: attempts(tmp_path, "told"))
        (tmp_path / "release").touch()
        ended = await service.client.wait(operation.name, timeout_s=90)
        assert ended.state is OperationState.CANCELLED
        keys = await service.at_rest()
        assert "t.watermarks" not in keys
        assert not [key for key in keys if key.startswith("t.dealing.1.")]
        assert service.data_files() == set()
