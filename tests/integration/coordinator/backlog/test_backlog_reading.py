"""What a leader reads of a backlog: the first batches exactly, and no more than a window of what waits."""

import random
from bisect import insort
from collections.abc import Sequence

import pytest

from distop.coordinator.backlog.reading import WINDOW, Reader
from distop.metastore.backlog.batches import MAX_TOGETHER, WAITING, OrderingRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Get, Op, Put, Txn, TxnResult
from distop.metastore.records.record import encode
from support.services.backlogs import record_of


class CountingClient(EtcdClient):
    """Notes how many keys each read of a range has ranged over."""

    def __init__(self, config: EtcdConfig) -> None:
        super().__init__(config)
        self.ranged: list[int] = []

    async def read_at_once(self, gets: Sequence[Get], *, revision: int = 0) -> TxnResult:
        ranges = [get for get in gets if get.end]
        self.ranged += [len((await self.get_range(get.key, get.end, keys_only=True)).kvs) for get in ranges]
        return await super().read_at_once(gets, revision=revision)


class Table:
    """The backlog of table ``t``, written as publishers and leaders write it; a reader gets its events."""

    def __init__(self, client: EtcdClient) -> None:
        self._client, self._keys = client, client.keyspace.table("t")
        self.reader = Reader(client, self._keys)
        self.waiting: list[bytes] = []
        self._last = ""

    async def publish(self, *names: str, told: bool = True, unordered: bool = False) -> None:
        keys = [self._keys.unordered(WAITING, one) if unordered else self._keys.backlog(one) for one in names]
        entry, index = encode(record_of()), Put(self._keys.backlog_index, b"{}")
        for start in range(0, len(keys), 100):
            await self._write(index, *(Put(key, entry) for key in keys[start : start + 100]), told=told)
        for key in () if unordered else keys:
            insort(self.waiting, key)
            if told:
                self.reader.came(key)

    async def apply(self, count: int) -> None:
        """The first so many, as the finish of their operation does."""
        gone, self.waiting = self.waiting[:count], self.waiting[count:]
        names = [key[len(self._keys.backlog_prefix) :].decode() for key in gone]
        self._last = max([self._last, *names], key=str.encode)
        ordering = Put(self._keys.ordering, encode(OrderingRecord(last=self._last)))
        await self._write(ordering, Put(self._keys.backlog_index, b"{}"), *(DeleteRange(key) for key in gone))

    async def _write(self, *ops: Op, told: bool = True) -> None:
        revision = (await self._client.txn(Txn(then=ops))).revision
        if told:
            self.reader.observe(revision)

    async def first(self) -> list[bytes]:
        return [waiting.kv.key for waiting in (await self.reader.read()).heads]


async def test_a_look_ranges_over_a_window_however_many_wait(etcd_config: EtcdConfig) -> None:
    """B5: etcd counts every key of a range, however few it is asked for."""
    client = CountingClient(etcd_config)
    table, drained = Table(client), 2 * WINDOW
    await table.publish(*(f"{number:06d}" for number in range(5 * WINDOW)))
    for _ in range(drained // MAX_TOGETHER):
        assert await table.first() == table.waiting[:MAX_TOGETHER]
        await table.apply(MAX_TOGETHER)
    wide = [count for count in client.ranged if count > WINDOW]
    await client.close()
    assert len(wide) <= 1 + drained // (WINDOW - MAX_TOGETHER)


@pytest.mark.parametrize("seed", range(5))
async def test_the_first_batches_are_read_whatever_comes_where(client: EtcdClient, seed: int) -> None:
    """B2, B4: also those that sort before the ones that were applied, and between them."""
    rng, table = random.Random(seed), Table(client)
    names = [f"{number:04d}" for number in range(4 * WINDOW)]
    rng.shuffle(names)
    early = WINDOW + 100
    await table.publish(*names[:early])
    for name in names[early : early + 150]:
        await table.publish(name)
        assert await table.first() == table.waiting[:MAX_TOGETHER]
        if rng.random() < 0.7:
            await table.apply(rng.randint(1, MAX_TOGETHER))


async def test_an_unannounced_late_batch_is_read(client: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """B4: the index, written with every batch, shows that the event of one is missing."""
    monkeypatch.setattr("distop.coordinator.backlog.reading.EVENT_S", 0.01)
    table = Table(client)
    await table.publish("b", "c")
    await table.first()
    await table.apply(1)
    assert await table.first() == table.waiting
    await table.publish("a", told=False)
    assert await table.first() == table.waiting == sorted(table.waiting)
    assert len(table.waiting) == 2


@pytest.mark.parametrize("count", [0, 1, MAX_TOGETHER, MAX_TOGETHER + 1, WINDOW + 3 * MAX_TOGETHER])
async def test_unordered_batches_are_read_in_turns(client: EtcdClient, count: int) -> None:
    """B13: each once in a round, and the next round begins with the first."""
    table = Table(client)
    names = [f"{number:04d}" for number in range(count)]
    await table.publish(*names, unordered=True)
    for _ in range(2):
        read = list[str]()
        while not read or len(read) < count:
            backlog = await table.reader.read()
            seen = [waiting.name for waiting in backlog.unordered]
            assert len(seen) <= MAX_TOGETHER
            assert backlog.more is (len(seen) == MAX_TOGETHER)
            assert table.reader.more is (count >= MAX_TOGETHER)
            read += seen
            if not count:
                break
        assert read == names


async def test_an_unreadable_one_is_logged_once(client: EtcdClient, caplog: pytest.LogCaptureFixture) -> None:
    """U1: not with each look."""
    table = Table(client)
    await table.publish("a", "c")
    await client.put(client.keyspace.table("t").backlog("b"), b'{"version": 99, "type": "noop"}')
    for _ in range(3):
        assert await table.first() == table.waiting[:1]
    assert [record.getMessage() for record in caplog.records].count("batch_unreadable") == 1
