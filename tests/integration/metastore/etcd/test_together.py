"""Transactions that gather and go in one request: each has its own outcome."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from distop.errors import Compacted, EtcdOutOfSpace, EtcdUnavailable, LeaseLost, OutcomeUnknown
from distop.metastore.etcd import channels, together
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig, within
from distop.metastore.etcd.together import IN_FLIGHT, MAX_BYTES, Together
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, absent
from distop.metastore.etcd.update import settle
from distop.metastore.records.names import prefix_end
from distop.proto import distop_pb2 as pb
from support.etcd.counting import Counting
from support.etcd.jobs import mark
from support.services.coordinators import Service
from support.waiting import eventually


class HeldClient(EtcdClient):
    """What it sends waits until it is let go; the replies of some requests are lost."""

    def __init__(self, config: EtcdConfig) -> None:
        super().__init__(config)
        self.let_go = asyncio.Event()
        self.sent: list[Txn] = []
        self.lose = 0
        """Replies of requests with several transactions that are yet to be lost."""
        self.full = False
        """Whether etcd says of such a request that it is full, and has done it all the same."""

    async def _send_txn(self, txn: Txn, timeout_s: float | None) -> TxnResult:
        self.sent.append(txn)
        await self.let_go.wait()
        result = await super()._send_txn(txn, timeout_s)
        if self.lose and len(txn.then) > 1:
            self.lose -= 1
            raise OutcomeUnknown("the reply was lost", details={"of": "all"})
        if self.full and len(txn.then) > 1:
            raise EtcdOutOfSpace
        return result


@pytest_asyncio.fixture
async def held(etcd_config: EtcdConfig) -> AsyncIterator[HeldClient]:
    connected = HeldClient(etcd_config)
    yield connected
    await connected.close()


def lane_of(client: EtcdClient, name: str) -> bytes:
    return client.keyspace.prefix + name.encode() + b"."


def key_of(client: EtcdClient, name: str, lane: str = "") -> bytes:
    return lane_of(client, lane or name) + name.encode()


def once(client: EtcdClient, name: str, *, lane: str = "", lease: int = 0) -> Txn:
    """Makes a key that is not there yet."""
    key = key_of(client, name, lane)
    return Txn((absent(key),), (Put(key, b"x", lease),), (Get(key),), lane=lane_of(client, lane or name))


async def begun(client: HeldClient, *txns: Txn) -> list[asyncio.Task[TxnResult]]:
    """All of them sent or waiting, behind as many as may be under way."""
    before = [once(client, f"before.{number}") for number in range(IN_FLIGHT)]
    tasks = [asyncio.create_task(client.txn(txn)) for txn in (*before, *txns)]
    await eventually(lambda: len(client.sent) == IN_FLIGHT)
    await asyncio.sleep(0)
    return tasks[IN_FLIGHT:]


async def test_each_that_gathers_has_its_own_outcome(held: HeldClient, client: EtcdClient) -> None:
    for number in (1, 3):
        await client.txn(once(client, f"t{number}"))
    tasks = await begun(held, *(once(held, f"t{number}") for number in range(5)))
    held.let_go.set()
    results = await asyncio.gather(*tasks)
    assert [result.succeeded for result in results] == [True, False, True, False, True]
    assert len(results[1].got(0)) == 1, "what a refused one reads"
    assert len(held.sent) == IN_FLIGHT + 1, "all five in one request"
    standing = [await client.get(key_of(client, f"t{number}")) for number in (0, 2, 4)]
    assert [kv.mod_revision for kv in standing] == [results[0].revision] * 3


async def test_few_lanes_wait_for_nobody_and_many_gather(
    held: HeldClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: a lone operation pays nothing for what many at once save."""
    held.let_go.set()
    monkeypatch.setattr(together, "FEW", 2)
    monkeypatch.setattr(together, "LATELY_S", 600.0)
    monkeypatch.setattr(together, "DISTANCE_EACH_S", 0.5)
    monkeypatch.setattr(together, "LONGEST_DISTANCE_S", 0.5)
    one_lane = [once(held, f"a{number}", lane="a") for number in range(2)]
    await asyncio.gather(*map(held.txn, one_lane))
    assert len(held.sent) == 2
    others = [once(held, name) for name in "bcde"]
    results = await asyncio.gather(*map(held.txn, others))
    assert all(result.succeeded for result in results)
    assert len(held.sent) == 4, "b at once, and what came after it together"


