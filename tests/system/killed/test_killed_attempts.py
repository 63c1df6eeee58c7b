"""What attempts make outside of the table, in processes that are killed or halted: the type of the docs."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from distop.client import Operation, OperationState
from distop.metastore.crashpoints import ONCE_VARIABLE, VARIABLE
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from support.etcd.jobs import mark_all
from support.etcd.lossy import LossyClient
from support.etcd.starts import begin, make_table
from support.repository import ROOT, TESTS
from support.services.coordinators import CoordinatorProcess
from support.services.executing import Child, executor_process, runner
from support.services.whole import Whole, coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills or halts a process in each test, and waits for its lease"),
]

EXAMPLES = ROOT / "examples"
TYPE = "exports:CsvExport"
KINDS = 6


@pytest_asyncio.fixture
async def service(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Whole]:
    """A table of some files, a coordinator that knows the example; nobody runs jobs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    source = write_csv(tmp_path / "src", "1.csv", 0, 600, kinds=KINDS)
    async with coordinated(etcd_config, tmp_path, client, more=[TYPE]) as service:
        async with runner(client):
            (await service.ingest(source)).raise_for_outcome()
        (tmp_path / "exported").mkdir()
        yield service


def executor(service: Whole, plan: str = "") -> Child:
    """An executor that serves the example; ``plan``: its crash points, each fires once."""
    known = {"PYTHONPATH": f"{TESTS}{os.pathsep}{EXAMPLES}", "DISTOP_OPERATIONS": TYPE}
    once = {VARIABLE: plan, ONCE_VARIABLE: str(service.folder)} if plan else {}
    return executor_process(service.etcd, service.folder, **known, **once)


def exported(service: Whole) -> set[str]:
    return {path.name for path in (service.folder / "exported").iterdir()}


async def export(service: Whole) -> Operation:
    return (await service.client.start("t", "export", {"to": str(service.folder / "exported")})).started


async def killed_half_way(service: Whole) -> set[str]:
    """An executor is killed when it has done a job and not said so; the files that it leaves."""
    with executor(service, "job.after=die@3") as doomed:
        assert await doomed.exit_code() == -signal.SIGKILL
    return exported(service)


async def swept(service: Whole, operation: Operation) -> None:
    await service.at_rest()
    prefix = service.store.keyspace.operation(OperationId.parse(operation.name)).prefix
    assert not (await service.store.scan(prefix, keys_only=True)).kvs


async def test_killed_attempts_of_a_success_leave_only_the_files_that_count(service: Whole) -> None:
    operation = await export(service)
    left = await killed_half_way(service)
    with executor(service) as other:
        await service.client.operation(operation.name).result(timeout_s=60)
        await swept(service, operation)
        other.terminate()
        other.wait(30)
    found = exported(service)
    assert len(found) == KINDS
    assert left - found, "what the killed attempt has left was there, and is gone"
    ids = [
        int(line.split(",")[0])
        for name in found
        for line in (service.folder / "exported" / name).read_text().splitlines()[1:]
    ]
    assert sorted(ids) == list(range(600))


async def test_killed_attempts_of_a_cancelled_operation_leave_nothing(service: Whole) -> None:
    operation = await export(service)
    assert await killed_half_way(service)
    await service.client.operation(operation.name).cancel()
    ended = await service.client.operation(operation.name).wait(timeout_s=30)
    assert ended.state is OperationState.CANCELLED
    await swept(service, operation)
    assert not exported(service)


async def test_an_attempt_that_wakes_up_after_the_end_cleans_up_itself(service: Whole) -> None:
    """It was halted before it had written anything, past the lease and past the sweep."""
    operation = await export(service)
    with executor(service, "job.before=sleep:300") as halted:

        def is_halted() -> bool:
            return Path(f"/proc/{halted.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

        await eventually(is_halted, 180)
        with executor(service) as other:
            await service.client.operation(operation.name).result(timeout_s=60)
            await swept(service, operation)
            found = exported(service)
            assert len(found) == KINDS
            halted.resume()
            told = ("job_cancelled", "attempt_does_not_count")  # while it worked, or when it was done
            await eventually(lambda: any(one in halted.log.read_text() for one in told), 90)
            for one in (halted, other):
                one.terminate()
                one.wait(30)
        assert exported(service) == found


async def test_results_that_are_being_removed_are_not_swept_by(
    client: EtcdClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """A leader dies when it has removed some records of jobs: their attempts count all the same."""
    await make_table(client)
    log, jobs = tmp_path / "log", 3000
    async with CoordinatorProcess(etcd_config, tmp_path, crash="collect.middle=die") as first:
        await first.member(client)
        argument = {"log": str(log)}
        operation = await begin(
            client, kind="sweeping", argument=argument, partition_count=jobs, stages_files=True
        )
        await mark_all(client, operation, map(str, range(jobs)))
        assert await first.exit_code() == -signal.SIGKILL
    keys = client.keyspace.operation(operation)
    assert (await client.get(keys.arg)).exists
    assert len((await client.scan(keys.prefix, keys_only=True)).kvs) < jobs
    async with CoordinatorProcess(etcd_config, tmp_path):
        await eventually(
            lambda: client.scan(keys.prefix, keys_only=True), 90, holds=lambda found: not found.kvs
        )
    assert [line.split()[1:] for line in log.read_text().splitlines()] == [["a1", "-"]]
