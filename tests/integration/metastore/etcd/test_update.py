"""The one way to change etcd, against everything that can come between: on a real etcd."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

import pytest

from distop.errors import (
    DistopError,
    EtcdOutOfSpace,
    EtcdUnavailable,
    Exhausted,
    LeadershipLost,
    OutcomeUnknown,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.deadline import within
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, absent, created_at, unchanged
from distop.metastore.etcd.update import MAX_RACES, MAX_TRIES, settle, update
from support.etcd.lossy import Fault, LossyClient


@pytest.fixture
def key(client: LossyClient) -> bytes:
    return client.keyspace.prefix + b"counted"


@pytest.fixture
def mark(client: LossyClient) -> bytes:
    return client.keyspace.prefix + b"mark"


Decide = Callable[[TxnResult], Awaitable[tuple[Txn | None, int]]]


def one_more(key: bytes, mark: bytes) -> Decide:
    """Adds one to a number, and leaves a mark along with it."""

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        kv = read.one(0, key)
        count = int(kv.value or b"0") + 1
        return Txn((unchanged(kv),), (Put(key, b"%d" % count), Put(mark, b"%d" % count))), count

    return decide


def by_mark(mark: bytes) -> Callable[[TxnResult], int | None]:
    def recognise(read: TxnResult) -> int | None:
        kv = read.one(1, mark)
        return int(kv.value) if kv.exists else None

    return recognise


async def count_up(client: EtcdClient, key: bytes, mark: bytes) -> int:
    reads = (Get(key), Get(mark))
    answer, _ = await update(client, reads, one_more(key, mark), by_mark(mark), what="the number")
    return answer


async def number(client: EtcdClient, key: bytes) -> int:
    return int((await client.get(key)).value or b"0")


LOST = [Fault.LOST_REPLY, Fault.LOST_REQUEST]


@pytest.mark.parametrize(
    "faults",
    [
        [],
        *([one] for one in LOST),
        *([one, other] for one in LOST for other in LOST),
        [Fault.LOST_REQUEST] * (MAX_TRIES - 1),
        [Fault.LOST_REQUEST, Fault.DOWN, Fault.LOST_REPLY, Fault.DOWN],
        [Fault.LOST_REPLY, Fault.FULL],
        [Fault.LOST_REQUEST, Fault.FULL_YET_DONE],
        [Fault.FULL_YET_DONE],
    ],
    ids=lambda faults: "-".join(fault.name for fault in faults) or "none",
)
async def test_whatever_becomes_of_replies_it_happens_once(
    client: LossyClient, key: bytes, mark: bytes, faults: list[Fault]
) -> None:
    """P8, O27: and the caller hears that it did."""
    client.fail(*faults)
    assert await count_up(client, key, mark) == 1
    assert client.spent
    assert await number(client, key) == 1


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOST_REQUEST] * MAX_TRIES,
        [Fault.LOST_REPLY, *[Fault.DOWN] * (MAX_TRIES - 1)],
        [Fault.LOST_REQUEST, *[Fault.FULL] * (MAX_TRIES - 1)],
    ],
    ids=lambda faults: f"{faults[0].name}-{faults[-1].name}",
)
async def test_a_doubt_that_is_never_resolved_is_reported_as_one(
    client: LossyClient, key: bytes, mark: bytes, faults: list[Fault]
) -> None:
    """P8: no later failure makes certain that the first copy did not happen."""
    client.fail(*faults)
    with pytest.raises(OutcomeUnknown) as caught:
        await count_up(client, key, mark)
    assert caught.value.code == "OUTCOME_UNKNOWN"
    assert client.spent
    assert await number(client, key) == int(faults[0] is Fault.LOST_REPLY)


@pytest.mark.parametrize(("fault", "error"), [(Fault.DOWN, EtcdUnavailable), (Fault.FULL, EtcdOutOfSpace)])
async def test_what_certainly_did_not_happen_is_no_doubt(
    client: LossyClient, key: bytes, mark: bytes, fault: Fault, error: type[DistopError]
) -> None:
    """U4: it is sent once, and its error says why it was not done."""
    client.fail(fault)
    with pytest.raises(error):
        await count_up(client, key, mark)
    assert len(client.sent) == 1
    assert await number(client, key) == 0


@pytest.mark.parametrize("fault", [None, Fault.LOST_REQUEST, Fault.FULL])
async def test_a_competitor_who_wins_is_built_upon(
    client: LossyClient, etcd_config: EtcdConfig, key: bytes, mark: bytes, fault: Fault | None
) -> None:
    """O7: whether the race is lost in the open, under a lost request, or in a full etcd."""
    rival, rivals = EtcdClient(etcd_config), 0

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        nonlocal rivals
        decided = await one_more(key, mark)(read)
        if rivals < 3:
            rivals += 1
            await rival.put(key, b"%d" % (10 * rivals))
        return decided

    if fault is not None:
        client.fail(fault)
    answer, revision = await update(client, (Get(key), Get(mark)), decide, by_mark(mark), what="the number")
    await rival.close()
    assert answer == await number(client, key) == 31
    assert (await client.get(key)).mod_revision == revision


async def test_who_loses_every_race_gives_up(
    client: LossyClient, etcd_config: EtcdConfig, key: bytes, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3: bounded; nothing is written and the error may be tried again."""
    monkeypatch.setattr("distop.metastore.etcd.update.MAX_RACES", 4)
    rival = EtcdClient(etcd_config)

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        await rival.put(key, b"7")
        return await one_more(key, mark)(read)

    with pytest.raises(Exhausted, match="the number is too busy: 4 tries") as caught:
        await update(client, (Get(key), Get(mark)), decide, what="the number")
    await rival.close()
    assert caught.value.retryable
    assert MAX_RACES > len(client.sent) == 4
    assert await number(client, key) == 7


