"""Fixtures of many end-to-end tests. A module may define its own ``service`` in place of this one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.whole import Whole, coordinated, whole


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    """A coordinator, an executor and the table ``t``."""
    async with whole(etcd_config, tmp_path, client) as started:
        yield started


@pytest_asyncio.fixture
async def idle(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    """A coordinator and the table ``t``; nobody runs jobs."""
    async with coordinated(etcd_config, tmp_path, client) as started:
        yield started
