"""Leadership of a table: one at a time, and the fence that goes with it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from distop.errors import EtcdOutOfSpace, EtcdUnavailable, LeaseLost, OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Txn
from distop.metastore.etcd.update import MAX_TRIES
from distop.metastore.members.lease import Epoch, LeaseSession, campaign, resign
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.record import decode
from support.etcd.lossy import Fault, LossyClient

TTL_S = 5


@pytest.fixture
def keys(client: EtcdClient) -> TableKeys:
    return client.keyspace.table("t")


@pytest_asyncio.fixture
async def session(client: EtcdClient) -> AsyncIterator[LeaseSession]:
    async with LeaseSession(client, TTL_S) as standing:
        yield standing


def record(member: str) -> LeaderRecord:
    return LeaderRecord(member=member)


async def held(client: EtcdClient, epoch: Epoch) -> bool:
    return (await client.txn(Txn((epoch.held(),)))).succeeded


@dataclass
class Candidate:
    """A member that may lead the table."""

    client: LossyClient
    keys: TableKeys
    session: LeaseSession

    async def campaign(self) -> Epoch | None:
        return await campaign(self.client, self.keys, self.session, record("me"))

    async def elected(self) -> Epoch:
        epoch = await self.campaign()
        assert epoch is not None
        return epoch


@pytest.fixture
def me(client: LossyClient, keys: TableKeys, session: LeaseSession) -> Candidate:
    return Candidate(client, keys, session)


async def test_one_of_many_candidates_wins_the_election(client: EtcdClient, keys: TableKeys) -> None:
    """O24."""
    sessions = [await LeaseSession(client, TTL_S).start() for _ in range(10)]
    tries = [campaign(client, keys, each, record(f"m{n}")) for n, each in enumerate(sessions)]
    epochs = await asyncio.gather(*tries)
    winners = [n for n, epoch in enumerate(epochs) if epoch is not None]
    assert len(winners) == 1
    standing = await client.get(keys.coordinator)
    assert decode(standing.value, LeaderRecord).member == f"m{winners[0]}"
    assert standing.lease == sessions[winners[0]].lease_id
    epoch = epochs[winners[0]]
    assert epoch is not None
    assert epoch.revision == standing.create_revision
    assert await held(client, epoch)
    await asyncio.gather(*(each.close() for each in sessions))
    assert not await held(client, epoch)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_lost_answer_is_found_again(me: Candidate, fault: Fault) -> None:
    me.client.fail(fault, fault)
    epoch = await me.elected()
    assert me.client.spent
    assert await held(me.client, epoch)
    assert epoch == await me.campaign(), "a second try finds the same"


async def test_a_full_etcd_may_have_made_a_leader(me: Candidate) -> None:
    """O24, O27."""
    me.client.fail(Fault.FULL)
    with pytest.raises(EtcdOutOfSpace):
        await me.campaign()
    me.client.fail(Fault.FULL_YET_DONE)
    epoch = await me.elected()
    assert await held(me.client, epoch)


async def test_a_campaign_whose_outcome_stays_unknown_says_so(me: Candidate) -> None:
    me.client.fail(*[Fault.LOST_REPLY] * MAX_TRIES)
    with pytest.raises(OutcomeUnknown):
        await me.campaign()
    assert await me.campaign() is not None


async def test_epochs_of_a_table_only_grow(client: EtcdClient, keys: TableKeys) -> None:
    """O24: the fencing token."""
    revisions = []
    for _ in range(3):
        async with LeaseSession(client, TTL_S) as each:
            epoch = await campaign(client, keys, each, record("m"))
            assert epoch is not None
            revisions.append(epoch.revision)
    assert revisions == sorted(set(revisions))


async def test_resigning_an_old_epoch_does_nothing(me: Candidate) -> None:
    """O10: not even by the same process."""
    old = await me.elected()
    await resign(me.client, old)
    assert not await held(me.client, old)
    async with LeaseSession(me.client, TTL_S) as other:
        new = await campaign(me.client, me.keys, other, record("other"))
        assert new is not None
        await resign(me.client, old)
        assert await held(me.client, new)
        assert await me.campaign() is None


async def test_resigning_survives_lost_answers(me: Candidate) -> None:
    epoch = await me.elected()
    me.client.fail(Fault.LOST_REQUEST, Fault.LOST_REPLY)
    await resign(me.client, epoch)
    assert me.client.spent
    assert not (await me.client.get(me.keys.coordinator)).exists


async def test_a_resignation_that_may_have_failed_says_so(me: Candidate) -> None:
    """Else a table would be led by a member that does not know that it leads."""
    epoch = await me.elected()
    me.client.fail(*[Fault.LOST_REQUEST] * MAX_TRIES)
    with pytest.raises(OutcomeUnknown):
        await resign(me.client, epoch)
    me.client.fail(Fault.DOWN)
    with pytest.raises(EtcdUnavailable):
        await resign(me.client, epoch)
    assert await held(me.client, epoch)


async def test_without_a_lease_nobody_campaigns(client: EtcdClient, keys: TableKeys) -> None:
    """O25."""
    session = await LeaseSession(client, TTL_S).start()
    await client.lease_revoke(session.lease_id)
    with pytest.raises(LeaseLost):
        await campaign(client, keys, session, record("me"))
    await session.close()
    with pytest.raises(LeaseLost):
        await campaign(client, keys, session, record("me"))
    assert not (await client.get(keys.coordinator)).exists
