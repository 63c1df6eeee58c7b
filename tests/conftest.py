"""What every test may ask for: an etcd, and a place in it of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from distop.metastore.embedded import EtcdProcess
from support.fixtures import client as client
from support.fixtures import etcd_config as etcd_config
from support.s3 import s3 as s3
from support.s3 import s3_endpoint as s3_endpoint
from support.s3 import s3_in_environment as s3_in_environment


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for the whole run. Tests share it, each below a ``prefix`` of its own, and never stop it."""
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture
def prefix() -> str:
    """A keyspace prefix that no other test uses, in place of ``distOp``."""
    return f"t{secrets.token_hex(6)}"
