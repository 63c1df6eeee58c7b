"""An executor with a real Spark: a process of its own, shared by the tests of this module."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.operations.jobs import FAILED, SUCCESS
from distop.metastore.operations.pausing import pause_operation, resume_operation
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import ABORTING, PauseRecord
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import audit_put
from support.etcd.lossy import LossyClient
from support.processes import children
from support.services.executing import (
    Child,
    all_done,
    job_records,
    place_in,
    runner,
    runner_of,
    set_state,
    short_folder,
    sidecar_pid,
    start_operation,
)
from support.services.leases import TTL_S
from support.types.work_types import files, traces
from support.waiting import eventually

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Served:
    """An executor that is up, and how to reach it."""

    etcd: EtcdConfig
    place: SidecarFolder
    process: Child


@contextmanager
def serving(etcd: EtcdConfig, folder: Path, *command: str) -> Iterator[Served]:
    """A process that runs operations; its sidecars are ended with it."""
    with short_folder() as base:
        place = place_in(base, etcd)
        environment = {BASE_VARIABLE: str(base), "PYSPARK_PYTHON": sys.executable}
        with Child(etcd, folder, *command, **environment) as process:
            yield Served(etcd, place, process)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.fixture(scope="module")
def local_spark(etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An executor with ``local[2]``."""
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=f"t{secrets.token_hex(6)}")
    command = ("-m", "support.services.executor_main", "local[2]", str(TTL_S))
    with serving(config, tmp_path_factory.mktemp("spark"), *command) as served:
        yield served
        served.process.terminate()
        served.process.wait(60)


@pytest_asyncio.fixture
async def spark_client(local_spark: Served) -> AsyncIterator[LossyClient]:
    """A client below the prefix of the module's executor."""
    client = LossyClient(local_spark.etcd)
    yield client
    await client.close()


async def test_runs_a_thousand_small_jobs(spark_client: LossyClient) -> None:
    """O8"""
    arg = await start_operation(spark_client, jobs=1000)
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    assert await runner_of(spark_client, arg)


async def test_runs_jobs_of_a_type_of_the_users(spark_client: LossyClient, tmp_path: Path) -> None:
    """O12, O20, P1: in workers that know the type by ``DISTOP_OPERATIONS``, forked from a daemon of ours."""
    argument = {"folder": str(tmp_path), "permanent": ["3"], "fail": {"5": 1}}
    arg = await start_operation(spark_client, "traced", argument, jobs=12)
    records = await all_done(spark_client, arg, 60.0)
    assert [name for name, record in records.items() if record.state == FAILED] == ["3"]
    assert records["3"].error == "JOB_FAILED: as asked for"
    assert files(tmp_path) == sorted(f"{r.attempt}.out" for r in records.values() if r.state == SUCCESS)
    workers = {int(pid) for *_, pid in traces(tmp_path, "began")}
    assert len(workers) == 2
    assert all("distop.executor.launch.spark_daemon" in command_of(worker) for worker in workers)


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
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 60.0)
    audit = audit_put(table, "pause", by="jane", target=str(arg.id), at=1.0)
    assert await pause_operation(spark_client, keys, PauseRecord(by="jane"), audit)
    await eventually(lambda: len(traces(tmp_path, "cleaned")) == 2, 20.0)

    async def let_go() -> bool:
        return await runner_of(spark_client, arg) == ""

    await eventually(let_go, 20.0)
    assert set(await job_records(spark_client, arg)) == {"0", "1"}
    (tmp_path / "release").touch()
    assert await resume_operation(spark_client, keys, audit_put(table, "resume", by="joe", target="", at=2.0))
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    began = [partition for _, partition, *_ in traces(tmp_path, "began")]
    assert {name: began.count(name) for name in records} == {"0": 1, "1": 1, "2": 2, "3": 2}
    assert files(tmp_path) == sorted(f"{record.attempt}.out" for record in records.values())


