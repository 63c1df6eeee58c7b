"""A leader that dies in the middle of publishing outside of etcd: plain files, Delta tables."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distop.client import AsyncClient, Operation
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from support.services.coordinators import CoordinatorProcess, config_of, running
from support.services.executing import runner
from support.services.whole import write_csv
from support.tables.trees import ids_in, names_in, success_of
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("kills a leader, and waits for its lease")]

ROWS = 1200


@asynccontextmanager
async def after_the_death_of_a_leader(
    etcd: EtcdConfig, client: EtcdClient, folder: Path, plan: str, table: dict[str, Any]
) -> AsyncIterator[tuple[AsyncClient, Operation]]:
    """An ingest into the table ``f`` whose first leader has died as planned; the next one runs."""
    source = write_csv(folder / "src" / "a", "1.csv", 0, ROWS)
    async with CoordinatorProcess(etcd, folder, crash=plan) as doomed:
        await doomed.member(client)
        async with AsyncClient(doomed.address, timeout_s=60) as sdk:
            await sdk.create_table("f", str(folder / "table"), **table)
            operation = await sdk.start("f", "ingest", {"paths": [str(source)], "split_bytes": 8192})
        async with runner(client):
            assert await doomed.exit_code() == -signal.SIGKILL
    async with running(config_of(etcd)) as other, AsyncClient(other.address, timeout_s=60) as sdk:
        yield sdk, operation.started


async def ended_well(client: EtcdClient, sdk: AsyncClient, operation: Operation) -> None:
    """It succeeds, and its keys and so its staged files are collected."""
    await sdk.operation(operation.name).result(timeout_s=180)
    keys = client.keyspace.operation(OperationId.parse(operation.name))
    await eventually(lambda: client.scan(keys.prefix, keys_only=True), 90, holds=lambda found: not found.kvs)


@pytest.mark.parametrize("plan", ["step.rename.middle=die@7", "step.success.before=die"])
async def test_the_next_leader_finishes_what_a_dead_one_has_begun(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, plan: str
) -> None:
    """C3, C4, C13, C18: every row is there once, the marker too, and nothing of the staging is left."""
    folder = tmp_path / "table"
    table = {"format": "files", "options": {"partitionBy": ["kind"]}}
    async with after_the_death_of_a_leader(etcd_config, client, tmp_path, plan, table) as (sdk, operation):
        await ended_well(client, sdk, operation)
    assert await asyncio.to_thread(ids_in, folder) == list(range(ROWS))
    tops = {name.partition("/")[0] for name in names_in(folder)}
    assert tops == {"_SUCCESS", "kind=k0", "kind=k1", "kind=k2"}
    assert operation.name in success_of(folder)


async def test_delta_commits_happen_once(etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path) -> None:
    """C3, C4, C8: the leader dies right after it; the next one sees it in the table's log."""
    plan, table = "step.delta.after=die", {"format": "delta"}
    async with after_the_death_of_a_leader(etcd_config, client, tmp_path, plan, table) as (sdk, operation):
        assert DeltaTable(str(tmp_path / "table")).version() == 0
        await ended_well(client, sdk, operation)
        assert await sdk.table("f").watermarks()
    found = DeltaTable(str(tmp_path / "table"))
    assert found.version() == 0
    ids = [number for uri in found.file_uris() for number in pq.read_table(uri)["id"].to_pylist()]
    assert sorted(ids) == list(range(ROWS))
