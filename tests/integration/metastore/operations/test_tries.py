"""Attempts at a job are counted, even when the process that tries it dies."""

from pathlib import Path

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.jobs import (
    FAILED,
    MAX_ERROR_CHARACTERS,
    Tried,
    TriesRecord,
    count_try,
    read_tries,
    success_record,
)
from distop.metastore.records.operation import ABORTING, OperationArg
from distop.metastore.records.record import decode
from support.etcd.lossy import Fault, LossyClient
from support.services.executing import all_done, executor_process, runner, set_state, start_operation
from support.services.sidecars import Host, Runs, task
from support.services.sidecars import host as host
from support.services.sidecars import runs as runs
from support.services.sidecars import session as session
from support.services.sidecars import sidecar_folder as sidecar_folder
from support.types.work_types import traces
from support.waiting import eventually


async def counts(client: LossyClient, arg: OperationArg) -> dict[str, Tried]:
    keys = client.keyspace.operation(arg.id)
    return await read_tries(client, keys, (await client.scan(keys.prefix, keys_only=True)).kvs)


@pytest.mark.parametrize("fault", [None, Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_each_attempt_is_counted_once(runs: Runs, fault: Fault | None) -> None:
    """O20: whatever befalls the transaction."""
    taken = await runs.take(partitions=["a.b", "c"])
    arg, run = taken.arg, taken.run
    await count_try(runs.client, run, "a.b", "1-x-1", "JOB_FAILED: first")
    if fault is not None:
        runs.client.fail(fault)
    await count_try(runs.client, run, "a.b", "1-x-2", "JOB_FAILED: " + "second" * 100)
    await count_try(runs.client, run, "a.b", "1-x-2", "JOB_FAILED: again")
    (name, tried), *others = (await counts(runs.client, arg)).items()
    assert (name, tried.tries, len(tried.error)) == ("a.b", 2, MAX_ERROR_CHARACTERS)
    assert not others


async def test_nothing_is_counted_for_a_run_that_is_over_or_a_job_that_is_done(runs: Runs) -> None:
    taken = await runs.take(jobs=2)
    arg, run = taken.arg, taken.run
    await runs.client.put(run.keys.job_state("0"), success_record("x", {}, 1.0))
    await count_try(runs.client, run, "0", "1-x-1", "late")
    await set_state(runs.client, arg, ABORTING)
    await count_try(runs.client, run, "1", "1-x-1", "late")
    assert await counts(runs.client, arg) == {}


async def test_tries_count_across_the_death_of_an_executor(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O20: it is killed between two attempts; the next one has what is left."""
    argument = {"folder": str(tmp_path), "fail": {"0": 9}}
    arg = await start_operation(client, "traced", argument, jobs=2, max_job_attempts=2, job_backoff_s=600.0)
    with executor_process(etcd_config, tmp_path) as first:
        await eventually(lambda: counts(client, arg), holds=lambda found: "0" in found)
        first.kill()
    async with runner(client):
        records = await all_done(client, arg)
    assert (records["0"].state, records["0"].error) == (FAILED, "JOB_CRASHED: OSError: try 2")
    assert [line[1] for line in traces(tmp_path, "began")].count("0") == 2


async def test_tries_are_counted_through_a_sidecar(host: Host) -> None:
    argument = {"folder": str(host.folder), "fail": {"0": 2}}
    taken = await host.take("traced", argument, jobs=1, job_backoff_s=0.01)
    async with host.sidecar():
        with host.connected() as worker:
            assert (await task(worker, taken)).won == 1
    record = decode((await host.client.get(taken.run.keys.tries("0"))).value, TriesRecord)
    assert (record.tries, record.error) == (2, "JOB_CRASHED: OSError: try 2")
    assert (await host.records(taken))["0"].state == "success"
