"""An executor with a real Spark: a process of its own, shared by the tests of this module.

The last two kill it, and the one that takes its place.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from distop.client import OperationState
from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.lake.storage.traces import read_traces
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.operations.jobs import FAILED, SUCCESS
from distop.metastore.operations.pausing import pause_operation, resume_operation
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import PauseRecord
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import audit_put
from support.etcd.lossy import LossyClient
from support.processes import children
from support.services.executing import (
    Child,
    all_done,
    executor_process,
    job_records,
    place_in,
    runner,
    runner_of,
    short_folder,
    sidecar_pid,
    start_operation,
)
from support.services.whole import coordinated, write_csv
from support.sources.kafka import Brokers
from support.types.work_types import files, traces
from support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("starts two executors with a Spark of their own, and kills them half-way"),
]

ROWS = 24_000
SCHEMA = ["id: long", "kind: string", "day: date"]
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Hosts:
    """Where executors of this module run, and how to reach them."""

    etcd: EtcdConfig
    place: SidecarFolder
    environment: dict[str, str]

    def executor(self, folder: Path) -> Child:
        """With two slots on this host, and its log in a folder."""
        return executor_process(self.etcd, folder, "local[2]", **self.environment)


@pytest.fixture(scope="module")
def hosts(etcd: EtcdProcess) -> Iterator[Hosts]:
    """Sidecars are ended with the module."""
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=f"t{secrets.token_hex(6)}")
    with short_folder() as base:
        environment = {
            BASE_VARIABLE: str(base),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        yield Hosts(config, place_in(base, config), environment)


@pytest.fixture(scope="module")
def executor(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """An executor with ``local[2]``, until a test kills it."""
    with hosts.executor(tmp_path_factory.mktemp("first")) as process:
        yield process


@pytest.fixture(scope="module")
def second(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The executor that takes the place of the first one, once that was killed."""
    with hosts.executor(tmp_path_factory.mktemp("second")) as process:
        yield process


@pytest_asyncio.fixture
async def store(hosts: Hosts) -> AsyncIterator[LossyClient]:
    """A client below the prefix of the executors."""
    client = LossyClient(hosts.etcd)
    yield client
    await client.close()


@pytest_asyncio.fixture
async def spark_client(store: LossyClient, executor: Child) -> LossyClient:
    """The same, while the first executor serves."""
    return store


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_runs_a_thousand_small_jobs(spark_client: LossyClient) -> None:
    """O8"""
    arg = await start_operation(spark_client, jobs=1000)
    records = await all_done(spark_client, arg, PATIENCE_S)  # Spark begins here
    assert {record.state for record in records.values()} == {SUCCESS}
    assert await runner_of(spark_client, arg)


async def test_runs_jobs_of_a_type_of_the_users(spark_client: LossyClient, tmp_path: Path) -> None:
    """O12, O20, P1: in workers that know the type by ``DISTOP_OPERATIONS``, forked from a daemon of ours."""
    argument = {"folder": str(tmp_path), "permanent": ["3"], "fail": {"5": 1}, "print": "hello from"}
    arg = await start_operation(spark_client, "traced", argument, jobs=12, location=str(tmp_path / "table"))
    records = await all_done(spark_client, arg, 60.0)
    assert [name for name, record in records.items() if record.state == FAILED] == ["3"]
    assert records["3"].error == "JOB_FAILED: as its argument says"
    assert files(tmp_path) == sorted(f"{r.attempt}.out" for r in records.values() if r.state == SUCCESS)
    workers = {int(pid) for *_, pid in traces(tmp_path, "began")}
    assert len(workers) == 2
    assert all("distop.executor.launch.spark_daemon" in command_of(worker) for worker in workers)
    kept = {
        trace.partition: trace for trace in read_traces(arg.location, {}, arg.id, arg.uuid) if trace.error
    }
    assert kept.keys() == {"3", "5"}
    for partition, trace in kept.items():
        printed, logged = trace.output.splitlines()
        assert printed == f"hello from {partition}"
        assert logged.endswith(f"WARNING users.module {partition} logged")


async def test_packs_small_jobs_of_the_users(spark_client: LossyClient, tmp_path: Path) -> None:
    arg = await start_operation(spark_client, "traced_small", {"folder": str(tmp_path)}, jobs=40)
    await all_done(spark_client, arg, 60.0)
    assert len({attempt.rsplit("-", 1)[0] for _, _, attempt, _ in traces(tmp_path, "began")}) == 1


