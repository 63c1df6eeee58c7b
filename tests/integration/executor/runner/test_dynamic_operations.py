"""Operations with dynamic plans from their start to their end, computed in threads instead of Spark."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import pytest_asyncio

from distop.client import Operation, OperationState
from distop.errors import InvalidArgument, Unavailable
from distop.executor.runner import operation_run
from distop.executor.runner.runner import Runner
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import Mark, mark_txn, success_record
from distop.metastore.operations.runs import DynamicRun
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg, RunRecord
from distop.metastore.records.record import decode
from distop.spark_jobs.ingest import operation as ingest_operation
from support.etcd.lossy import Fault, LossyClient, puts
from support.services.executing import job_records, runner, take
from support.services.whole import Whole, coordinated, write_csv
from support.types.dealing import DEALING, Dealing, attempts, computations
from support.waiting import eventually

ROWS = 600
SCHEMA = ["id: long", "kind: string", "day: date"]


@dataclass
class Dealt:
    """A table, and a coordinator that starts operations of the type ``dealing`` on it."""

    client: LossyClient
    etcd: EtcdConfig
    folder: Path
    service: Whole

    async def start(self, rows: int, **argument: object) -> Operation:
        """Start one that reads so many rows; with a ``folder`` it waits there for ``release``."""
        source = write_csv(self.folder / "src" / "a", "1.csv", 0, rows)
        return (await self.service.client.start("t", "dealing", {"paths": [str(source)], **argument})).started

    async def start_held(self, rows: int, **argument: object) -> Operation:
        return await self.start(rows, folder=str(self.folder), **argument)

    def executor(self) -> AbstractAsyncContextManager[tuple[Runner, asyncio.Event]]:
        return runner(self.client, more=[DEALING])

    def release(self) -> None:
        (self.folder / "release").touch()

    async def succeeded(self, operation: Operation) -> Operation:
        return await self.service.client.operation(operation.name).result(timeout_s=90)

    async def failed(self, operation: Operation, why: str) -> None:
        ended = await self.service.client.operation(operation.name).wait(timeout_s=90)
        assert ended.state is OperationState.FAILED
        assert ended.error is not None
        assert why in ended.error.message

    async def ids(self) -> list[int]:
        return await asyncio.to_thread(self.service.ids)


@pytest_asyncio.fixture
async def dealt(
    request: pytest.FixtureRequest, client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> AsyncIterator[Dealt]:
    schema = getattr(request, "param", SCHEMA)
    async with coordinated(etcd_config, tmp_path, client, more=[DEALING], schema=schema) as service:
        yield Dealt(client, etcd_config, tmp_path, service)


@asynccontextmanager
async def under_way(dealt: Dealt) -> AsyncIterator[Operation]:
    """An operation of 90 rows, some of which are written; it continues once the folder holds ``release``."""
    async with dealt.executor():
        operation = await dealt.start_held(90)
        await eventually(lambda: attempts(dealt.folder, "wrote"))
        yield operation


async def test_rows_that_are_cut_differently_each_time_are_there_once(dealt: Dealt) -> None:
    """P1, P10, O6: their number is known in the end; an empty computation is a success."""
    async with dealt.executor():
        operation = await dealt.start_held(ROWS, split_bytes=4096)
        assert operation.jobs.counting
        assert operation.jobs.total == 0
        dealt.release()
        ended = await dealt.succeeded(operation)
        assert (ended.jobs.total, ended.jobs.succeeded) == (computations(dealt.folder)[0],) * 2
        assert not ended.jobs.counting
        assert ended.facts["rows"] == ROWS
        assert not [key for key in await dealt.service.at_rest() if key.startswith("t.dealing.1.")]
        assert await dealt.ids() == list(range(ROWS))
        assert await dealt.service.only_published()
        assert len(await dealt.service.client.table("t").watermarks()) == 1


async def test_a_run_of_which_only_marks_are_left_is_done_away_with(dealt: Dealt) -> None:
    """O10, O11, P2: all its results are marked, but their count is not sealed: none of its rows counts.
    The leader has seen these results come, and does not see them go."""
    operation = await dealt.start_held(ROWS)
    dealt.release()
    async with LeaseSession(dealt.client, 10) as session:
        marked = await first_run(dealt.client, operation, session)
    assert (await dealt.service.client.operation(operation.name).get()).state is OperationState.RUNNING
    async with dealt.executor():
        ended = await dealt.succeeded(operation)
    assert ended.jobs.total == computations(dealt.folder)[0] < len(marked)
    await dealt.service.at_rest()
    assert await dealt.ids() == list(range(ROWS))


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


@pytest.mark.parametrize("dealt", [[*SCHEMA, "more: long not null"]], indirect=True, ids=["required"])
async def test_a_permanent_failure_ends_it_at_once(dealt: Dealt) -> None:
    """O16, O20: while other jobs are still at work."""
    async with dealt.executor():
        await dealt.failed(await dealt.start(40), "'more' is required and has no value")
        await dealt.service.at_rest()
        assert dealt.service.data_files() == set()


async def test_a_query_that_exits_has_failed(dealt: Dealt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dealing, "frame", Mock(side_effect=SystemExit(2)))
    async with dealt.executor():
        await dealt.failed(await dealt.start(40), "a task failed: SystemExit: 2")


async def test_what_ends_all_executors_is_given_up(dealt: Dealt, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a query may take the memory of an executor, but not of one after the other for ever."""
    monkeypatch.setattr(operation_run, "MAX_RUNS", 2)
    operation = await dealt.start(40)
    for _ in range(2):
        async with LeaseSession(dealt.client, 10) as session:
            await first_run(dealt.client, operation, session)
    async with dealt.executor():
        await dealt.failed(operation, "it was started 2 times")
    await dealt.service.at_rest()


