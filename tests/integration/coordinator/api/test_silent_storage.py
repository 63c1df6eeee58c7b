"""Looking at a table whose storage does not answer: the reply has what etcd knows, before the deadline."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from pyiceberg.table.metadata import TableMetadata

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.coordinator.service import ANSWERING_THREADS
from distop.errors import Busy, PreconditionFailed
from distop.lake.layout.model import load_metadata
from distop.lake.storage.storage import StorageOptions
from distop.metastore.etcd.config import EtcdConfig
from distop.proto import distop_pb2 as pb
from support.services.coordinators import Service, config_of, raising, running
from support.tables.catalogs import SCHEMA
from support.waiting import eventually

READS = "distop.coordinator.views.contents.load_metadata"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Storage does not answer until the test is over."""
    answers = threading.Event()
    monkeypatch.setattr("distop.coordinator.api.published.STORAGE_S", 0.1)
    monkeypatch.setattr(READS, lambda *args, **kwargs: answers.wait())
    yield
    answers.set()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Storage of some tables, by their names, does not answer until this is set."""
    answers = threading.Event()

    def reads(location: str, storage: StorageOptions | None = None) -> TableMetadata:
        if "/hangs" in location:
            answers.wait()
        return load_metadata(location, storage)

    monkeypatch.setattr("distop.coordinator.api.published.STORAGE_S", 0.5)
    monkeypatch.setattr(READS, reads)
    yield answers
    answers.set()


@pytest.mark.usefixtures("silent")
async def test_what_is_known_is_told_and_what_is_missing(python: EtcdCatalog, sdk: AsyncClient) -> None:
    """U4"""
    python.create_table("u", SCHEMA)
    content = await sdk.table("u").describe()
    assert (content.table, content.columns, content.rows) == ("u", (), None)
    assert "storage of table 'u' has not answered" in content.missing
    with pytest.raises(PreconditionFailed, match="has not answered"):
        _ = [one async for one in sdk.table("u").snapshots()]


async def test_metadata_that_cannot_be_read_is_said_to_be_missing(
    python: EtcdCatalog, sdk: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1"""
    python.create_table("u", SCHEMA)
    assert (await sdk.table("u").describe()).missing == ""

    def gone(*args: object, **options: object) -> None:
        raise FileNotFoundError("it is gone")

    monkeypatch.setattr(READS, gone)
    assert "it is gone" in (await sdk.table("u").describe()).missing
    with pytest.raises(PreconditionFailed, match="it is gone"):
        _ = [one async for one in sdk.table("u").snapshots()]


async def test_storage_of_one_table_that_hangs_leaves_room_for_the_others(
    python: EtcdCatalog, sdk: AsyncClient, hanging: threading.Event
) -> None:
    """U4: however many ask about it."""
    python.create_table("hangs", SCHEMA)
    python.create_table("u", SCHEMA)
    asked = [asyncio.create_task(sdk.table("hangs").describe()) for _ in range(3 * ANSWERING_THREADS)]
    async with asyncio.timeout(60):
        assert (await sdk.table("u").describe()).missing == ""
        told = await asyncio.gather(*asked)
    assert all("table 'hangs'" in one.missing for one in told)
    hanging.set()
    assert (await sdk.table("hangs").describe()).missing == ""


async def test_a_call_that_finds_all_threads_hanging_says_so(
    python: EtcdCatalog, etcd_config: EtcdConfig, hanging: threading.Event
) -> None:
    """U4: the storage of this table is not at fault, and the reply has what etcd knows."""
    tables = [f"hangs{number}" for number in range(ANSWERING_THREADS // 4)]
    for name in (*tables, "t"):
        python.create_table(name, SCHEMA)
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        async with asyncio.timeout(60):
            while "for its turn" not in (found := await sdk.table("t").describe()).missing:
                await asyncio.gather(*(sdk.table(name).describe() for name in tables for _ in range(4)))
            assert found.table == "t"
        async with Service(coordinator.address) as service:
            with pytest.raises(Busy, match="have not ended"), raising():
                await service.tables.ListSnapshots(pb.ListSnapshotsRequest(table="t"), timeout=10)
        hanging.set()
        await eventually(lambda: sdk.table("t").describe(), holds=lambda told: not told.missing)
