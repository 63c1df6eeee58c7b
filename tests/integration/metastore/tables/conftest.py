"""The coordinator that tests of tables talk to."""

from collections.abc import AsyncIterator

import pytest_asyncio

from distop.client import AsyncClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running


@pytest_asyncio.fixture
async def sdk(etcd_config: EtcdConfig) -> AsyncIterator[AsyncClient]:
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, identity="jane") as client,
    ):
        yield client
