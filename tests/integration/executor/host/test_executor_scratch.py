"""What lies on a worker's disk after its processes were killed, and who finds it."""

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from distop.executor.host import scratch_sweep
from distop.executor.host.scratch import Scratch
from distop.executor.host.scratch_sweep import sweep_scratch
from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.executor.launch.launch import LocalLauncher
from distop.executor.runner import service
from distop.executor.runner.options import ServedTypes
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Get, TxnResult
from distop.metastore.operations.runs import Taken
from distop.metastore.records.operation import ABORTING, ClaimRecord
from distop.metastore.records.record import encode
from distop.operations import Registry
from support.defects import fail_once
from support.etcd.lossy import LossyClient
from support.etcd.proxy import Proxy
from support.services.executing import (
    all_done,
    place_in,
    runner,
    set_state,
    short_folder,
    sidecar_process,
    start_operation,
)
from support.services.sidecars import Host, connected, task
from support.services.sidecars import host as host
from support.services.sidecars import session as session
from support.services.sidecars import sidecar_folder as sidecar_folder
from support.types.work_types import traces
from support.waiting import eventually


def scratching(folder: Path, hold_at: int) -> dict[str, object]:
    return {"folder": str(folder), "steps": 4, "scratch": True, "hold_at": hold_at}


async def killed_half_way(host: Host, taken: Taken) -> list[Path]:
    """Kill worker and sidecar of a host while its job holds; what is on its disk then."""
    async with host.sidecar() as sidecar:
        with host.worker(taken) as worker:
            await eventually(lambda: host.traces("holds"))
            for process in (worker, sidecar):
                os.kill(process.pid, signal.SIGKILL)
    return on_disk(host.sidecar_folder)


def on_disk(sidecar_folder: SidecarFolder) -> list[Path]:
    """The folders of attempts."""
    return sorted(sidecar_folder.scratch.glob("*/*/[ak]*-*"))


async def test_a_job_is_resumed_on_its_host_with_its_scratch(host: Host) -> None:
    """O9, O14: worker and sidecar are killed; the next sidecar keeps the folder, the next attempt goes on
    with it, and when it is done nothing is left."""
    taken = await host.take("owned", scratching(host.folder, 2), exclusive=True)
    (left,) = await killed_half_way(host, taken)
    assert (left / "steps").read_text() == "0\n1\n"
    host.release()
    async with host.sidecar() as sidecar:
        assert await sweep_scratch(host.client, host.sidecar_folder.scratch) == []
        with host.connected() as worker:
            assert await asyncio.wait_for(task(worker, taken), 60) == TaskSummary(won=1)
        assert sidecar.running
    assert (await host.records(taken))["0"].result == {"from": 2, "found": ["0", "1"]}
    assert on_disk(host.sidecar_folder) == []


async def test_a_job_begins_elsewhere_from_its_checkpoint_and_back_here_without_the_old_scratch(
    host: Host,
) -> None:
    """O14: what is on the first host's disk is older than the checkpoint by then."""
    taken = await host.take("owned", scratching(host.folder, 2), exclusive=True)
    assert len(await killed_half_way(host, taken)) == 1
    with short_folder() as elsewhere:
        there = place_in(elsewhere, host.etcd)
        taken.arg.argument["hold_at"] = 3
        async with sidecar_process(host.etcd, there, host.folder):
            with connected(there, host.etcd) as worker:
                running = task(worker, taken)
                await eventually(lambda: host.traces("saved@3"))
                assert len(on_disk(there)) == 1
                worker.close()
                await asyncio.gather(running, return_exceptions=True)
    assert len(on_disk(host.sidecar_folder)) == 1
    host.release()
    async with host.sidecar():
        with host.connected() as worker:
            assert await asyncio.wait_for(task(worker, taken, "c"), 60) == TaskSummary(won=1)
    assert host.traces("began@2")
    assert (await host.records(taken))["0"].result == {"from": 3, "found": []}
    assert on_disk(host.sidecar_folder) == []