async def test_a_claimed_job_runs_and_saves_its_progress(spark_client: LossyClient, tmp_path: Path) -> None:
    argument = {"folder": str(tmp_path), "steps": 3}
    arg = await start_operation(spark_client, "owned", argument, jobs=4, exclusive=True)
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    assert len(traces(tmp_path, "saved@3")) == 4


async def test_a_pause_stops_the_jobs_on_spark_and_another_launch_goes_on(
    spark_client: LossyClient, tmp_path: Path
) -> None:
    """O21: they clean up, what was done stays done, and the next launch does the rest."""
    argument = {"folder": str(tmp_path), "hold": ["2", "3"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=4)
    table = spark_client.keyspace.table("flights")
    keys = table.operation(arg.id)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 180)
    audit = audit_put(table, "pause", by="jane", target=str(arg.id), at=1.0)
    assert await pause_operation(spark_client, keys, PauseRecord(by="jane"), audit)
    await eventually(lambda: len(traces(tmp_path, "cleaned")) == 2)
    await eventually(lambda: runner_of(spark_client, arg), holds=lambda member: member == "")
    assert set(await job_records(spark_client, arg)) == {"0", "1"}
    (tmp_path / "release").touch()
    assert await resume_operation(spark_client, keys, audit_put(table, "resume", by="joe", target="", at=2.0))
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    began = [partition for _, partition, *_ in traces(tmp_path, "began")]
    assert {name: began.count(name) for name in records} == {"0": 1, "1": 1, "2": 2, "3": 2}
    assert files(tmp_path) == sorted(f"{record.attempt}.out" for record in records.values())


async def test_a_worker_that_is_killed_is_replaced(spark_client: LossyClient, tmp_path: Path) -> None:
    """P2, U1: Spark tries the task again, which the executor says; what the dead attempt wrote counts for
    nothing."""
    argument = {"folder": str(tmp_path), "hold": ["0"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=1)
    held = await eventually(lambda: traces(tmp_path, "holds"), 180)
    os.kill(int(held[0][3]), signal.SIGKILL)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 180)
    member = spark_client.keyspace.executor(await runner_of(spark_client, arg))

    async def said() -> list[str]:
        kv = await spark_client.get(member)
        return [one.what for one in decode(kv.value, MemberRecord, member).held_up if one.operation]

    (what,) = await eventually(said)
    assert what.startswith("tasks of Spark fail and are tried again: ")
    assert "crashed" in what
    (tmp_path / "release").touch()
    records = await all_done(spark_client, arg, 60.0)
    assert records["0"].attempt == traces(tmp_path, "did")[0][2] != held[0][2]


async def test_a_hanging_attempt_costs_its_worker(spark_client: LossyClient, tmp_path: Path) -> None:
    """O20: nothing else could end it."""
    argument = {"folder": str(tmp_path)}
    arg = await start_operation(spark_client, "hanging", argument, partitions=["0"], attempt_timeout_s=0.5)
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    assert len({pid for *_, pid in traces(tmp_path, "began")}) == 2


async def test_a_killed_sidecar_is_replaced(spark_client: LossyClient, hosts: Hosts, tmp_path: Path) -> None:
    argument = {"folder": str(tmp_path), "hold": ["0", "1"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=20)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 180)
    first = sidecar_pid(hosts.place)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: sidecar_pid(hosts.place) not in (0, first))
    (tmp_path / "release").touch()
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    assert len(traces(tmp_path, "began")) == 20


async def test_tasks_of_spark_read_files_and_topics_and_check_rules(
    spark_client: LossyClient, hosts: Hosts, tmp_path: Path, brokers: Brokers
) -> None:
    """P12: unique values are counted in the scratch of the worker."""
    source, rows = write_csv(tmp_path / "src", "1.csv", 0, 600), 900
    topic = brokers.topic()
    topic.ids(rows, 300)
    async with coordinated(hosts.etcd, tmp_path, spark_client) as service:
        operation = await service.ingest(source)
        assert operation.error is None
        kafka = {"kafka": topic.argument(records_per_job=50)}
        ended = await (await service.client.start("t", "ingest", kafka)).wait(timeout_s=PATIENCE_S)
        assert (ended.error, ended.jobs.succeeded) == (None, 6)
        rules: list[str | dict[str, str]] = [
            "id >= 0",
            {"unique": "id"},
            {"column": "id", "type": "smallint"},
            {"unique": "day"},
        ]
        validation = await service.client.table("t").validate(rules)
        ended = await validation.wait(timeout_s=PATIENCE_S)
        assert ended.error is not None
        assert (ended.error.code, ended.jobs.total, ended.jobs.failed) == ("VALIDATION_FAILED", 3, 0)
        # 28 days in each of three partitions.
        assert [(one["rule"], one["rows"]) for one in ended.facts["violations"]] == [
            ("unique(day)", 600 - 3 * 28)
        ]
        assert await asyncio.to_thread(service.ids) == [*range(600), *range(rows, rows + 300)]
        await service.client.table("t").drop()


