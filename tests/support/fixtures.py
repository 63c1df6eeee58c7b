"""Fixtures of tests that speak to etcd; ``conftest.py`` takes them over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from distop.metastore.config import EtcdConfig
from distop.metastore.embedded import EtcdProcess
from support.lossy import LossyClient


@pytest.fixture
def etcd_config(etcd: EtcdProcess, prefix: str) -> EtcdConfig:
    """How to reach the etcd of the run, below this test's own prefix."""
    return EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)


@pytest_asyncio.fixture
async def client(etcd_config: EtcdConfig) -> AsyncIterator[LossyClient]:
    """A client of the etcd of the run; loses nothing unless told to."""
    connected = LossyClient(etcd_config)
    yield connected
    await connected.close()
