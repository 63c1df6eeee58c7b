"""A leader that dies in the middle of moving files into a tree."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from distop.client import AsyncClient, OperationState
from distop.metastore.client import EtcdClient
from distop.metastore.config import EtcdConfig
from distop.metastore.keyspace import OperationId
from support.coordinators import CoordinatorProcess
from support.executing import runner
from support.trees import ids_in, names_in, success_of
from support.waiting import eventually
from support.whole import write_csv

pytestmark = pytest.mark.process

ROWS = 4000


@pytest.mark.parametrize("point", ["step.rename.middle", "step.rename.after", "step.success.before"])
async def test_the_next_leader_finishes_what_a_dead_one_has_begun(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """C3, C4, C13, C18: every row is there once, the marker too, and nothing of the staging is left."""
    folder = tmp_path / "tree"
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, ROWS)
    with monkeypatch.context() as armed:
        armed.setenv("DISTOP_CRASH_POINTS", f"{point}=die" if "success" in point else f"{point}=die@7")
        doomed = CoordinatorProcess(etcd_config, tmp_path)
        doomed.start()
    try:
        await doomed.member(client)
        async with AsyncClient(doomed.address, timeout_s=20) as sdk:
            options = {"partitionBy": ["kind"]}
            await sdk.create_table("f", str(folder), format="files", options=options)
            argument = {"paths": [str(source)], "split_bytes": 8192}
            operation = await sdk.start("f", "ingest", argument)
        assert operation.jobs.total > 5
        async with runner(client):
            assert await doomed.exit_code(40.0) == -signal.SIGKILL
    finally:
        doomed.kill()
    seen = [name for name in names_in(folder) if name.startswith("kind=")]
    assert 0 < len(seen) <= 3 * operation.jobs.total
    assert not (folder / "_SUCCESS").exists()

    async with CoordinatorProcess(etcd_config, tmp_path) as other:
        await other.member(client)
        async with AsyncClient(other.address, timeout_s=20) as sdk:
            ended = await sdk.wait(operation.name, timeout_s=60)
        assert ended.state is OperationState.SUCCEEDED, ended.error
        keys = client.keyspace.operation(OperationId.parse(operation.name))

        async def collected() -> bool:
            return not (await client.scan(keys.prefix, keys_only=True)).kvs

        await eventually(collected, 30.0)
    assert await asyncio.to_thread(ids_in, folder) == list(range(ROWS))
    tops = {name.partition("/")[0] for name in names_in(folder)}
    assert tops == {"_SUCCESS", "kind=k0", "kind=k1", "kind=k2"}
    assert operation.name in success_of(folder)
