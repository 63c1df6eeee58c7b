"""Clients that many tests of coordinators use."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.services.coordinators import config_of, running
from support.tables.catalogs import make_catalog
from support.tables.nowhere import nowhere


@pytest_asyncio.fixture
async def sdk(etcd_config: EtcdConfig) -> AsyncIterator[AsyncClient]:
    """A client of a coordinator in this process, and a table ``t``."""
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as client,
    ):
        await client.create_table("t", nowhere())
        yield client


@pytest.fixture
def python(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[EtcdCatalog]:
    """The catalog of a program that speaks to etcd itself."""
    with make_catalog(etcd, prefix, tmp_path) as made:
        yield made  # type: ignore[misc]
