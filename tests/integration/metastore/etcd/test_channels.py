"""The way to etcd, whatever the environment says about ways to other places."""

from __future__ import annotations

import pytest

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
async def test_a_proxy_of_the_environment_is_not_asked_for_etcd(
    etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A proxy for the world outside knows nothing of etcd, and need not be there."""
    for exception in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(exception, raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    client = EtcdClient(etcd_config)
    try:
        assert not (await client.get(b"nothing")).exists
    finally:
        await client.close()
