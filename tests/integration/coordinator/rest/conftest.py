"""Both doors to the same tables: over HTTP, and to etcd."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog as RestClient

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from support.services.rest import RestDoor, rest_door


@pytest.fixture
def door(etcd_config: EtcdConfig, tmp_path: Path) -> Iterator[RestDoor]:
    with rest_door(etcd_config, tmp_path) as served:
        yield served


@pytest.fixture
def other(etcd_config: EtcdConfig, tmp_path: Path) -> Iterator[RestDoor]:
    """The catalog of another coordinator."""
    with rest_door(etcd_config, tmp_path) as served:
        yield served


@pytest.fixture(scope="module")
def standing(etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestDoor]:
    """A catalog of all those tests of a module that change nothing, or each a table of its own."""
    folder = tmp_path_factory.mktemp("standing")
    with rest_door(EtcdConfig(endpoints=(etcd.endpoint,), prefix=folder.name), folder) as served:
        yield served


@pytest.fixture
def rest(door: RestDoor) -> Iterator[RestClient]:
    with door.client() as client:
        yield client  # type: ignore[misc]


@pytest.fixture
def store(etcd_config: EtcdConfig) -> Iterator[SyncEtcd]:
    with SyncEtcd(etcd_config) as client:
        yield client