async def test_executors_that_are_replaced_in_order_do_not_fail_it(
    dealt: Dealt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O16: an executor that releases it lives, so the operation does not kill executors."""
    monkeypatch.setattr(operation_run, "MAX_RUNS", 1)
    operation = await dealt.start_held(90)
    key = dealt.client.keyspace.prefix + b"t.dealing.1.run"
    for _ in range(3):
        before = len(computations(dealt.folder))
        async with dealt.executor() as (_, stop):
            await eventually(lambda before=before: len(computations(dealt.folder)) > before)
            dealt.client.fail(Fault.LOST_REPLY, when=puts(key))
            stop.set()
        assert dealt.client.spent
        assert decode((await dealt.client.get(key)).value, RunRecord).begun == 0
    dealt.release()
    async with dealt.executor():
        await dealt.succeeded(operation)
    assert await dealt.ids() == list(range(90))


async def test_runs_that_end_with_an_error_of_etcd_do_not_fail_it(
    dealt: Dealt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O16: each ends in order, though not well, and its executor lives."""
    monkeypatch.setattr(operation_run, "MAX_RUNS", 1)
    seal, left = DynamicRun.seal, iter(range(3))

    async def failing(self: DynamicRun, count: int) -> bool:
        for _ in left:
            raise Unavailable("etcd does not answer")
        return await seal(self, count)

    monkeypatch.setattr(DynamicRun, "seal", failing)
    dealt.release()
    async with runner(dealt.client, more=[DEALING], rest_s=0.05):
        await dealt.succeeded(await dealt.start_held(90))
    assert len(computations(dealt.folder)) == 4
    assert await dealt.ids() == list(range(90))


async def test_a_query_that_takes_too_long_fails(dealt: Dealt, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: also one that cannot be cancelled; its executor continues once it has ended."""
    monkeypatch.setattr(ingest_operation, "QUERY_S", 1.0)
    async with under_way(dealt) as operation:
        await dealt.failed(operation, "its query has not ended within 1 s")
        dealt.release()
        monkeypatch.undo()
        source = write_csv(dealt.folder / "src" / "b", "1.csv", 90, 10)
        argument = {"paths": [str(source)], "folder": str(dealt.folder)}
        await dealt.succeeded((await dealt.service.client.start("t", "dealing", argument)).started)
        assert await dealt.ids() == list(range(90, 100))


async def test_a_lost_reply_of_the_seal_costs_nothing(dealt: Dealt) -> None:
    """O7, P8"""
    async with under_way(dealt) as operation:
        dealt.client.fail(Fault.LOST_REPLY, when=puts(dealt.client.keyspace.prefix + b"t.dealing.1.run"))
        dealt.release()
        await dealt.succeeded(operation)
        assert dealt.client.spent
        assert len(computations(dealt.folder)) == 1
        assert await dealt.ids() == list(range(90))


async def test_a_pause_gives_the_computation_up_and_another_one_follows(dealt: Dealt) -> None:
    """O21"""
    service = dealt.service
    async with under_way(dealt) as operation:
        await service.client.operation(operation.name).pause()
        await eventually(lambda: attempts(dealt.folder, "notified"))
        dealt.release()
        await eventually(
            lambda: service.client.operation(operation.name).get(), holds=lambda now: not now.runner
        )
        assert (await service.client.operation(operation.name).get()).jobs.counting
        await service.client.operation(operation.name).resume()
        await dealt.succeeded(operation)
        assert len(computations(dealt.folder)) == 2
        await service.at_rest()
        assert await dealt.ids() == list(range(90))
        assert await service.only_published()


async def test_jobs_of_a_dynamic_plan_may_not_fail(dealt: Dealt) -> None:
    source, service = write_csv(dealt.folder / "src" / "a", "1.csv", 0, 9), dealt.service
    with pytest.raises(InvalidArgument) as refused:
        await service.client.start("t", "dealing", {"paths": [str(source)]}, max_failed_partitions=1)
    assert refused.value.details["field"] == "options.max_failed_partitions"
    assert not [key for key in await service.keys() if ".arg" in key]


async def test_an_executor_without_spark_leaves_a_transform_to_others(dealt: Dealt) -> None:
    source, sdk = write_csv(dealt.folder / "src" / "a", "1.csv", 0, 9), dealt.service.client
    async with runner(dealt.client) as (serving, _):
        argument = {"paths": [str(source)], "transform": "SELECT * FROM source"}
        operation = await sdk.start("t", "ingest", argument)
        await eventually(lambda: serving._waiting.resting)
        now = await operation.get()
        assert now.state is OperationState.RUNNING
        assert not now.jobs.failed
        await operation.cancel()
        assert (await operation.wait(timeout_s=60)).state is OperationState.CANCELLED


async def test_a_cancellation_in_the_middle_leaves_nothing(dealt: Dealt) -> None:
    """O19; until then its progress is shown."""
    service = dealt.service
    async with under_way(dealt) as operation:
        told = (await service.client.table("t").why()).sentence
        assert told.startswith("dealing/1 running: 0 of an unknown number of jobs done, run by "), told
        assert await service.findings() == []
        await service.client.operation(operation.name).cancel()
        await eventually(lambda: attempts(dealt.folder, "notified"))
        dealt.release()
        ended = await service.client.operation(operation.name).wait(timeout_s=90)
        assert ended.state is OperationState.CANCELLED
        keys = await service.at_rest()
        assert "t.watermarks" not in keys
        assert not [key for key in keys if key.startswith("t.dealing.1.")]
        assert service.data_files() == set()