async def test_a_doubt_that_the_last_try_ends_in_is_reported_as_one(
    client: LossyClient, key: bytes, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: its copy was refused, since the first one has happened; that is no lost race."""
    monkeypatch.setattr("distop.metastore.etcd.update.MAX_RACES", 2)
    copies = itertools.cycle([True, False])

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        return Txn((unchanged(read.one(0, key)),), (Put(key, b"1"),)), None

    client.fail(Fault.LOST_REPLY, Fault.LOST_REPLY, when=lambda txn: next(copies))
    with pytest.raises(OutcomeUnknown, match="may have happened"):
        await update(client, (Get(key), Get(mark)), decide, what="the number")
    assert client.spent
    assert len(client.sent) == 4
    assert await number(client, key) == 1


async def test_many_at_a_time_each_count_once(etcd_config: EtcdConfig, key: bytes) -> None:
    """O7: none is lost, none is counted twice."""
    clients = [EtcdClient(etcd_config) for _ in range(20)]
    calls = [count_up(one, key, key + b".%d" % at) for at, one in enumerate(clients)]
    assert sorted(await asyncio.gather(*calls)) == list(range(1, 21))
    for one in clients:
        await one.close()


@pytest.mark.parametrize("fault", [None, Fault.LOST_REQUEST])
async def test_a_leader_who_is_none_any_more_changes_nothing(
    client: LossyClient, etcd_config: EtcdConfig, key: bytes, fault: Fault | None
) -> None:
    """O10: the epoch is compared in etcd, and what it refuses by is raised."""
    leader, epoch = key + b".leader", await client.put(key + b".leader", b"me")
    rival = EtcdClient(etcd_config)

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        if read.one(0, leader).create_revision != epoch:
            raise LeadershipLost
        await rival.delete(leader)
        await rival.put(leader, b"somebody else")
        return Txn((created_at(leader, epoch), absent(key)), (Put(key, b"1"),)), None

    if fault is not None:
        client.fail(fault)
    with pytest.raises(LeadershipLost):
        await update(client, (Get(leader), Get(key)), decide, what="the number")
    await rival.close()
    assert await number(client, key) == 0


async def test_an_answer_without_a_transaction_writes_nothing(client: LossyClient, key: bytes) -> None:
    written = await client.put(key, b"5")
    client.sent.clear()

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        return None, int(read.one(0, key).value)

    answer, revision = await update(client, (Get(key),), decide, what="the number")
    assert (answer, client.sent) == (5, [])
    assert revision >= written


async def test_what_is_known_is_not_read_first(client: LossyClient, key: bytes, mark: bytes) -> None:
    """P16: a guess that is wrong costs a race, and is then read."""
    await client.put(key, b"5")
    seen: list[int] = []

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        seen.append(int(read.one(0, key).value or b"0"))
        return await one_more(key, mark)(read)

    first = TxnResult(True, 1, ([], []))
    assert (await update(client, (Get(key), Get(mark)), decide, what="the number", first=first))[0] == 6
    assert seen == [0, 5]


async def test_it_ends_within_the_callers_deadline(etcd_config: EtcdConfig, key: bytes, mark: bytes) -> None:
    """U3: an etcd that is away is waited for no longer than the caller has."""
    away = LossyClient(EtcdConfig(endpoints=("127.0.0.1:1",), prefix=etcd_config.prefix, timeout_s=30))
    began = time.monotonic()
    with within(0.5), pytest.raises(EtcdUnavailable):
        await count_up(away, key, mark)
    assert time.monotonic() - began < 5
    await away.close()


async def test_who_is_patient_waits_for_an_etcd_that_is_away_or_full(client: LossyClient, key: bytes) -> None:
    """O27, J3: a worker's write outlives both; a write that a caller waits for does not."""
    client.fail(Fault.DOWN, Fault.FULL, Fault.LOST_REPLY, Fault.FULL, Fault.DOWN)
    txn = Txn((absent(key),), (Put(key, b"1"),), (Get(key),))
    result = await settle(client, txn, patience_s=30.0)
    assert result.doubt
    assert not result.succeeded
    assert result.one(0, key).value == b"1"


async def test_patience_ends(client: LossyClient, key: bytes) -> None:
    client.fail(*[Fault.DOWN] * 1000)
    with pytest.raises(EtcdUnavailable):
        await settle(client, Txn((), (Put(key, b"1"),)), patience_s=0.3)
    assert 1 < len(client.sent) < 1000


async def test_a_nested_transaction_that_a_full_etcd_refuses_stays_in_doubt(
    client: LossyClient, key: bytes
) -> None:
    """J3: the outer compares do not show it, so the error says that an earlier copy may have been applied."""
    told: list[bool] = []

    def build(doubt: bool) -> Txn:
        told.append(doubt)
        return Txn((), (Txn((absent(key),), (Put(key, b"1"),)),))

    client.fail(Fault.FULL_YET_DONE)
    result = await settle(client, build)
    assert told == [False, True]
    assert result.doubt
