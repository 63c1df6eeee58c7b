"""The whole service in one test: a coordinator, an executor with threads, a client, a table on local disk."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyiceberg.table
from typer.testing import CliRunner

from distop.catalog.catalog import EtcdCatalog
from distop.cli.main import app
from distop.client import AsyncClient, Finding, Operation, OperationError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.process.secret import Secret
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.tables.trees import all_files
from support.types.probes import PROBES
from support.waiting import eventually

HEADER = "id,kind,day\n"
LINGER_S = 300.0
"""Whether a table is still led does not depend on how busy the machine is."""


def write_csv(folder: Path, name: str, start: int, rows: int, *, kinds: int = 3) -> Path:
    """A file of ``rows`` rows with ids from ``start`` on; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{n},k{n % kinds},2013-01-{1 + n % 28:02}" for n in range(start, start + rows))
    (folder / name).write_text(HEADER + "\n".join(lines) + "\n")
    return folder


def error_of(ended: Operation) -> OperationError:
    """Why an operation has failed or was cancelled."""
    assert ended.error is not None, ended
    return ended.error


@dataclass
class Whole:
    """What a test sees of it."""

    etcd: EtcdConfig
    store: EtcdClient
    client: AsyncClient
    folder: Path
    address: str = ""

    @property
    def location(self) -> Path:
        return self.folder / "table"

    async def ingest(self, source: Path, table: str = "t", **argument: Any) -> Operation:
        """Ingest a folder to its end, whatever that is."""
        operation = await self.client.start(table, "ingest", {"paths": [str(source)], **argument})
        return await operation.wait(timeout_s=90)

    async def run(self, type_name: str, table: str = "t", /, **argument: Any) -> Operation:
        """Run an operation to its end, whatever that is."""
        started = await self.client.start(table, type_name, argument)
        return await started.wait(timeout_s=180)

    async def succeeds(self, type_name: str, table: str = "t", /, **argument: Any) -> dict[str, Any]:
        """Run an operation that has to succeed; its facts."""
        return dict((await self.run(type_name, table, **argument)).raise_for_outcome().facts)

    def source(self, name: str, start: int, rows: int = 10, *, kinds: int = 3) -> Path:
        """A folder with one file of rows with ids from ``start`` on."""
        return write_csv(self.folder / "src" / name, "1.csv", start, rows, kinds=kinds)

    async def ingested(self, table: str = "t") -> list[str]:
        """The paths that have a watermark; of one source, unless nothing was ingested."""
        marks = await self.client.table(table).watermarks()
        assert len(marks) <= 1, marks
        return sorted(path for partitions in marks.values() for path in partitions)

    async def fill(self, batches: int, first: int = 0) -> None:
        """Ten rows a batch, of three kinds."""
        for number in range(first, first + batches):
            (await self.ingest(self.source(str(number), number * 10))).raise_for_outcome()

    async def drained(self) -> bool:
        """Whether the backlog is empty."""
        return not [batch async for batch in self.client.table("t").backlog()]

    def catalog(self) -> EtcdCatalog:
        """That of any pyiceberg program."""
        properties = {"etcd.endpoints": ",".join(self.etcd.endpoints), "etcd.prefix": self.etcd.prefix}
        if self.etcd.user:
            properties |= {"etcd.user": self.etcd.user, "etcd.password": Secret(self.etcd.password).reveal()}
        return EtcdCatalog("test", **properties)

    def table(self, name: str = "t") -> pyiceberg.table.Table:
        """The table as any pyiceberg program sees it. Blocking."""
        return self.catalog().load_table(f"default.{name}")

    def rows(self, name: str = "t") -> pa.Table:
        """All rows of the table. Blocking."""
        return self.table(name).scan().to_arrow()

    def ids(self, name: str = "t") -> list[int]:
        """The column ``id`` of the table, sorted. Blocking."""
        return sorted(self.rows(name)["id"].to_pylist())

    async def keys(self) -> list[str]:
        """All keys below the prefix, without it."""
        prefix = self.store.keyspace.prefix
        return [kv.key[len(prefix) :].decode() for kv in (await self.store.scan(prefix, keys_only=True)).kvs]

    async def at_rest(self) -> list[str]:
        """All keys, once no operation is active any more."""

        async def quiet() -> bool:
            return not any(key.startswith("_active.") for key in await self.keys())

        await eventually(quiet)
        return await self.keys()

    def data_files(self) -> set[Path]:
        """The data files on disk."""
        return set(all_files(self.location / "data"))

    def published_files(self, name: str = "t") -> set[Path]:
        """The data files that the present snapshot knows. Blocking."""
        return {Path(urlsplit(task.file.file_path).path) for task in self.table(name).scan().plan_files()}

    async def only_published(self) -> bool:
        """Whether there are no data files but those of the present snapshot."""
        return self.data_files() == await asyncio.to_thread(self.published_files)

    async def expect_no_other_files(self) -> None:
        """Once no operation is active any more, there are no data files but those of the present snapshot."""
        await self.at_rest()
        published = await asyncio.to_thread(self.published_files)
        assert self.data_files() == published, self.data_files() ^ published

    async def forget_the_past(self) -> None:
        """Expire all snapshots but the present one, to the end."""
        expired = await self.client.start("t", "expire_snapshots", {"older_than": "0s"})
        await expired.result(timeout_s=90)
        await self.at_rest()

    async def distop(self, *words: str) -> tuple[int, Any]:
        """Exit code and JSON of a command line."""
        given = [*words, "--address", self.address, "--output", "json"]
        done = await asyncio.to_thread(CliRunner().invoke, app, given)
        return done.exit_code, json.loads(done.stdout or done.stderr)

    async def findings(self, table: str = "", *, deep: bool = False) -> list[Finding]:
        """What the doctor finds, except for the version of the etcd that runs these tests."""
        diagnosis = await self.client.diagnose(table, deep=deep)
        return [finding for finding in diagnosis.findings if finding.code != "ETCD_LOSSY_VERSION"]

    async def operations(self) -> list[Operation]:
        async with aclosing(self.client.operations("t")) as listed:
            return [operation async for operation in listed]


@asynccontextmanager
async def coordinated(
    etcd: EtcdConfig, folder: Path, store: EtcdClient, *, more: Sequence[str] = (), **options: Any
) -> AsyncIterator[Whole]:
    """A coordinator and a client, and the table ``t``; nobody runs jobs.

    ``more``: types that the coordinator knows, as ``module:Class``. ``options``: of the table.
    """
    async with (
        running(config_of(etcd, operations=[*PROBES, *more], linger_s=LINGER_S)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as client,
    ):
        given: Any = {"partitionBy": ["kind"], **options}
        await client.create_table("t", str(folder / "table"), options=given)
        yield Whole(etcd, store, client, folder, coordinator.address)


@asynccontextmanager
async def whole(etcd: EtcdConfig, folder: Path, store: EtcdClient) -> AsyncIterator[Whole]:
    """The same with an executor."""
    async with coordinated(etcd, folder, store) as service, runner(store):
        yield service
