"""The one way to change etcd, against everything that can come between: on a real etcd."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from distop.errors import (
    DistopError,
    EtcdOutOfSpace,
    EtcdUnavailable,
    Exhausted,
    LeadershipLost,
    OutcomeUnknown,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig, within
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, absent, created_at, unchanged
from distop.metastore.etcd.update import MAX_RACES, MAX_TRIES, settle, update
from support.etcd.lossy import Fault, LossyClient


@dataclass
class Number:
    """A number in etcd, and the mark that its last change has left."""

    client: LossyClient
    key: bytes
    mark: bytes

    @property
    def reads(self) -> tuple[Get, Get]:
        return Get(self.key), Get(self.mark)

    async def one_more(self, read: TxnResult) -> tuple[Txn | None, int]:
        """Adds one, and leaves a mark along with it."""
        kv = read.single(0, self.key)
        count = int(kv.value or b"0") + 1
        value = b"%d" % count
        return Txn((unchanged(kv),), (Put(self.key, value), Put(self.mark, value))), count

    def recognise(self, read: TxnResult) -> int | None:
        kv = read.single(1, self.mark)
        return int(kv.value) if kv.exists else None

    async def count_up(self) -> int:
        answer, _ = await update(self.client, self.reads, self.one_more, self.recognise, subject="the number")
        return answer

    async def stands(self) -> int:
        return int((await self.client.get(self.key)).value or b"0")


@pytest.fixture
def number(client: LossyClient) -> Number:
    return Number(client, client.keyspace.prefix + b"counted", client.keyspace.prefix + b"mark")


@pytest_asyncio.fixture
async def rival(etcd_config: EtcdConfig) -> AsyncIterator[EtcdClient]:
    """Another program that writes."""
    client = EtcdClient(etcd_config)
    yield client
    await client.close()


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
async def test_whatever_becomes_of_replies_it_happens_once(number: Number, faults: list[Fault]) -> None:
    """P8, O27: and the caller hears that it did."""
    number.client.fail(*faults)
    assert await number.count_up() == 1
    assert number.client.spent
    assert await number.stands() == 1


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOST_REQUEST] * MAX_TRIES,
        [Fault.LOST_REPLY, *[Fault.DOWN] * (MAX_TRIES - 1)],
        [Fault.LOST_REQUEST, *[Fault.FULL] * (MAX_TRIES - 1)],
    ],
    ids=lambda faults: f"{faults[0].name}-{faults[-1].name}",
)
async def test_a_doubt_that_is_never_resolved_is_reported_as_one(number: Number, faults: list[Fault]) -> None:
    """P8: no later failure makes certain that the first copy did not happen."""
    number.client.fail(*faults)
    with pytest.raises(OutcomeUnknown) as caught:
        await number.count_up()
    assert caught.value.code == "OUTCOME_UNKNOWN"
    assert number.client.spent
    assert await number.stands() == int(faults[0] is Fault.LOST_REPLY)


@pytest.mark.parametrize(("fault", "error"), [(Fault.DOWN, EtcdUnavailable), (Fault.FULL, EtcdOutOfSpace)])
async def test_an_update_that_certainly_did_not_happen_is_not_in_doubt(
    number: Number, fault: Fault, error: type[DistopError]
) -> None:
    """U4: it is sent once, and its error says why it was not done."""
    number.client.fail(fault)
    with pytest.raises(error):
        await number.count_up()
    assert len(number.client.sent) == 1
    assert await number.stands() == 0


@pytest.mark.parametrize("fault", [None, Fault.LOST_REQUEST, Fault.FULL])
async def test_a_competitor_who_wins_is_built_upon(
    number: Number, rival: EtcdClient, fault: Fault | None
) -> None:
    """O7: whether the race is lost in the open, under a lost request, or in a full etcd."""
    rivals = 0

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        nonlocal rivals
        decided = await number.one_more(read)
        if rivals < 3:
            rivals += 1
            await rival.put(number.key, b"%d" % (10 * rivals))
        return decided

    if fault is not None:
        number.client.fail(fault)
    answer, revision = await update(
        number.client, number.reads, decide, number.recognise, subject="the number"
    )
    assert answer == await number.stands() == 31
    assert (await number.client.get(number.key)).mod_revision == revision


async def test_an_update_that_loses_every_race_gives_up(
    number: Number, rival: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3: bounded; nothing is written and the error may be tried again."""
    monkeypatch.setattr("distop.metastore.etcd.update.MAX_RACES", 4)

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        await rival.put(number.key, b"7")
        return await number.one_more(read)

    with pytest.raises(Exhausted, match="4 tries") as caught:
        await update(number.client, number.reads, decide, subject="the number")
    assert caught.value.retryable
    assert MAX_RACES > len(number.client.sent) == 4
    assert await number.stands() == 7