async def test_a_sealed_operation_stops_its_jobs_by_push(spark_client: LossyClient, tmp_path: Path) -> None:
    """O15: a worker that Spark kills would not clean up."""
    argument = {"folder": str(tmp_path), "hold": ["0", "1"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=2)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 60.0)
    await set_state(spark_client, arg, ABORTING)
    await eventually(lambda: len(traces(tmp_path, "cleaned")) == 2)
    assert files(tmp_path) == []


async def test_a_worker_that_is_killed_is_replaced(spark_client: LossyClient, tmp_path: Path) -> None:
    """P2, U1: Spark tries the task again, which the executor says; what the dead attempt wrote counts for
    nothing."""
    argument = {"folder": str(tmp_path), "hold": ["0"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=1)
    held = await eventually(lambda: traces(tmp_path, "holds"), 60.0)
    os.kill(int(held[0][3]), signal.SIGKILL)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 60.0)
    member = spark_client.keyspace.executor(await runner_of(spark_client, arg))

    async def said() -> list[str]:
        kv = await spark_client.get(member)
        return [one.what for one in decode(kv.value, MemberRecord, member).held_up if one.operation]

    (what,) = await eventually(said, 20.0)
    assert what.startswith("tasks of Spark fail and are tried again: ")
    assert "crashed" in what
    (tmp_path / "release").touch()
    records = await all_done(spark_client, arg, 60.0)
    assert records["0"].attempt == traces(tmp_path, "did")[0][2] != held[0][2]


async def test_an_attempt_that_hangs_costs_its_worker_and_is_tried_again(
    spark_client: LossyClient, tmp_path: Path
) -> None:
    """O20: nothing else could end it."""
    argument = {"folder": str(tmp_path)}
    arg = await start_operation(spark_client, "hanging", argument, partitions=["0"], attempt_timeout_s=0.5)
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    assert len({pid for *_, pid in traces(tmp_path, "began")}) == 2


async def test_a_sidecar_that_is_killed_is_replaced_by_the_tasks(
    spark_client: LossyClient, local_spark: Served, tmp_path: Path
) -> None:
    argument = {"folder": str(tmp_path), "hold": ["0", "1"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=20)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2, 60.0)
    first = sidecar_pid(local_spark.place)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: sidecar_pid(local_spark.place) not in (0, first), 20.0)
    (tmp_path / "release").touch()
    records = await all_done(spark_client, arg, 60.0)
    assert {record.state for record in records.values()} == {SUCCESS}
    assert len(traces(tmp_path, "began")) == 20


async def test_an_executor_whose_spark_died_lets_go_and_ends(
    spark_client: LossyClient, local_spark: Served, tmp_path: Path
) -> None:
    """The last of those that share it."""
    argument = {"folder": str(tmp_path), "hold": ["0"]}
    arg = await start_operation(spark_client, "traced", argument, jobs=1)
    await eventually(lambda: traces(tmp_path, "holds"), 60.0)
    for jvm in children(local_spark.process.pid, b"java"):
        os.kill(jvm, signal.SIGKILL)
    assert await local_spark.process.exit_code(20.0) == 1
    assert await runner_of(spark_client, arg) == ""
    (tmp_path / "release").touch()
    async with runner(spark_client):
        await all_done(spark_client, arg)


async def test_a_users_program_runs_operations_on_executors_that_are_processes_of_their_own(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """``local-cluster``: as on a cluster, with the sidecar started by whichever task comes first."""
    command = ("-m", "support.spark.spark_program", "local-cluster[2,1,1024]")
    with serving(etcd_config, tmp_path, *command) as served:
        argument = {"folder": str(tmp_path), "permanent": ["2"]}
        arg = await start_operation(client, "traced", argument, jobs=6)
        small = await start_operation(client, jobs=500)
        records = await all_done(client, arg, 200.0)
        assert len(await all_done(client, small, 60.0)) == 500
        assert [name for name, record in records.items() if record.state == FAILED] == ["2"]
        assert await job_records(client, arg) == records
        served.process.terminate()
        assert await served.process.exit_code(30.0) == 0, served.process.log.read_text()
