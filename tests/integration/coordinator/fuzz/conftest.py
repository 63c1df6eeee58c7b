from collections.abc import Iterator

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.services.reached import Reached, reached


@pytest.fixture(scope="package")
def door(etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    """A coordinator of all tests of the folder. In the end it is the one that it was, and has seen nothing
    that it takes for a defect."""
    folder = tmp_path_factory.mktemp("reached")
    with reached(EtcdConfig(endpoints=(etcd.endpoint,), prefix=folder.name), folder) as coordinator:
        members = coordinator.members()
        yield coordinator
        assert coordinator.process.poll() is None
        assert coordinator.members() == members
        assert not coordinator.crashes()