async def test_a_doubt_that_the_last_try_ends_in_is_reported_as_one(
    number: Number, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: its copy was refused, since the first one has happened; that is no lost race."""
    monkeypatch.setattr("distop.metastore.etcd.update.MAX_RACES", 2)
    copies = itertools.cycle([True, False])

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        return Txn((unchanged(read.single(0, number.key)),), (Put(number.key, b"1"),)), None

    number.client.fail(Fault.LOST_REPLY, Fault.LOST_REPLY, when=lambda txn: next(copies))
    with pytest.raises(OutcomeUnknown, match="may have happened"):
        await update(number.client, number.reads, decide, subject="the number")
    assert number.client.spent
    assert len(number.client.sent) == 4
    assert await number.stands() == 1


async def test_many_at_a_time_each_count_once(number: Number, etcd_config: EtcdConfig) -> None:
    """O7: none is lost, none is counted twice."""
    clients = [LossyClient(etcd_config) for _ in range(20)]
    numbers = [Number(one, number.key, number.key + b".%d" % at) for at, one in enumerate(clients)]
    calls = [one.count_up() for one in numbers]
    assert sorted(await asyncio.gather(*calls)) == list(range(1, 21))
    for one in clients:
        await one.close()


@pytest.mark.parametrize("fault", [None, Fault.LOST_REQUEST])
async def test_a_leader_who_is_none_any_more_changes_nothing(
    number: Number, rival: EtcdClient, fault: Fault | None
) -> None:
    """O10: the epoch is compared in etcd, and what it refuses by is raised."""
    leader, epoch = number.key + b".leader", await rival.put(number.key + b".leader", b"me")

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        if read.single(0, leader).create_revision != epoch:
            raise LeadershipLost
        await rival.delete(leader)
        await rival.put(leader, b"somebody else")
        return Txn((created_at(leader, epoch), absent(number.key)), (Put(number.key, b"1"),)), None

    if fault is not None:
        number.client.fail(fault)
    with pytest.raises(LeadershipLost):
        await update(number.client, (Get(leader), Get(number.key)), decide, subject="the number")
    assert await number.stands() == 0


async def test_an_answer_without_a_transaction_writes_nothing(number: Number) -> None:
    written = await number.client.put(number.key, b"5")
    number.client.sent.clear()

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        return None, int(read.single(0, number.key).value)

    answer, revision = await update(number.client, (Get(number.key),), decide, subject="the number")
    assert (answer, number.client.sent) == (5, [])
    assert revision >= written


async def test_an_update_uses_a_known_value_before_it_reads(number: Number) -> None:
    """P16: a guess that is wrong costs a race, and is then read."""
    await number.client.put(number.key, b"5")
    seen: list[int] = []

    async def decide(read: TxnResult) -> tuple[Txn | None, int]:
        seen.append(int(read.single(0, number.key).value or b"0"))
        return await number.one_more(read)

    first = TxnResult(True, 1, ([], []))
    assert (await update(number.client, number.reads, decide, subject="the number", first=first))[0] == 6
    assert seen == [0, 5]


async def test_an_update_ends_within_the_deadline_of_its_caller(
    number: Number, etcd_config: EtcdConfig
) -> None:
    """U3: an etcd that is away is waited for no longer than the caller has."""
    away = LossyClient(EtcdConfig(endpoints=("127.0.0.1:1",), prefix=etcd_config.prefix, timeout_s=30))
    began = time.monotonic()
    with within(0.5), pytest.raises(EtcdUnavailable):
        await replace(number, client=away).count_up()
    assert time.monotonic() - began < 5
    await away.close()


async def test_a_patient_update_waits_for_an_etcd_that_is_away_or_full(number: Number) -> None:
    """O27, J3: a worker's write outlives both; a write that a caller waits for does not."""
    number.client.fail(Fault.DOWN, Fault.FULL, Fault.LOST_REPLY, Fault.FULL, Fault.DOWN)
    txn = Txn((absent(number.key),), (Put(number.key, b"1"),), (Get(number.key),))
    result = await settle(number.client, txn, patience_s=30.0)
    assert result.doubt
    assert not result.succeeded
    assert result.single(0, number.key).value == b"1"


async def test_a_patient_update_gives_up_in_the_end(number: Number) -> None:
    number.client.fail(*[Fault.DOWN] * 1000)
    with pytest.raises(EtcdUnavailable):
        await settle(number.client, Txn((), (Put(number.key, b"1"),)), patience_s=0.3)
    assert 1 < len(number.client.sent) < 1000


async def test_a_nested_transaction_that_a_full_etcd_refuses_stays_in_doubt(number: Number) -> None:
    """J3: the outer compares do not show it, so the error says that an earlier copy may have been applied."""
    told: list[bool] = []

    def build(doubt: bool) -> Txn:
        told.append(doubt)
        return Txn((), (Txn((absent(number.key),), (Put(number.key, b"1"),)),))

    number.client.fail(Fault.FULL_YET_DONE)
    result = await settle(number.client, build)
    assert told == [False, True]
    assert result.doubt
