"""A lease kept alive, and what its holder may believe about it."""

import asyncio
from dataclasses import replace
from operator import not_

import pytest

from distop.errors import EtcdUnavailable, LeaseLost
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.process.loop import boot_clock
from support.etcd.proxy import Proxy
from support.services.leases import LEASE_S
from support.waiting import PATIENCE, eventually

TTL_S = 2


async def bound_key(client: EtcdClient, session: LeaseSession) -> bytes:
    key = client.keyspace.prefix + b"%x" % session.lease_id
    await client.put(key, b"", lease=session.lease_id)
    return key


async def exists(client: EtcdClient, key: bytes) -> bool:
    return (await client.get(key)).exists


async def test_before_its_grant_it_is_neither_alive_nor_lost(client: EtcdClient) -> None:
    session = LeaseSession(client, TTL_S)
    assert not session.alive
    assert not session.lost.is_set()
    async with session:
        assert session.alive


async def test_closing_a_lease_removes_its_keys_at_once(client: EtcdClient) -> None:
    """O26: at once, not after the TTL."""
    async with LeaseSession(client, TTL_S) as session:
        key = await bound_key(client, session)
        assert session.alive
        session.check()
    assert not await exists(client, key)
    assert session.lost.is_set()
    assert not session.alive
    with pytest.raises(LeaseLost):
        session.check()


async def test_a_process_that_is_busy_keeps_it(client: EtcdClient) -> None:
    """G2, O25: it is renewed in a thread of its own."""
    session = await LeaseSession(client, TTL_S).start()
    key = await bound_key(client, session)
    until = boot_clock() + TTL_S + 1.0
    while boot_clock() < until:
        pass  # the event loop does not come round
    assert session.alive
    assert await exists(client, key)
    await session.close()


async def test_a_lease_is_given_up_before_etcd_drops_it(
    client: EtcdClient, victim: EtcdClient, proxy: Proxy
) -> None:
    """O10, O25: cut off, its holder stops while the key still exists, so that two never act."""
    session = await LeaseSession(victim, TTL_S).start()
    key = await bound_key(client, session)
    proxy.hold_requests()

    async def dropped_at() -> float:
        await eventually(lambda: exists(client, key), TTL_S + 5.0, every_s=0.01, holds=not_)
        return boot_clock()

    # Compared by the clock, which a test that is held up can only read too late.
    dropped = asyncio.create_task(dropped_at())
    await asyncio.wait_for(session.lost.wait(), TTL_S + 5.0)
    assert not session.alive
    assert session.deadline < await dropped
    await session.close(revoke=False)


async def test_a_short_cut_is_survived(client: EtcdClient, victim: EtcdClient, proxy: Proxy) -> None:
    session = await LeaseSession(victim, TTL_S).start()
    key = await bound_key(client, session)
    for _ in range(3):
        renewed = proxy.connections
        proxy.cut()
        await eventually(lambda renewed=renewed: proxy.connections > renewed)
    assert session.alive
    assert await exists(client, key)
    await session.close()


async def test_a_lease_that_was_revoked_elsewhere_is_noticed(client: EtcdClient) -> None:
    """O25: at the next renewal, long before its own clock would say so."""
    session = await LeaseSession(client, LEASE_S).start()
    await client.lease_revoke(session.lease_id)
    await asyncio.wait_for(session.lost.wait(), LEASE_S)
    assert boot_clock() < session.deadline
    with pytest.raises(LeaseLost):
        await client.put(client.keyspace.prefix + b"k", b"", lease=session.lease_id)
    await session.close()


async def test_a_paused_holder_knows_by_the_clock_alone_that_its_lease_is_over(client: EtcdClient) -> None:
    """O10, O24: no event loop has to run first, and renewing afterwards does not bring it back."""
    now = 100.0
    session = await LeaseSession(client, 10, clock=lambda: now).start()
    assert session.alive
    now = 108.9
    assert session.alive
    now = 109.1
    assert not session.alive
    assert session.lost.is_set()
    now = 100.0
    assert not session.alive, "once lost is lost"
    with pytest.raises(LeaseLost):
        session.check()
    await session.close()


async def test_a_renewal_that_comes_too_late_brings_nothing_back(victim: EtcdClient, proxy: Proxy) -> None:
    """O25: who was seen to have lost its lease has stopped acting, and must not be believed to act again."""
    now = 100.0
    session = await LeaseSession(victim, TTL_S, clock=lambda: now).start()
    now = 101.0
    proxy.hold_replies()
    await eventually(lambda: proxy.held)
    now = 102.0
    proxy.flow()
    await asyncio.wait_for(session.lost.wait(), 60)
    assert not session.alive
    await session.close()


async def test_a_dead_etcd_grants_nothing(victim: EtcdClient, proxy: Proxy) -> None:
    """U4."""
    await proxy.refuse()
    client = EtcdClient(replace(victim.config, timeout_s=0.3))
    with pytest.raises(EtcdUnavailable):
        await LeaseSession(client, TTL_S).start()
    await client.close()


async def test_closing_without_etcd_ends_within_the_deadline(etcd_config: EtcdConfig, proxy: Proxy) -> None:
    """U4."""
    client = EtcdClient(replace(etcd_config, endpoints=(proxy.endpoint,), timeout_s=0.3))
    session = await LeaseSession(client, TTL_S).start()
    await proxy.refuse()
    await asyncio.wait_for(session.close(), 1.0 * PATIENCE)
    await client.close()
