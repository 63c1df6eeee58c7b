"""Fixtures of many tests; ``conftest.py`` takes them over."""

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.operations import DistributedOperation, Retry
from support.etcd.lossy import LossyClient
from support.etcd.proxy import Proxy


@pytest.fixture
def etcd_config(etcd: EtcdProcess, prefix: str) -> EtcdConfig:
    """How to reach the etcd of the run, below this test's own prefix."""
    return EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)


@pytest_asyncio.fixture
async def client(etcd_config: EtcdConfig) -> AsyncIterator[LossyClient]:
    """A client of the etcd of the run; loses nothing unless the test asks for it."""
    connected = LossyClient(etcd_config)
    yield connected
    await connected.close()


@pytest_asyncio.fixture
async def proxy(etcd: EtcdProcess) -> AsyncIterator[Proxy]:
    """A proxy in front of the etcd of the run."""
    async with Proxy(etcd.endpoint) as started:
        yield started


@pytest_asyncio.fixture
async def victim(etcd_config: EtcdConfig, proxy: Proxy) -> AsyncIterator[EtcdClient]:
    """A client whose connections go through the proxy."""
    connected = EtcdClient(replace(etcd_config, endpoints=(proxy.endpoint,)))
    yield connected
    await connected.close()


@pytest.fixture
def parks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails twice is parked: the second attempt is planned for 0.1 s after the first failure."""
    monkeypatch.setattr(DistributedOperation, "retry", Retry(for_s=0.05))


@pytest.fixture(autouse=True)
def logging_put_back() -> Iterator[None]:
    """A service's command that is run in this process logs to what is its standard error then."""
    root, distop = logging.getLogger(), logging.getLogger("distop")
    handlers, levels = list(root.handlers), (root.level, distop.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    distop.setLevel(levels[1])
    logging.captureWarnings(False)