async def test_queries_that_cannot_be_answered_fail_at_once_and_say_why(
    spark_client: LossyClient, hosts: Hosts, tmp_path: Path
) -> None:
    """O20, U3: each says what to do, and is not tried again and again."""
    source = tmp_path / "2.csv"
    source.write_text("id,kind,day\n1,k,2013-01-01\nx,k,2013-01-01\n")
    schema = {"id": "long", "kind": "string", "day": "date"}
    async with coordinated(hosts.etcd, tmp_path, spark_client, schema=SCHEMA) as service:
        for query, reason in (
            ("SELECT nothing FROM source", "`nothing` cannot be resolved"),
            ("DROP TABLE source", "Syntax error at or near"),
            ("SELECT id, id AS other FROM source", "the table has no column 'other'"),
            ("SELECT kind = 'k' AS id FROM source", "column 'id': bool in the source cannot become int64"),
            ("SELECT kind AS id FROM source", "column 'id': "),
            ("SELECT max(id) AS id FROM source", "2.csv, line 3: column 'id'"),
        ):
            ended = await service.ingest(source, schema=schema, transform=query)
            assert ended.state is OperationState.FAILED
            assert ended.error is not None
            assert reason in ended.error.message, (query, ended.error.message)
        await service.client.table("t").drop()


async def test_a_driver_killed_half_way_through_a_query_that_deals_rows_at_random(
    spark_client: LossyClient, hosts: Hosts, executor: Child, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """P2, P3, O11: the next driver cuts the rows in another way, and each is there once; what the first one
    had written is removed."""
    source = write_csv(tmp_path / "src", "1.csv", 0, 6000)
    query = (
        "SELECT /*+ REPARTITION(24) */ id, kind, day FROM "
        "(SELECT * FROM source WHERE id >= 0 DISTRIBUTE BY rand()) -- a comment at the end"
    )
    async with coordinated(hosts.etcd, tmp_path, spark_client, schema=SCHEMA, partitionBy=[]) as service:
        argument = {"paths": [str(source)], "split_bytes": 65536, "transform": query}
        operation = await service.client.start("t", "ingest", argument)
        await eventually(lambda: len(service.data_files()) > 3, PATIENCE_S)
        executor.kill()
        now = await operation.get()
        assert now.state is OperationState.RUNNING
        assert now.jobs.counting
        of_the_dead = service.data_files()
        request.getfixturevalue("second")
        ended = await operation.result(timeout_s=PATIENCE_S)
        assert ended.jobs.total == ended.jobs.succeeded == 24
        assert await asyncio.to_thread(service.ids) == list(range(6000))
        await eventually(service.only_published, 180)
        assert not service.data_files() & of_the_dead
        await service.client.table("t").drop()


async def test_a_killed_driver_costs_time_and_no_row(
    store: LossyClient, hosts: Hosts, second: Child, tmp_path: Path
) -> None:
    """P2, P3, O11: an executor whose Spark died lets go and ends. What was done stays done, the next executor
    does the rest, every row is there once."""
    source = write_csv(tmp_path / "src", "1.csv", 0, ROWS)
    async with coordinated(hosts.etcd, tmp_path, store) as service:
        argument = {"paths": [str(source)], "split_bytes": 8192}
        operation = await service.client.start("t", "ingest", argument)
        assert operation.started.jobs.total > 40
        await eventually(lambda: operation.get(), PATIENCE_S, holds=lambda now: now.jobs.succeeded > 5)
        for jvm in children(second.pid, b"java"):
            os.kill(jvm, signal.SIGKILL)
        assert await second.exit_code() == 1
        left = await operation.get()
        assert left.runner == ""
        assert 5 < left.jobs.succeeded < left.jobs.total
        async with runner(store):
            await operation.result(timeout_s=PATIENCE_S)
        assert await asyncio.to_thread(service.ids) == list(range(ROWS))
        await eventually(service.only_published, 180)