async def test_scratch_that_nobody_needs_is_swept_and_the_rest_is_kept(host: Host) -> None:
    """O14: gone, finished, reassigned, of a dead run; kept: of this run, to be resumed, of nobody known."""
    scratch = Scratch(host.sidecar_folder)
    gone, over = await start_operation(host.client), await start_operation(host.client)
    taken = await host.take(jobs=5, exclusive=True)
    here, run, keys = taken.arg, taken.run.token, taken.run.keys
    await set_state(host.client, over, ABORTING)
    removed = [
        scratch.private(over.id, "0", "1-a-1"),
        scratch.private(here.id, "0", f"{run - 1}-a-1"),
        scratch.kept(here.id, "1", f"{run}-a-1", 5, None),
        scratch.kept(here.id, "2", f"{run}-a-1", 5, None),
        scratch.private(gone.id, "0", "1-a-1"),
    ]
    await host.client.put(keys.job_state("1"), b"{}")
    elsewhere = ClaimRecord(attempt="other", member="sidecar-another.example-17-ab")
    await host.client.put(keys.claim("2"), encode(elsewhere))
    await host.client.delete(host.client.keyspace.operation(gone.id).state)
    kept = [
        scratch.private(here.id, "0", f"{run}-a-1"),
        scratch.kept(here.id, "3", f"{run - 1}-a-1", 5, None),
    ]
    stranger = host.sidecar_folder.scratch / "not-ours"
    stranger.mkdir()
    async with host.sidecar():
        await eventually(lambda: not any(folder.exists() for folder in removed))
    assert all(folder.exists() for folder in [*kept, stranger])


async def test_a_job_that_ends_during_a_sweep_does_not_end_it(host: Host) -> None:
    """It removes its own folder, while etcd is asked about another one."""
    taken = await host.take(jobs=3, exclusive=True)
    attempt = f"{taken.run.token - 1}-a-1"
    dead = [Scratch(host.sidecar_folder).private(taken.arg.id, name, attempt) for name in ("0", "1", "2")]
    first, second, third = sorted(dead)

    class Meanwhile(LossyClient):
        async def read_at_once(self, gets: Sequence[Get], *, revision: int = 0) -> TxnResult:
            shutil.rmtree(second.parent, ignore_errors=True)
            return await super().read_at_once(gets, revision=revision)

    other = Meanwhile(host.client.config)
    assert await sweep_scratch(other, host.sidecar_folder.scratch) == [first, third]
    await other.close()


async def test_a_runner_asks_etcd_about_scratch_when_its_spark_is_there(
    client: LossyClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM is started by a fork, which gRPC that is in use may abort. A defect does not end its sweeps."""
    asked = []
    fail_once(monkeypatch, scratch_sweep, "sweep_scratch", RuntimeError("odd"))

    class Slow(LocalLauncher):
        async def start(self) -> None:
            await asyncio.sleep(0.3)
            asked.append(proxy.connections)

    monkeypatch.setattr(service, "make_launcher", lambda ledger, config, session: Slow(ledger))
    gone = await start_operation(client)
    await client.delete(client.keyspace.operation(gone.id).state)
    with short_folder() as base:
        monkeypatch.setenv(BASE_VARIABLE, str(base))
        async with Proxy(etcd_config.endpoints[0]) as proxy:
            config = service.ExecutorConfig(etcd=replace(etcd_config, endpoints=(proxy.endpoint,)))
            left = Scratch(place_in(base, config.etcd)).private(gone.id, "0", "1-a-1")
            stop, own = asyncio.Event(), EtcdClient(config.etcd)
            serving = asyncio.create_task(service.serve(own, config, ServedTypes(Registry()), stop))
            await eventually(lambda: not left.exists())
            stop.set()
            await serving
            await own.close()
    assert asked == [0]


async def test_jobs_in_threads_have_scratch_too(client: LossyClient, tmp_path: Path) -> None:
    sidecar_folder = SidecarFolder.of(client.config.endpoints, client.config.prefix)
    arg = await start_operation(client, "owned", scratching(tmp_path, 2), exclusive=True)
    async with runner(client):
        await eventually(lambda: traces(tmp_path, "holds"))
        assert len(on_disk(sidecar_folder)) == 1
        (tmp_path / "release").touch()
        assert (await all_done(client, arg))["0"].result == {"from": 0, "found": []}
        await eventually(lambda: on_disk(sidecar_folder) == [])
