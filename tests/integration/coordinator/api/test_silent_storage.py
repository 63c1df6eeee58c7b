"""Looking at a table whose storage does not answer: what etcd knows is told, within the caller's deadline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.commit.catalog.catalog import EtcdCatalog
from distop.errors import PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.services.coordinators import config_of, running
from support.tables.catalogs import SCHEMA, make_catalog

READS = "distop.coordinator.views.contents.load_metadata"


@pytest.fixture
def catalog(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[EtcdCatalog]:
    with make_catalog(etcd, prefix, tmp_path) as made:
        yield made  # type: ignore[misc]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Storage does not answer until the test is over."""
    answers = threading.Event()
    monkeypatch.setattr("distop.coordinator.api.stored.STORAGE_S", 0.1)
    monkeypatch.setattr(READS, lambda *args, **kwargs: answers.wait())
    yield
    answers.set()


@pytest.mark.usefixtures("silent")
async def test_what_is_known_is_told_and_what_is_missing(
    catalog: EtcdCatalog, etcd_config: EtcdConfig
) -> None:
    """U4"""
    catalog.create_table("t", SCHEMA)
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        content = await sdk.describe_table("t")
        assert (content.table, content.columns, content.rows) == ("t", (), None)
        assert "storage of table 't' has not answered" in content.missing
        with pytest.raises(PreconditionFailed, match="has not answered"):
            _ = [one async for one in sdk.snapshots("t")]


async def test_metadata_that_cannot_be_read_is_said_to_be_missing(
    catalog: EtcdCatalog, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1"""
    catalog.create_table("t", SCHEMA)
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        assert (await sdk.describe_table("t")).missing == ""

        def gone(*args: object, **options: object) -> None:
            raise FileNotFoundError("it is gone")

        monkeypatch.setattr(READS, gone)
        assert "it is gone" in (await sdk.describe_table("t")).missing
        with pytest.raises(PreconditionFailed, match="it is gone"):
            _ = [one async for one in sdk.snapshots("t")]