async def test_those_of_one_lane_never_go_together(held: HeldClient) -> None:
    """etcd evaluates all compares of a request before it writes: the second one would not see the first."""
    tasks = await begun(held, *(once(held, "same", lane="table") for _ in range(3)))
    held.let_go.set()
    results = await asyncio.gather(*tasks)
    assert sorted(result.succeeded for result in results) == [False, False, True]


async def test_a_write_that_etcd_refuses_fails_alone(held: HeldClient, client: EtcdClient) -> None:
    """Such as one under a lease that has expired."""
    tasks = await begun(held, once(held, "a"), once(held, "b", lease=12345), once(held, "c"))
    held.let_go.set()
    a, b, c = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(b, LeaseLost)
    assert isinstance(a, TxnResult)
    assert isinstance(c, TxnResult)
    assert a.succeeded
    assert c.succeeded


async def test_a_lost_reply_is_settled_by_each_for_itself(held: HeldClient, client: EtcdClient) -> None:
    txns = [once(held, name) for name in "abc"]
    held.lose = 1
    await begun(held)
    tasks = [asyncio.create_task(settle(held, txn)) for txn in txns]
    await asyncio.sleep(0)
    held.let_go.set()
    results = await asyncio.gather(*tasks)
    assert [(result.succeeded, result.doubt) for result in results] == [(False, True)] * 3
    assert all(result.got(0) for result in results), "it stands, and each has read it back"


async def test_a_write_that_a_full_etcd_has_made_is_not_taken_for_a_lost_race(held: HeldClient) -> None:
    """P8, O27: who takes it for one removes the files of a commit that has happened."""
    held.full = True
    await begun(held)
    tasks = [asyncio.create_task(settle(held, once(held, name))) for name in "abc"]
    await asyncio.sleep(0)
    held.let_go.set()
    results = await asyncio.gather(*tasks)
    assert [(result.succeeded, result.doubt) for result in results] == [(False, True)] * 3


async def test_each_hears_of_a_lost_reply_by_an_error_of_its_own(held: HeldClient) -> None:
    """Callers add details to it."""
    held.lose = 1
    tasks = await begun(held, once(held, "a"), once(held, "b"))
    held.let_go.set()
    one, other = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(one, OutcomeUnknown)
    assert isinstance(other, OutcomeUnknown)
    one.details["run"] = "one"
    assert other.details == {"of": "all"}


async def test_a_write_cancelled_before_it_is_sent_writes_nothing(
    held: HeldClient, client: EtcdClient
) -> None:
    """U4: neither cancelled nor past its deadline."""
    (cancelled,) = await begun(held, once(held, "cancelled"))
    cancelled.cancel()
    with within(0.01), pytest.raises(EtcdUnavailable) as raised:
        await held.txn(once(held, "late"))
    assert not isinstance(raised.value, OutcomeUnknown)
    last = asyncio.create_task(held.txn(once(held, "last")))
    await asyncio.sleep(0)
    held.let_go.set()
    assert (await last).succeeded
    for name in ("cancelled", "late"):
        assert not (await client.get(key_of(client, name))).exists


async def test_large_ones_go_alone(held: HeldClient) -> None:
    large, wide = lane_of(held, "large"), lane_of(held, "wide")
    alone = [
        Txn(then=(Put(large + b"k", b"x" * MAX_BYTES),), lane=large),
        Txn(tuple(absent(wide + b"%d" % number) for number in range(100)), lane=wide),
    ]
    tasks = await begun(held)
    tasks += [asyncio.create_task(held.txn(txn)) for txn in alone]
    await eventually(lambda: len(held.sent) == IN_FLIGHT + 2)
    held.let_go.set()
    assert all(result.succeeded for result in await asyncio.gather(*tasks))


async def test_very_many_at_once_all_happen(client: EtcdClient) -> None:
    txns = [once(client, f"t{number}") for number in range(500)]
    results = await asyncio.gather(*map(client.txn, txns))
    assert all(result.succeeded for result in results)
    again = await asyncio.gather(*map(client.txn, txns))
    assert not any(result.succeeded for result in again)


