"""Fixtures of many integration tests. A module may define its own ``service`` in place of this one."""

from collections.abc import AsyncIterator

import pytest_asyncio

from distop.metastore.etcd.config import EtcdConfig
from support.etcd.counting import Counting
from support.services.coordinators import Service, serving


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig) -> AsyncIterator[Service]:
    """A coordinator, and the table ``t``."""
    async with serving(etcd_config) as started:
        await started.create_table("t")
        yield started


@pytest_asyncio.fixture
async def counting(etcd_config: EtcdConfig) -> AsyncIterator[Counting]:
    """A client of the etcd of the run that counts its requests."""
    connected = Counting(etcd_config)
    yield connected
    await connected.close()
