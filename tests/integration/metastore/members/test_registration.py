"""Members and their places: what is left of a service that has ended, or died."""

import asyncio

import pytest

from distop.errors import CorruptRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members import registration
from distop.metastore.members.lease import LeaseSession, Renewal
from distop.metastore.members.registration import (
    change_own_record,
    held_up_now,
    own_record,
    registered,
    slow_etcd,
)
from distop.metastore.records.member import HeldUp, MemberRecord
from distop.metastore.records.record import decode
from support.defects import fail_once
from support.etcd.lossy import LossyClient, puts
from support.etcd.proxy import Proxy
from support.services.leases import LEASE_S
from support.waiting import eventually


async def keys(client: EtcdClient) -> list[str]:
    found = await client.scan(client.keyspace.prefix + b"_", keys_only=True)
    own = len(client.keyspace.prefix)
    return [kv.key[own:].decode() for kv in found.kvs if b"_installation" not in kv.key]


async def test_a_member_that_leaves_removes_its_keys(client: EtcdClient) -> None:
    record = own_record("a", "sidecar")
    async with LeaseSession(client, LEASE_S) as session, registered(client, session, record):
        place = await client.get(client.keyspace.latest_service("sidecar", record.host))
        assert decode(place.value, MemberRecord, place.key) == record
        assert len(await keys(client)) == 2
    assert await keys(client) == []


async def test_the_place_of_one_whose_lease_ended_stays_until_another_takes_it(client: EtcdClient) -> None:
    record, following = own_record("a", "coordinator"), own_record("b", "coordinator")
    place = client.keyspace.latest_service("coordinator", record.host)
    async with LeaseSession(client, LEASE_S) as session, registered(client, session, record):
        await client.lease_revoke(session.lease_id)
        await asyncio.wait_for(session.lost.wait(), 60)
    assert [one.partition(".")[0] for one in await keys(client)] == ["_places"]
    left = await client.get(place)
    assert left.lease
    async with LeaseSession(client, LEASE_S) as session, registered(client, session, following):
        taken = await client.get(place)
        assert decode(taken.value, MemberRecord, place).id == "b"
        await client.lease_revoke(left.lease)  # the end of the first one's place is nothing to the second
        assert (await client.get(place)).exists
    assert await keys(client) == []


async def test_a_late_copy_of_a_registration_undoes_nothing(client: LossyClient) -> None:
    """O26: a member that is being drained would be given tables again."""
    key = client.keyspace.coordinator("a")
    async with (
        LeaseSession(client, LEASE_S) as session,
        registered(client, session, own_record("a", "coordinator")),
    ):
        late = next(txn for txn in client.sent if puts(key)(txn))
        await change_own_record(client, key, draining=True)
        await client.txn(late)
        standing = await client.get(key)
        assert decode(standing.value, MemberRecord, key).draining


async def test_a_defect_does_not_end_the_watch_over_its_own_key(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C11, O25: a member whose key was removed begins again as another one."""
    record = own_record("a", "coordinator")
    fail_once(monkeypatch, registration, "follow_key", RuntimeError("odd"))
    async with LeaseSession(client, LEASE_S) as session, registered(client, session, record):
        await client.delete(client.keyspace.coordinator("a"))
        await asyncio.wait_for(session.lost.wait(), 60)
    assert "odd" in caplog.text


async def test_a_member_that_nobody_would_miss_is_not_remembered(client: EtcdClient) -> None:
    record = own_record("a", "executor")
    async with LeaseSession(client, LEASE_S) as session, registered(client, session, record, missed=False):
        assert await keys(client) == ["_executors.a"]


async def test_a_member_that_cannot_register_is_not_remembered(client: EtcdClient) -> None:
    await client.put(client.keyspace.installation, b"{}")
    async with LeaseSession(client, LEASE_S) as session:
        with pytest.raises(CorruptRecord):
            async with registered(client, session, own_record("a", "executor")):
                pass
    assert await keys(client) == []


def test_an_etcd_is_slow_when_all_of_the_latest_renewals_were() -> None:
    assert slow_etcd([]) == slow_etcd([9.0]) == slow_etcd([0.3, 0.1, 0.3]) == ""
    assert slow_etcd([0.3, 0.6, 0.3]) == "etcd takes more than 0.2 s to answer it"
    assert slow_etcd([3.0, 2.5, 9.0]) == "etcd takes more than 2 s to answer it"


async def test_a_network_that_is_slow_is_noticed(
    victim: EtcdClient, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Renewal.pause
    monkeypatch.setattr(Renewal, "pause", lambda renewal, _: pause(renewal, 0.05))
    proxy.delay_s = 0.12
    async with LeaseSession(victim, LEASE_S) as session:
        await eventually(lambda: slow_etcd(session.trips))
        proxy.delay_s = 0.0
        await eventually(lambda: not slow_etcd(session.trips))


def test_what_goes_on_holding_an_executor_up_keeps_the_time_of_its_beginning() -> None:
    known = [HeldUp(what="slow", since=5.0), HeldUp(operation="t.o.1", what="x", since=7.0)]
    found = held_up_now(known, {"": "slower", "t.o.1": "", "t.o.2": "y"})
    assert [(one.operation, one.what) for one in found] == [("", "slower"), ("t.o.2", "y")]
    assert found[0].since == 5.0 < found[1].since
