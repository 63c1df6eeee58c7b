"""The client against a real etcd: what it answers when all is well, and what it says when it is not."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.coordinator.service import Coordinator, CoordinatorConfig
from distop.errors import (
    Compacted,
    EtcdDenied,
    EtcdOutOfSpace,
    EtcdUnavailable,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
)
from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.config import EtcdConfig, within
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import (
    MAX_OPS,
    DeleteRange,
    Get,
    KeyValue,
    Put,
    Txn,
    absent,
    created_at,
    equals,
)
from distop.metastore.etcd.watch import watch
from distop.metastore.members.lease import LeaseSession
from support.etcd.etcds import enable_users, etcd_with_tls, fill, make_certificates
from support.etcd.proxy import Proxy
from support.waiting import PATIENCE, eventually


@pytest.fixture
def dead() -> str:
    """An endpoint at which nobody listens."""
    return f"127.0.0.1:{free_port()}"


Connect = Callable[..., EtcdClient]


@pytest_asyncio.fixture
async def at(etcd_config: EtcdConfig) -> AsyncIterator[Connect]:
    """Makes a client of the given endpoints, which is closed in the end; with other fields of its config."""
    made: list[EtcdClient] = []

    def connect(*endpoints: str, **fields: Any) -> EtcdClient:
        config = replace(etcd_config, endpoints=endpoints or etcd_config.endpoints)
        made.append(EtcdClient(replace(config, **fields)))
        return made[-1]

    yield connect
    for client in made:
        await client.close()


async def test_keys_are_written_read_and_deleted(client: EtcdClient) -> None:
    key = client.keyspace.prefix + b"k"
    assert await client.get(key) == KeyValue.missing(key)
    first = await client.put(key, b"1")
    second = await client.put(key, b"2")
    assert await client.get(key) == KeyValue(key, b"2", second, first)
    assert await client.get(key, revision=first) == KeyValue(key, b"1", first, first)
    assert await client.revision() >= second
    assert await client.delete(key) == 1
    assert await client.delete(key) == 0


async def test_nested_transactions_answer_level_by_level(client: EtcdClient) -> None:
    """O11: one lost race among many changes nothing for the others."""
    a, b = client.keyspace.prefix + b"a", client.keyspace.prefix + b"b"
    await client.put(b, b"taken")
    tries = tuple(Txn((absent(key),), (Put(key, b"mine"),), (Get(key),)) for key in (a, b))
    result = await client.txn(Txn((absent(client.keyspace.prefix + b"c"),), tries))
    won, lost = result.results
    assert won.succeeded  # type: ignore[union-attr]
    assert not lost.succeeded  # type: ignore[union-attr]
    assert lost.single(0, b).value == b"taken"  # type: ignore[union-attr]
    assert (await client.get(a)).mod_revision == result.revision


async def test_every_compare_says_what_etcd_understands(client: EtcdClient) -> None:
    key = client.keyspace.prefix + b"k"
    lease = await client.lease_grant(60)
    revision = await client.put(key, b"v", lease=lease)
    holds = [equals(key, b"v"), created_at(key, revision), absent(key + b"x")]
    for compare in holds:
        assert (await client.txn(Txn((compare,)))).succeeded
    for compare in (equals(key, b"w"), created_at(key, revision - 1), absent(key), equals(key + b"x", b"")):
        assert not (await client.txn(Txn((compare,)))).succeeded
    assert (await client.get(key)).lease == lease
    await client.lease_revoke(lease)
    await client.lease_revoke(lease)
    assert not (await client.get(key)).exists


@pytest.mark.parametrize("nested", [False, True])
async def test_weight_is_exactly_what_etcd_allows(client: EtcdClient, nested: bool) -> None:
    """O5: 128 operations, the nested ones added."""

    def txn(weight: int) -> Txn:
        count = weight - 8 if nested else weight
        puts = tuple(Put(client.keyspace.prefix + b"%d" % index, b"") for index in range(count))
        inner = Txn(then=tuple(Get(client.keyspace.prefix + b"x") for _ in range(8)))
        return Txn(then=(inner, *puts[1:]) if nested else puts)

    assert txn(MAX_OPS).weight() == MAX_OPS
    await client.txn(txn(MAX_OPS))
    with pytest.raises(InvalidArgument, match="too many operations"):
        await client.txn(txn(MAX_OPS + 1))


async def test_a_transaction_that_is_too_large_is_refused_and_not_in_doubt(client: EtcdClient) -> None:
    """U3."""
    key = client.keyspace.prefix + b"k"
    with pytest.raises(InvalidArgument, match="too large"):
        await client.put(key, bytes(1_600_000))
    assert not (await client.get(key)).exists


async def test_a_put_under_an_expired_lease_does_not_happen(client: EtcdClient) -> None:
    key = client.keyspace.prefix + b"k"
    with pytest.raises(LeaseLost):
        await client.put(key, b"v", lease=12345)
    assert not (await client.get(key)).exists


async def test_pages_of_a_scan_show_one_revision(client: EtcdClient) -> None:
    """O22: while writers go on, no key is seen twice, missed, or newer than the others."""
    prefix = client.keyspace.prefix + b"many."
    for start in range(0, 300, 100):
        await client.txn(
            Txn(then=tuple(Put(prefix + b"%04d" % i, b"old") for i in range(start, start + 100)))
        )
    stop = asyncio.Event()

    async def disturb() -> int:
        count = 0
        while not stop.is_set():
            key = prefix + b"%04d" % (count * 37 % 300)
            await client.txn(Txn(then=(Put(key, b"new"), Put(key + b"a", b"new"))))
            await client.delete(key + b"a")
            count += 1
        return count

    disturbing = asyncio.create_task(disturb())
    before = await client.scan(prefix)
    for size in (1, 7, 100):
        snapshot = await client.scan(prefix, revision=before.revision, page=size)
        assert snapshot == before
    unpinned = await client.scan(prefix, page=50)
    stop.set()
    assert await disturbing > 0
    assert unpinned.revision > before.revision
    assert unpinned.kvs == (await client.scan(prefix, revision=unpinned.revision)).kvs
    assert {kv.key for kv in before.kvs} >= {prefix + b"%04d" % i for i in range(300)}


async def test_keys_that_are_read_together_show_one_revision(client: EtcdClient) -> None:
    """O2: while a writer changes both of them, always to the same value."""
    a, b = client.keyspace.prefix + b"a", client.keyspace.prefix + b"b"
    reading = Txn(then=(Get(a), Get(b), Get(client.keyspace.prefix, client.keyspace.prefix + b"z", limit=1)))
    stop = asyncio.Event()

    async def disturb() -> int:
        count = 0
        while not stop.is_set():
            count += 1
            await client.txn(Txn(then=(Put(a, b"%d" % count), Put(b, b"%d" % count))))
        return count

    disturbing = asyncio.create_task(disturb())
    for _ in range(100):
        result = await client.txn(reading)
        one, other = result.single(0, a), result.single(1, b)
        assert one.value == other.value
        assert one.mod_revision == other.mod_revision <= result.revision
        assert result.got(2) == ([one] if one.exists else [])
    stop.set()
    assert await disturbing > 10


class CompactingClient(EtcdClient):
    """Somebody changes and compacts the store between the first two pages of a scan."""

    reads = 0

    async def get_range(self, *args: Any, **fields: Any) -> RangePage:
        page = await super().get_range(*args, **fields)
        self.reads += 1
        if self.reads == 1:
            await self.compact(await self.put(self.keyspace.prefix + b"many.0", b"new"))
        return page


async def test_a_scan_begins_anew_when_its_revision_is_compacted(etcd_config: EtcdConfig) -> None:
    """O27: reading a large operation does not fail for an etcd that tidies up."""
    client = CompactingClient(etcd_config)
    prefix = client.keyspace.prefix + b"many."
    await client.txn(Txn(then=tuple(Put(prefix + b"%d" % number, b"old") for number in range(10))))
    snapshot = await client.scan(prefix, page=3)
    assert [kv.value for kv in snapshot.kvs] == [b"new"] + [b"old"] * 9
    client.reads = 0
    with pytest.raises(Compacted):
        await client.scan(prefix, page=3, revision=snapshot.revision)
    await client.close()


async def test_a_revision_that_is_gone_or_yet_to_come_is_named(client: EtcdClient) -> None:
    key = client.keyspace.prefix + b"k"
    first = await client.put(key, b"1")
    last = await client.put(key, b"2")
    with pytest.raises(InvalidArgument, match="future revision"):
        await client.get(key, revision=last + 1_000_000)
    await client.compact(last)
    with pytest.raises(Compacted):
        await client.get(key, revision=first)
    assert (await client.get(key, revision=last)).value == b"2"


def test_the_blocking_client_may_be_used_from_several_threads(etcd_config: EtcdConfig) -> None:
    with SyncEtcd(etcd_config) as etcd:
        key = etcd.keyspace.prefix + b"k"
        revision = etcd.put(key, b"v")
        assert etcd.get(key).value == b"v"
        assert etcd.get_range(key, b"").revision >= revision
        assert [kv.key for kv in etcd.scan(etcd.keyspace.prefix, keys_only=True).kvs] == [key]
        assert etcd.txn(Txn((equals(key, b"v"),), (DeleteRange(key),))).succeeded
        with pytest.raises(LeaseLost):
            etcd.put(key, b"", lease=99)
    etcd.close()


async def test_the_next_endpoint_is_used_when_one_is_dead(at: Connect, etcd: EtcdProcess, dead: str) -> None:
    """Reads and writes alike: a write that was never sent may go to another member."""
    client = at(dead, etcd.endpoint)
    key = client.keyspace.prefix + b"k"
    await client.put(key, b"v")
    assert (await client.get(key)).value == b"v"
    assert client.endpoint == etcd.endpoint


async def test_calls_that_fail_together_move_on_together(at: Connect, etcd: EtcdProcess, dead: str) -> None:
    client = at(dead, etcd.endpoint)
    await asyncio.gather(*(client.put(client.keyspace.prefix + b"%d" % i, b"") for i in range(10)))
    assert client.endpoint == etcd.endpoint


async def test_a_member_that_is_silent_does_not_use_up_the_deadline_of_a_read(
    at: Connect, proxy: Proxy, etcd: EtcdProcess
) -> None:
    """U4: connected, and then no answer: the others get their share of the time."""
    client = at(proxy.endpoint, etcd.endpoint, timeout_s=1.0)
    await client.get(b"k")
    proxy.hold_replies()
    assert not (await client.get(b"k")).exists
    assert client.endpoint == etcd.endpoint


async def test_after_a_write_in_doubt_the_client_goes_to_the_next_member(
    at: Connect, proxy: Proxy, etcd: EtcdProcess
) -> None:
    client = at(proxy.endpoint, etcd.endpoint, timeout_s=0.5)
    key = client.keyspace.prefix + b"k"
    await client.get(key)
    proxy.hold_replies()
    with pytest.raises(OutcomeUnknown):
        await client.put(key, b"v")
    assert (await client.get(key)).value == b"v"


@pytest.mark.timed(0.5)
@pytest.mark.parametrize("call", ["get", "txn", "scan", "lease_grant", "lease_revoke"])
async def test_a_dead_etcd_is_reported_within_the_deadline(at: Connect, dead: str, call: str) -> None:
    """U4: also of a write it is certain that it did not happen."""
    client = at(dead, timeout_s=0.4)
    calls = {
        "get": lambda: client.get(b"k"),
        "txn": lambda: client.put(b"k", b"v"),
        "scan": lambda: client.scan(b"k"),
        "lease_grant": lambda: client.lease_grant(5),
        "lease_revoke": lambda: client.lease_revoke(5),
    }
    began = time.monotonic()
    with pytest.raises(EtcdUnavailable) as caught:
        await calls[call]()
    assert time.monotonic() - began < 1.0 * PATIENCE
    assert caught.value.details["endpoint"] == dead


@pytest.mark.timed(0.5)
async def test_a_silent_etcd_is_reported_within_the_deadline(at: Connect, proxy: Proxy) -> None:
    """U4: of a read that etcd is unavailable, of a write that its outcome is unknown."""
    client = at(proxy.endpoint, timeout_s=0.4)
    await client.get(b"k")
    proxy.hold_requests()
    began = time.monotonic()
    with pytest.raises(EtcdUnavailable):
        await client.get(b"k")
    with pytest.raises(OutcomeUnknown):
        await client.put(client.keyspace.prefix + b"k", b"v")
    assert time.monotonic() - began < 1.5 * PATIENCE


async def test_a_shorter_deadline_of_the_caller_counts(at: Connect, dead: str) -> None:
    """U4: and comes back as what is wrong, not as a mere timeout."""
    client = at(dead, timeout_s=3600.0)
    async with asyncio.timeout(60):
        with within(0.3), pytest.raises(EtcdUnavailable):
            await client.get(b"k")


async def test_a_lost_reply_is_called_unknown(at: Connect, proxy: Proxy, client: EtcdClient) -> None:
    """U4: the write happened, the connection broke before the answer; the next call works again."""
    victim = at(proxy.endpoint)
    key = client.keyspace.prefix + b"k"
    await victim.get(key)
    proxy.hold_replies()
    writing = asyncio.create_task(victim.put(key, b"v"))
    await eventually(lambda: client.get(key), holds=lambda kv: kv.exists)
    proxy.cut()
    with pytest.raises(OutcomeUnknown):
        await writing
    proxy.flow()
    assert (await victim.get(key)).value == b"v"


async def test_a_read_survives_a_cut_connection(at: Connect, proxy: Proxy) -> None:
    victim = at(proxy.endpoint)
    await victim.get(b"k")
    proxy.hold_replies()
    reading = asyncio.create_task(victim.get(b"k"))
    await eventually(lambda: proxy.held)
    proxy.cut()
    proxy.flow()
    assert not (await reading).exists


async def test_an_etcd_that_comes_back_is_found_again(at: Connect, proxy: Proxy) -> None:
    victim = at(proxy.endpoint, timeout_s=3.0)
    key = victim.keyspace.prefix + b"k"
    await victim.get(key)
    await proxy.refuse()
    with pytest.raises(EtcdUnavailable), within(0.3):
        await victim.get(key)
    await proxy.accept()
    await victim.put(key, b"2")
    assert (await victim.get(key)).value == b"2"


async def test_closing_ends_calls_under_way_and_refuses_later_ones(at: Connect, proxy: Proxy) -> None:
    """U4: none hangs or looks like a cancelled task, and a write is said to be in doubt."""
    client = at(proxy.endpoint)
    await client.get(b"k")
    proxy.hold_replies()
    reading = asyncio.create_task(client.get(b"k"))
    writing = asyncio.create_task(client.put(client.keyspace.prefix + b"k", b"v"))
    await eventually(lambda: proxy.held)
    await client.close()
    with pytest.raises(EtcdUnavailable, match="closed"):
        await reading
    with pytest.raises(OutcomeUnknown, match="closed"):
        await writing
    with pytest.raises(EtcdUnavailable, match="closed"):
        await client.get(b"k")


async def test_only_the_right_user_and_password_are_let_in_also_when_tokens_are_forgotten(
    tmp_path: Path, prefix: str
) -> None:
    """U5: the right user works and goes on working when etcd forgets its tokens; all others are refused."""
    with EtcdProcess(tmp_path) as etcd:
        enable_users(etcd, user="worker", password="secret", prefix=f"{prefix}.")
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="worker", password="secret")
        client = EtcdClient(config)
        keys = client.keyspace.prefix
        changes = watch(client, keys, keys + b"\xff")
        await anext(changes)
        first = await client.put(keys + b"k", b"v")
        assert (await anext(changes)).revision == first

        # Tokens live in etcd's memory. The stream must come back without the help of another call.
        etcd.stop()
        etcd.start()
        await asyncio.wait_for(anext(changes), 60)
        second = await client.put(keys + b"k", b"w")
        assert (await asyncio.wait_for(anext(changes), 60)).revision == second
        await changes.aclose()

        with pytest.raises(EtcdDenied, match="refuses this user"):
            await client.get(b"somewhere else")
        forbidden = watch(client, b"somewhere else")
        with pytest.raises(EtcdDenied, match="refuses this user"):
            await asyncio.wait_for(anext(forbidden), 60)
        await client.close()
        for other in (replace(config, password="wrong"), replace(config, user="", password="")):
            client = EtcdClient(other)
            with pytest.raises(EtcdDenied, match="refuses this user"):
                await client.put(keys + b"k", b"x")
            await client.close()


@pytest.mark.timed(0.5)
async def test_calls_that_wait_for_tokens_keep_their_deadlines(etcd_config: EtcdConfig, proxy: Proxy) -> None:
    """U4: one after the other they would each wait for an etcd that does not answer."""
    config = replace(etcd_config, endpoints=(proxy.endpoint,), user="u", password="p", timeout_s=0.4)
    proxy.hold_replies()
    client = EtcdClient(config)
    began = time.monotonic()
    outcomes = await asyncio.gather(*(client.get(b"k") for _ in range(16)), return_exceptions=True)
    assert time.monotonic() - began < 1.2 * PATIENCE
    assert all(isinstance(outcome, EtcdUnavailable) for outcome in outcomes)
    await client.close()


@dataclass(frozen=True)
class Secure:
    """An etcd that speaks mutual TLS, at ``config``, and plain text at ``plain``."""

    config: EtcdConfig
    plain: str


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    certificates = make_certificates(folder)
    etcd, endpoint = etcd_with_tls(folder / "etcd", certificates)
    config = EtcdConfig(
        endpoints=(endpoint,),
        ca_cert=certificates.ca,
        cert=certificates.client_cert,
        key=certificates.client_key,
    )
    with etcd:
        yield Secure(config, etcd.endpoint)


async def test_a_client_without_a_certificate_of_the_right_authority_gets_no_connection(
    tls: Secure, prefix: str
) -> None:
    """U5: who has no certificate of the right authority gets no connection."""
    config = replace(tls.config, prefix=prefix)
    client = EtcdClient(config)
    await client.put(client.keyspace.prefix + b"k", b"v")
    assert (await client.get(client.keyspace.prefix + b"k")).value == b"v"
    await client.close()
    for other in (replace(config, cert="", key=""), replace(config, ca_cert="", cert="", key="")):
        client = EtcdClient(replace(other, timeout_s=0.5))
        with pytest.raises(EtcdUnavailable):
            await client.get(b"k")
        await client.close()


async def test_a_lease_is_kept_while_a_certificate_is_away(tls: Secure, tmp_path: Path, prefix: str) -> None:
    """S4, U3: it is being replaced; a connection that is opened meanwhile is opened a little later."""
    ca = tmp_path / "replaced.pem"
    client = EtcdClient(replace(tls.config, prefix=prefix, ca_cert=str(ca)))
    with pytest.raises(EtcdUnavailable, match="cannot be read"):
        await client.get(b"k")
    shutil.copy(tls.config.ca_cert, ca)
    await client.revision()
    ca.unlink()
    session = await LeaseSession(client, 10).start()  # whose thread opens a connection of its own
    granted = session.deadline
    shutil.copy(tls.config.ca_cert, ca)
    await eventually(lambda: session.deadline > granted or session.lost.is_set())
    assert session.alive
    await session.close()
    await client.close()


async def test_an_https_endpoint_is_never_spoken_to_in_plain_text(
    tls: Secure, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U5: without a CA of its own the system's are trusted, and nobody else."""
    endpoints = (f"https://{tls.config.endpoints[0]}",)
    config = replace(tls.config, endpoints=endpoints, prefix=prefix, ca_cert="", timeout_s=1.0)
    client = EtcdClient(config)
    with pytest.raises(EtcdUnavailable):
        await client.get(b"k")
    await client.close()
    monkeypatch.setenv("SSL_CERT_FILE", tls.config.ca_cert)
    client = EtcdClient(replace(config, timeout_s=5.0))
    await client.put(client.keyspace.prefix + b"k", b"v")
    await client.close()
    client = EtcdClient(replace(config, endpoints=(f"https://{tls.plain}",)))  # where it speaks no TLS
    with pytest.raises(EtcdUnavailable):
        await client.get(b"k")
    await client.close()


