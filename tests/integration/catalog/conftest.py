"""A catalog, that of another process, and the etcd below them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from support.tables.catalogs import make_catalog


@pytest.fixture
def catalog(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[EtcdCatalog]:
    with make_catalog(etcd, prefix, tmp_path) as made:
        yield made  # type: ignore[misc]


@pytest.fixture
def other(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[EtcdCatalog]:
    """The catalog of another process."""
    with make_catalog(etcd, prefix, tmp_path) as made:
        yield made  # type: ignore[misc]


@pytest.fixture
def store(etcd: EtcdProcess, prefix: str) -> Iterator[SyncEtcd]:
    with SyncEtcd(EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)) as client:
        yield client
