"""Watching keys on a real etcd, over connections that break."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from distop.errors import Compacted
from distop.metastore.etcd import channels
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.etcd.watch import KeyEvent, WatchBatch, follow, until_absent, watch
from distop.metastore.records.names import prefix_end
from support.etcd.proxy import Proxy
from support.waiting import eventually


@pytest.fixture
def prefix_key(etcd_config: EtcdConfig) -> bytes:
    return etcd_config.keyspace.prefix


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[tuple[EtcdProcess, EtcdClient]]:
    """An etcd in which nobody else watches, and a client of it."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,)))
        yield etcd, client
        await client.close()


async def test_a_watch_from_now_on_is_not_late(
    alone: tuple[EtcdProcess, EtcdClient], prefix_key: bytes
) -> None:
    """etcd looks after late watchers every 100 ms only; the others it tells at once."""
    etcd, client = alone
    await client.put(prefix_key, b"")
    async with aclosing(watch(client, prefix_key, prefix_end(prefix_key))) as changes:
        await anext(changes)
        assert _counted(etcd, "watcher") == 1
        assert _counted(etcd, "slow_watcher") == 0


async def test_changes_come_and_say_what_they_are(client: EtcdClient, prefix_key: bytes) -> None:
    async with aclosing(watch(client, prefix_key, prefix_end(prefix_key))) as changes:
        assert (await anext(changes)).events == [], "the stream stands"
        put = await client.put(prefix_key + b"k", b"v")
        batch = await anext(changes)
        assert batch.revision == put
        assert [(e.kind, e.kv.value, e.kv.create_revision) for e in batch.events] == [("put", b"v", put)]
        await client.put(b"elsewhere", b"")
        await client.delete(prefix_key + b"k")
        batch = await anext(changes)
        assert [(e.kind, e.kv.key) for e in batch.events] == [("delete", prefix_key + b"k")]
        assert batch.events[0].kv.mod_revision == batch.revision > put + 1


async def test_one_key_is_watched_without_its_neighbours(client: EtcdClient, prefix_key: bytes) -> None:
    async with aclosing(watch(client, prefix_key + b"k")) as changes:
        await anext(changes)
        await client.put(prefix_key + b"kk", b"")
        mine = await client.put(prefix_key + b"k", b"")
        assert (await anext(changes)).revision == mine


async def test_the_changes_of_one_revision_come_in_one_batch(client: EtcdClient, prefix_key: bytes) -> None:
    """O28: a hundred keys of one transaction."""
    async with aclosing(watch(client, prefix_key, prefix_end(prefix_key))) as changes:
        await anext(changes)
        for _ in range(5):
            puts = tuple(Put(prefix_key + b"%03d" % index, bytes(1000)) for index in range(100))
            revision = (await client.txn(Txn(then=puts))).revision
            batch = await anext(changes)
            assert len(batch.events) == 100
            assert {event.kv.mod_revision for event in batch.events} == {revision}


async def test_a_watch_may_begin_in_the_past(client: EtcdClient, prefix_key: bytes) -> None:
    """And claims no more than it has delivered, though etcd is ahead of it."""
    revisions = [await client.put(prefix_key + b"k", b"%d" % index) for index in range(5)]
    changes = watch(client, prefix_key + b"k", from_revision=revisions[1])
    async with aclosing(changes):
        first = await anext(changes)
        assert first == WatchBatch(revisions[1] - 1, [])
        seen = (await anext(changes)).events
        assert [event.kv.mod_revision for event in seen] == revisions[1:]


async def test_an_event_larger_than_a_message_arrives_whole(
    client: EtcdClient, victim: EtcdClient, proxy: Proxy, prefix_key: bytes
) -> None:
    """etcd cuts it into fragments."""
    async with aclosing(watch(victim, prefix_key, prefix_end(prefix_key))) as changes:
        await anext(changes)
        await proxy.refuse()
        revisions = [await client.put(prefix_key + b"%d" % index, bytes(900_000)) for index in range(5)]
        await proxy.accept()
        seen: list[KeyEvent] = []
        while len(seen) < 5:
            batch = await asyncio.wait_for(anext(changes), 60)
            seen.extend(batch.events)
            assert not batch.events or batch.revision == batch.events[-1].kv.mod_revision
        assert [event.kv.mod_revision for event in seen] == revisions
        assert all(len(event.kv.value) == 900_000 for event in seen)


async def test_no_change_is_lost_or_seen_twice_over_cut_connections(
    client: EtcdClient, victim: EtcdClient, proxy: Proxy, prefix_key: bytes
) -> None:
    """O27: a cut stream."""
    written: list[int] = []
    seen: list[int] = []

    async def read() -> None:
        async with aclosing(watch(victim, prefix_key, prefix_end(prefix_key))) as changes:
            async for batch in changes:
                seen.extend(event.kv.mod_revision for event in batch.events)
                assert not batch.events or batch.revision == seen[-1]

    async def begun() -> list[int]:
        written.append(await client.put(prefix_key + b"x", b""))
        return seen

    reading = asyncio.create_task(read())
    await eventually(lambda: proxy.connections)
    await eventually(begun, every_s=0.1)
    del written[: written.index(seen[0])]
    for round_ in range(8):
        for index in range(20):
            then = tuple(Put(prefix_key + b"%d" % key, b"") for key in range(index % 3 + 1))
            revision = (await client.txn(Txn(then=then))).revision
            written.extend([revision] * len(then))
        standing = proxy.connections
        proxy.cut()
        await eventually(lambda standing=standing: _still(reading) and proxy.connections > standing)
        if round_ % 2:
            await eventually(lambda: _still(reading) and seen[-1] == written[-1])
    await eventually(lambda: _still(reading) and seen[-1] == written[-1])
    assert seen == written
    reading.cancel()


