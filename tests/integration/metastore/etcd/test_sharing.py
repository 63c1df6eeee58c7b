"""Many watches on few streams, on a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest
import pytest_asyncio

from distop.errors import Compacted, EtcdUnavailable
from distop.metastore.etcd import sharing
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Get, Put, Txn
from distop.metastore.etcd.watch import WatchBatch, watch
from distop.metastore.records.components import prefix_end
from support.etcd.counting import Counting
from support.waiting import eventually


@pytest_asyncio.fixture
async def counting(etcd_config: EtcdConfig) -> AsyncIterator[Counting]:
    connected = Counting(etcd_config)
    yield connected
    await connected.close()


@pytest.fixture(autouse=True)
def one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What watches may do to each other they do on one stream."""
    monkeypatch.setattr(sharing, "STREAMS", 1)


def shared(counting: Counting, name: bytes, from_revision: int = 0) -> AsyncGenerator[WatchBatch, None]:
    """A watch of a key of the test, on a stream with others."""
    key = counting.keyspace.prefix + name
    return watch(counting, key, from_revision=from_revision, shared=True)


async def put(counting: Counting, name: bytes, value: bytes = b"") -> int:
    return await counting.put(counting.keyspace.prefix + name, value)


async def test_each_watch_is_told_of_its_own_keys_and_all_share_a_stream(counting: Counting) -> None:
    """G1: a hundred tables."""
    names = [b"%s%02d." % (counting.keyspace.prefix, number) for number in range(100)]
    async with AsyncExitStack() as stack:
        watches = []
        for name in names:
            changes = watch(counting, name, prefix_end(name), shared=True)
            watches.append(await stack.enter_async_context(aclosing(changes)))
        await asyncio.gather(*(anext(changes) for changes in watches))
        assert counting.watches == 1
        # Those that leave take nobody's events with them, nor does one that comes behind them get theirs.
        for changes in watches[::2]:
            await changes.aclose()
        late = watch(counting, names[0], prefix_end(names[0]), shared=True)
        await stack.enter_async_context(aclosing(late))
        await anext(late)
        revision = (await counting.txn(Txn(then=tuple(Put(name + b"k", name) for name in names)))).revision
        for name, changes in [*zip(names[1::2], watches[1::2], strict=True), (names[0], late)]:
            batch = await asyncio.wait_for(anext(changes), 20)
            assert [(event.kv.value, event.kv.mod_revision) for event in batch.events] == [(name, revision)]
        assert counting.watches == 1


async def test_watches_spread_over_some_streams(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is opened for the next watch as long as there are enough, and each has about as many."""
    monkeypatch.setattr(sharing, "STREAMS", 4)
    async with AsyncExitStack() as stack:
        for number in range(20):
            changes = shared(counting, b"%d" % number)
            await anext(await stack.enter_async_context(aclosing(changes)))
        assert counting.watches == 4
        assert [stream.readers for stream in counting.shared_watches._streams] == [5] * 4


async def test_a_watch_that_is_left_before_etcd_answers_leaves_the_others_theirs(counting: Counting) -> None:
    """etcd answers in the order of the requests."""
    first, second = (shared(counting, name) for name in (b"a", b"b"))
    async with aclosing(second):
        leaving = asyncio.create_task(anext(first))
        staying = asyncio.create_task(anext(second))
        await asyncio.sleep(0)  # both have asked, and neither was answered
        leaving.cancel()
        await staying
        await put(counting, b"a")
        revision = await put(counting, b"b")
        batch = await asyncio.wait_for(anext(second), 20)
        assert [(event.kv.key, batch.revision) for event in batch.events] == [
            (counting.keyspace.prefix + b"b", revision)
        ]


async def test_who_falls_behind_misses_nothing_and_holds_up_nobody(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for one of them is bounded: its watch ends, and begins again where it was."""
    monkeypatch.setattr(sharing, "MAX_WAITING_BYTES", 5_000)
    slow = shared(counting, b"slow")
    quick = shared(counting, b"quick")
    async with aclosing(slow), aclosing(quick):
        await anext(slow)
        await anext(quick)
        revisions = [await put(counting, b"slow", bytes(1_000)) for _ in range(20)]
        last = await put(counting, b"quick")
        assert (await asyncio.wait_for(anext(quick), 20)).revision == last
        seen: list[int] = []
        async with asyncio.timeout(20):
            first = await anext(slow)
            seen += [event.kv.mod_revision for event in first.events]
            kept = len(counting.shared_watches._streams)
            while len(seen) < len(revisions):
                seen += [event.kv.mod_revision for event in (await anext(slow)).events]
        assert seen == revisions
        assert kept == 1
        assert counting.watches == 1, "on the same stream"


async def test_one_that_etcd_ends_leaves_the_others(counting: Counting) -> None:
    """O27: compaction."""
    first = await put(counting, b"k")
    standing = shared(counting, b"other")
    async with aclosing(standing):
        await anext(standing)
        await counting.compact(await put(counting, b"k"))
        with pytest.raises(Compacted):
            async for _ in shared(counting, b"k", from_revision=first):
                pass
        revision = await put(counting, b"other")
        assert (await asyncio.wait_for(anext(standing), 20)).revision == revision
    assert counting.watches == 1


async def test_the_stream_ends_with_the_last_watch_and_with_the_client(counting: Counting) -> None:
    for opened in (1, 2):
        changes = shared(counting, b"k")
        await anext(changes)
        assert counting.watches == opened
        await changes.aclose()
        await eventually(lambda: not counting.shared_watches._streams)
    changes = shared(counting, b"k")
    await anext(changes)
    waiting = asyncio.create_task(anext(changes))
    await asyncio.sleep(0)
    await counting.close()
    with pytest.raises(EtcdUnavailable):
        await asyncio.wait_for(waiting, 20)


async def test_a_client_that_is_closed_at_once_leaves_no_watch_waiting(counting: Counting) -> None:
    """U4: the stream has not even begun to open."""
    waiting = asyncio.create_task(anext(shared(counting, b"k")))
    await asyncio.sleep(0)
    await counting.close()
    with pytest.raises(EtcdUnavailable):
        await asyncio.wait_for(waiting, 20)


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
        assert read.one(0, b"").value == lane
        assert read.counts == ((1, 2, 1) if lane is lanes[0] else (1, 1, 0))
        assert read.one(2, b"").value == b""
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
    assert other.one(0, b"").value == lanes[1]