async def test_those_that_touch_a_key_of_another_lane_go_alone(held: HeldClient) -> None:
    """C8: in one request both would be compared with the state before both."""
    await begun(held)
    keys = [key_of(held, name) for name in ("one", "other")]
    crossed = [
        Txn((absent(keys[1]),), (Put(keys[0], b""),), lane=lane_of(held, "one")),
        Txn((absent(keys[0]),), (Put(keys[1], b""),), lane=lane_of(held, "other")),
    ]
    tasks = [asyncio.create_task(held.txn(txn)) for txn in crossed]
    await asyncio.sleep(0)
    held.let_go.set()
    results = await asyncio.gather(*tasks)
    assert sorted(result.succeeded for result in results) == [False, True]


async def test_transactions_that_are_batched_touch_one_table(
    service: Service, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: from the campaign of a leader to the end of an operation."""
    lanes = dict[bytes, bool]()
    lies = Together._leaves_lane

    def noted(together: Together, txn: Txn) -> bool:
        leaves = lies(together, txn)
        lanes[txn.lane] = lanes.get(txn.lane, False) or leaves
        return leaves

    monkeypatch.setattr(Together, "_leaves_lane", noted)
    operation = await service.start("t", "noop", {"partitions": 1})
    await mark(client, operation, "0")
    assert (await service.ended(operation)).state == pb.SUCCEEDED
    assert lanes == {client.keyspace.table("t").prefix: False}


async def test_a_write_whose_answer_is_too_large_is_in_doubt(
    etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7: gRPC refuses the answer here, when etcd has done it all; also what others read makes it large."""
    options = dict(channels.CHANNEL_OPTIONS) | {"grpc.max_receive_message_length": 1 << 20}
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", list(options.items()))
    client = HeldClient(etcd_config)
    lanes = [client.keyspace.prefix + b"large%d." % number for number in range(2)]
    client.let_go.set()
    for lane in lanes:
        await client.put(lane, bytes(600_000))
    txn = once(client, "alone")
    with pytest.raises(OutcomeUnknown):
        await client.txn(Txn(txn.compares, (*txn.then, *map(Get, lanes))))
    assert (await client.get(key_of(client, "alone"))).exists
    client.let_go.clear()
    client.sent.clear()
    await begun(client)
    writing = asyncio.create_task(settle(client, once(client, "beside")))
    reading = [asyncio.create_task(client.read_in_lane([Get(lane)], lane)) for lane in lanes]
    await asyncio.sleep(0)
    client.let_go.set()
    settled = await writing
    assert settled.succeeded or settled.doubt
    assert [len((await read).got(0)) for read in reading] == [1, 1]
    await client.close()


async def test_reads_of_many_go_together_and_each_is_as_of_one_revision(counting: Counting) -> None:
    """G1: what a leader reads of each table that it takes over."""
    lanes = [b"%s%03d." % (counting.keyspace.prefix, number) for number in range(200)]
    for lane in lanes:
        await counting.put(lane + b"a", lane)
    old = await counting.put(lanes[0] + b"b", b"")
    await counting.put(lanes[0] + b"b", b"now")
    before = counting.requests

    async def read(lane: bytes) -> int:
        wanted = [Get(lane + b"a"), Get(lane, prefix_end(lane)), Get(lane + b"b", revision=old)]
        read = await counting.read_in_lane(wanted, lane)
        assert read.single(0, b"").value == lane
        assert read.counts == ((1, 2, 1) if lane is lanes[0] else (1, 1, 0))
        assert read.single(2, b"").value == b""
        return read.revision

    revisions = await asyncio.gather(*map(read, lanes))
    assert counting.requests - before <= 10
    assert set(revisions) == {await counting.revision()}, "nothing was written"
    await counting.compact(await counting.put(counting.keyspace.prefix, b""))
    one, other = await asyncio.gather(
        counting.read_in_lane([Get(lanes[0], revision=old)], lanes[0]),
        counting.read_in_lane([Get(lanes[1] + b"a")], lanes[1]),
        return_exceptions=True,
    )
    assert isinstance(one, Compacted)
    assert not isinstance(other, BaseException)
    assert other.single(0, b"").value == lanes[1]
