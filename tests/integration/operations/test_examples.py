"""The examples of the documentation, run as it says."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from distop.client import AsyncClient, Operation, OperationState
from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.repository import ROOT
from support.services.coordinators import config_of, running
from support.services.executing import Child, runner
from support.services.whole import write_csv
from support.waiting import eventually

EXAMPLES = ROOT / "examples"
TYPES = ("audit:Audit", "access_logs:access_logs")


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """A coordinator that knows the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    async with (
        running(config_of(etcd_config, operations=TYPES)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as client,
    ):
        yield client


@pytest_asyncio.fixture
async def executor(service: AsyncClient, etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[Child]:
    """An executor process that finds the examples through its environment."""
    command = ["-m", "distop.cli", "executor", "--master", "none"]
    environment = {"PYTHONPATH": str(EXAMPLES), "DISTOP_OPERATIONS": ",".join(TYPES)}
    with Child(etcd_config, tmp_path, *command, **environment) as started:
        await eventually(
            lambda: service.members(),
            90,
            holds=lambda found: any("audit" in member.types for member in found),
        )
        yield started


@pytest_asyncio.fixture
async def threads(service: AsyncClient, client: LossyClient) -> AsyncIterator[None]:
    """An executor in this process."""
    async with runner(client, more=TYPES):
        yield


@pytest.mark.usefixtures("executor")
async def test_the_audit_finds_every_row_and_then_a_file_that_lacks_some(
    service: AsyncClient, tmp_path: Path
) -> None:
    await service.create_table("t", str(tmp_path / "table"), options={"partitionBy": ["kind"]})
    with pytest.raises(PreconditionFailed, match="holds nothing yet"):
        await service.start("t", "audit")
    with pytest.raises(InvalidArgument, match="did you mean folder") as refused:
        await service.start("t", "access_logs", {"foldr": "/logs"})
    assert refused.value.details["field"] == "foldr"
    source = write_csv(tmp_path / "src", "1.csv", 0, 3000)
    ingested = await service.start("t", "ingest", {"paths": [str(source)]})
    await ingested.result(timeout_s=90)

    audited = await (await service.start("t", "audit")).wait(timeout_s=30)
    assert audited.state is OperationState.SUCCEEDED
    assert audited.jobs.total == 3, "one job a data file, one data file a kind"
    assert (audited.facts["files"], audited.facts["rows"]) == (3, 3000)
    assert audited.facts["links"] == {"runbook": "https://runbooks.example.com/audit?table=t"}
    (report,) = [
        json.loads(path.read_text()) async for path in _files(tmp_path / "table" / "audits", "*.json")
    ]
    assert report["operation"].startswith(f"{audited.name}/")
    assert (report["files"], report["rows"]) == (3, 3000)

    async for path in _files(tmp_path / "table" / "data", "*/*.parquet"):
        rows = await asyncio.to_thread(pq.read_table, path)
        await asyncio.to_thread(pq.write_table, rows.slice(1), path)
        break
    failed = await (await service.start("t", "audit")).wait(timeout_s=30)
    assert failed.state is OperationState.FAILED
    assert failed.error is not None
    assert list(failed.facts["links"]) == ["runbook"]
    assert "holds 999 rows, the table says 1,000" in failed.error.message


@pytest.mark.usefixtures("threads")
async def test_every_log_is_read_once_and_a_bad_one_costs_nothing(
    service: AsyncClient, tmp_path: Path
) -> None:
    """Rows and watermarks of a type that is not distop's, in tables of two formats."""
    logs = tmp_path / "logs"
    logs.mkdir()
    line = '192.0.2.7 - - [10/Oct/2013:13:55:36 -0700] "GET /{} HTTP/1.1" 200 2326\n'

    async def read(table: str) -> Operation:
        started = await service.start(table, "access_logs", {"folder": str(logs)})
        return await started.wait(timeout_s=90)

    for name in "ab":
        (logs / f"{name}.log").write_text(line.format(name) * 10)
    for table, format_ in (("i", "iceberg"), ("f", "files")):
        location = tmp_path / table
        await service.create_table(table, str(location), format=format_)
        assert (await read(table)).raise_for_outcome().facts["rows"] == 20
        assert (await read(table)).raise_for_outcome().jobs.total == 0
        rows = 0
        async for path in _files(location, "**/*.parquet"):
            rows += pq.read_metadata(path).num_rows
        assert rows == 20
    (logs / "c.log").write_text("what?\n")
    failed = await read("i")
    assert failed.error is not None
    assert "no line of an access log" in failed.error.message
    ((_, known),) = (await service.table("i").watermarks()).items()
    assert len(known) == 2


async def _files(folder: Path, pattern: str) -> AsyncIterator[Path]:
    for path in await asyncio.to_thread(lambda: sorted(folder.glob(pattern))):
        yield path
