"""The examples of the documentation, run as it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from distop.client import AsyncClient, OperationState
from distop.errors import PreconditionFailed
from distop.metastore.config import EtcdConfig
from support.coordinators import config_of, running
from support.executing import Child
from support.waiting import eventually
from support.whole import write_csv

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest_asyncio.fixture
async def service(
    etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncClient]:
    """A coordinator that knows the example, an executor process that found it through its environment."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    executor = ["-m", "distop.cli", "executor", "--master", "none"]
    environment = {"PYTHONPATH": str(EXAMPLES), "DISTOP_OPERATIONS": "audit:Audit"}
    async with (
        running(config_of(etcd_config, operations=("audit:Audit",))) as coordinator,
        AsyncClient(coordinator.address, timeout_s=20) as client,
    ):
        with Child(etcd_config, tmp_path, *executor, **environment):

            async def served() -> bool:
                return any("audit" in member.types for member in await client.members())

            await eventually(served, 30.0)
            yield client


async def test_the_audit_finds_every_row_and_then_a_file_that_lacks_some(
    service: AsyncClient, tmp_path: Path
) -> None:
    await service.create_table("t", str(tmp_path / "table"), options={"partitionBy": ["kind"]})
    with pytest.raises(PreconditionFailed, match="holds nothing yet"):
        await service.start("t", "audit")
    source = write_csv(tmp_path / "src", "1.csv", 0, 3000)
    ingested = await service.start("t", "ingest", {"paths": [str(source)]})
    (await service.wait(ingested.name, timeout_s=30)).raise_for_outcome()

    audited = await service.wait((await service.start("t", "audit")).name, timeout_s=30)
    assert audited.state is OperationState.SUCCEEDED
    assert audited.jobs.total == 3, "one job a data file, one data file a kind"
    (report,) = [
        json.loads(path.read_text()) async for path in _files(tmp_path / "table" / "audits", "*.json")
    ]
    assert report["operation"].startswith(f"{audited.name}/")
    assert (report["files"], report["rows"]) == (3, 3000)

    async for path in _files(tmp_path / "table" / "data", "*/*.parquet"):
        rows = await asyncio.to_thread(pq.read_table, path)
        await asyncio.to_thread(pq.write_table, rows.slice(1), path)
        break
    failed = await service.wait((await service.start("t", "audit")).name, timeout_s=30)
    assert failed.state is OperationState.FAILED
    assert failed.error is not None
    assert "holds 999 rows, the table says 1,000" in failed.error.message


async def _files(folder: Path, pattern: str) -> AsyncIterator[Path]:
    for path in await asyncio.to_thread(lambda: sorted(folder.glob(pattern))):
        yield path
