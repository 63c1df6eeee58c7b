"""Attempts at a job are counted, even when the process that tries it dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from distop.executor.host.sidecar_folder import SidecarFolder
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import FAILED, success_record
from distop.metastore.operations.tries import MAX_ERROR_CHARACTERS, Tried, TriesRecord, count_try, read_tries
from distop.metastore.records.operation import ABORTING, OperationArg
from distop.metastore.records.record import decode
from support.etcd.lossy import Fault, LossyClient
from support.services.executing import (
    all_done,
    executor_process,
    job_records,
    runner,
    set_state,
    sidecar_process,
    start_operation,
    take,
)
from support.services.sidecars import connected, task
from support.services.sidecars import place as place
from support.services.sidecars import session as session
from support.types.work_types import traces
from support.waiting import eventually


async def counts(client: LossyClient, arg: OperationArg) -> dict[str, Tried]:
    keys = client.keyspace.operation(arg.id)
    return await read_tries(client, keys, (await client.scan(keys.prefix, keys_only=True)).kvs)


@pytest.mark.parametrize("fault", [None, Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_each_attempt_is_counted_once(
    client: LossyClient, session: LeaseSession, fault: Fault | None
) -> None:
    """O20: whatever befalls the transaction."""
    arg = await start_operation(client, partitions=["a.b", "c"])
    run = (await take(client, arg, session)).run
    await count_try(client, run, "a.b", "1-x-1", "JOB_FAILED: first")
    if fault is not None:
        client.fail(fault)
    await count_try(client, run, "a.b", "1-x-2", "JOB_FAILED: " + "second" * 100)
    await count_try(client, run, "a.b", "1-x-2", "JOB_FAILED: again")
    (name, tried), *others = (await counts(client, arg)).items()
    assert (name, tried.tries, len(tried.error)) == ("a.b", 2, MAX_ERROR_CHARACTERS)
    assert not others


async def test_nothing_is_counted_for_a_run_that_is_over_or_a_job_that_is_done(
    client: LossyClient, session: LeaseSession
) -> None:
    arg = await start_operation(client, jobs=2)
    run = (await take(client, arg, session)).run
    await client.put(run.keys.job_state("0"), success_record("x", {}, 1.0))
    await count_try(client, run, "0", "1-x-1", "late")
    await set_state(client, arg, ABORTING)
    await count_try(client, run, "1", "1-x-1", "late")
    assert await counts(client, arg) == {}


async def test_tries_count_across_the_death_of_an_executor(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O20: it is killed between two attempts; the next one has what is left."""
    argument = {"folder": str(tmp_path), "fail": {"0": 9}}
    arg = await start_operation(client, "traced", argument, jobs=2, max_job_attempts=2, job_backoff_s=600.0)
    with executor_process(etcd_config, tmp_path) as first:

        async def counted() -> bool:
            return "0" in await counts(client, arg)

        await eventually(counted)
        first.kill()
    async with runner(client):
        records = await all_done(client, arg)
    assert (records["0"].state, records["0"].error) == (FAILED, "JOB_CRASHED: OSError: try 2")
    assert [line[1] for line in traces(tmp_path, "began")].count("0") == 2


async def test_tries_are_counted_through_a_sidecar(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    argument = {"folder": str(tmp_path), "fail": {"0": 2}}
    arg = await start_operation(client, "traced", argument, jobs=1, job_backoff_s=0.01)
    taken = await take(client, arg, session)
    async with sidecar_process(etcd_config, place, tmp_path):
        with connected(place, etcd_config) as worker:
            assert (await task(worker, taken)).won == 1
    keys = client.keyspace.operation(arg.id)
    record = decode((await client.get(keys.tries("0"))).value, TriesRecord)
    assert (record.tries, record.error) == (2, "JOB_CRASHED: OSError: try 2")
    assert (await job_records(client, arg))["0"].state == "success"