def _still(task: asyncio.Task[None]) -> bool:
    """Whether a background task is alive; its error if it has failed."""
    if task.done():
        task.result()
    return not task.done()


async def test_a_silent_connection_is_given_up(
    client: EtcdClient,
    etcd_config: EtcdConfig,
    proxy: Proxy,
    prefix_key: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O27: a peer that vanished without a word; here a second instead of ten, and one instead of five."""
    quick = {"grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
    options = [(name, quick.get(name, value)) for name, value in channels.CHANNEL_OPTIONS]
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", options)
    victim = EtcdClient(replace(etcd_config, endpoints=(proxy.endpoint,)))
    async with aclosing(watch(victim, prefix_key, prefix_end(prefix_key))) as changes:
        await anext(changes)
        proxy.hold_requests()
        proxy.hold_replies()
        revision = await client.put(prefix_key + b"k", b"")
        waiting = asyncio.ensure_future(anext(changes))
        await eventually(lambda: proxy.connections > 1)
        proxy.flow()
        while not (batch := await waiting).events:
            waiting = asyncio.ensure_future(anext(changes))
        assert batch.revision == revision
    await victim.close()


async def test_lost_history_is_reported(client: EtcdClient, prefix_key: bytes) -> None:
    """O27: compaction."""
    first = await client.put(prefix_key + b"k", b"1")
    last = await client.put(prefix_key + b"k", b"2")
    await client.compact(last)
    with pytest.raises(Compacted):
        async for _ in watch(client, prefix_key + b"k", from_revision=first):
            pass


async def test_a_follower_ends_with_what_stands_in_etcd(
    client: EtcdClient, victim: EtcdClient, proxy: Proxy, prefix_key: bytes
) -> None:
    """O24, O27: between listing and watching nothing slips through, whatever breaks when."""
    model: dict[bytes, bytes] = {}
    listings = 0

    async def read() -> None:
        nonlocal listings
        async with aclosing(follow(victim, prefix_key)) as changes:
            async for change in changes:
                if isinstance(change, Listing):
                    listings += 1
                    model.clear()
                    model.update({kv.key: kv.value for kv in change.kvs})
                    continue
                for event in change.events:
                    if event.kind == "put":
                        model[event.kv.key] = event.kv.value
                    else:
                        del model[event.kv.key]

    reading = asyncio.create_task(read())
    for number in range(400):
        key = prefix_key + b"%d" % (number * 7 % 50)
        if number % 3:
            await client.put(key, b"%d" % number)
        else:
            await client.delete(key)
        if number % 50 == 49:
            proxy.cut()
        if number % 150 == 149:
            await proxy.refuse()
            await client.put(key, b"missed")
            await client.compact(await client.put(prefix_key + b"compacted", b"%d" % number))
            await proxy.accept()

    stands = {kv.key: kv.value for kv in (await client.scan(prefix_key)).kvs}
    await eventually(lambda: _still(reading) and model == stands)
    assert listings >= 2
    reading.cancel()


async def test_keys_alone_may_be_followed(client: EtcdClient, prefix_key: bytes) -> None:
    await client.put(prefix_key + b"k", b"value")
    async with aclosing(follow(client, prefix_key, keys_only=True)) as changes:
        listing = await anext(changes)
        assert isinstance(listing, Listing)
        assert [(kv.key, kv.value) for kv in listing.kvs] == [(prefix_key + b"k", b"")]


async def test_closed_and_cancelled_watches_leave_nothing_behind(
    alone: tuple[EtcdProcess, EtcdClient], prefix_key: bytes
) -> None:
    """No watcher stays in etcd, whichever way its reader ended."""
    etcd, client = alone

    async def read() -> None:
        async for _ in watch(client, prefix_key, prefix_end(prefix_key)):
            pass

    tasks = [asyncio.create_task(read()) for _ in range(10)]
    standing = [watch(client, prefix_key) for _ in range(10)]
    for changes in standing:
        await anext(changes)
    await eventually(lambda: _counted(etcd, "watcher") == 20)
    for task in tasks:
        task.cancel()
    for changes in standing:
        await changes.aclose()
    await eventually(lambda: _counted(etcd, "watcher") == 0)


def _counted(etcd: EtcdProcess, what: str) -> int:
    with urllib.request.urlopen(f"http://{etcd.endpoint}/metrics", timeout=60) as reply:
        found = re.search(rf"^etcd_debugging_mvcc_{what}_total (\S+)", reply.read().decode(), re.MULTILINE)
    assert found
    return int(float(found[1]))


async def test_a_wait_for_a_key_to_go_ends_at_a_key_of_the_same_member(
    client: EtcdClient, prefix_key: bytes
) -> None:
    """O25: by a delayed request of the same member. It would wait forever: no other one deletes the key."""
    key, other, mine = prefix_key + b"k", await client.lease_grant(60), await client.lease_grant(60)
    await client.put(key, b"", lease=other)
    waiting = asyncio.create_task(until_absent(client, key, own_lease=mine))
    await client.put(key, b"", lease=mine)
    async with asyncio.timeout(60):
        await waiting
        await until_absent(client, key, own_lease=mine)
    assert (await client.get(key)).lease == mine
