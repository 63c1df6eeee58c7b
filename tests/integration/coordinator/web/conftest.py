"""A coordinator with a page, and a table to show."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from distop.metastore.etcd.config import EtcdConfig
from support.services.browsing import Web, page
from support.services.coordinators import Service


@pytest_asyncio.fixture
async def shown(etcd_config: EtcdConfig) -> AsyncIterator[tuple[Service, Web]]:
    async with page(etcd_config) as standing:
        yield standing


@pytest_asyncio.fixture
async def service(shown: tuple[Service, Web]) -> Service:
    """With the table ``t``."""
    await shown[0].create_table("t")
    return shown[0]


@pytest.fixture
def web(shown: tuple[Service, Web]) -> Web:
    return shown[1]