async def test_a_coordinator_with_a_wrong_password_says_so_and_ends(tmp_path: Path, prefix: str) -> None:
    """U4: it is not tried for ever; its exit code is that of what was denied."""
    with EtcdProcess(tmp_path) as etcd:
        enable_users(etcd, user="worker", password="secret", prefix=f"{prefix}.")
        wrong = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="worker", password="no")
        with pytest.raises(EtcdDenied) as denied:
            await asyncio.wait_for(Coordinator(CoordinatorConfig(etcd=wrong, listen="127.0.0.1:0")).run(), 60)
        error = denied.value
        assert (error.code, error.retryable, error.kind.exit_code) == ("ETCD_DENIED", False, 11)


async def test_an_etcd_without_space_says_so(tmp_path: Path, prefix: str) -> None:
    """O27: reads go on; what to do is in the error."""
    with EtcdProcess(tmp_path, options=("--quota-backend-bytes=1000000",)) as etcd:
        client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix))
        await client.put(client.keyspace.prefix + b"0", b"")
        with pytest.raises(EtcdOutOfSpace) as caught:
            await fill(client, client.keyspace.prefix + b"filling")
        assert caught.value.retryable
        assert "alarm disarm" in caught.value.hint
        assert (await client.get(client.keyspace.prefix + b"0")).exists
        await client.close()
