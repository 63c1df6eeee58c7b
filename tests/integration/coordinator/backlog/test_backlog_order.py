"""The order of batches, shown by a string: each appends its letter, and all else tries to disturb it."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from distop.metastore.backlog.batches import BatchRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.watch import KeyEvent, watch
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode
from distop.metastore.records.table import decode_watermarks
from support.services.backlogs import applied, configure, drained, nothing_left, ordering, put, unblock
from support.services.coordinators import Service, serving
from support.waiting import eventually

ALPHABET = "abcdefghijklmnopqrstuvwxyz"

LAST = "\x7f"
"""The referee's own batch, written when all is over. Who still leads may take it."""


async def string(client: EtcdClient) -> str:
    kv = await client.get(client.keyspace.table("t").watermarks)
    return decode_watermarks(kv.value).get("letters", {}).get("string", "")


async def publish(client: EtcdClient, name: str) -> None:
    await put(client, name, kind="letters", letters=name[-1])


def spelled(names: Sequence[str]) -> str:
    return "".join(name[-1] for name in names)


class Referee:
    """Replays what is written to the backlog, and sees that each operation took the lowest that waited.

    Of those that waited when the one before it ended: what comes after that may come too late for it.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._since: dict[str, int] = {}
        """Batch that waits -> the revision at which it came."""
        self._ended = 0
        self.wrong: list[str] = []
        self.taken: list[str] = []
        """In the order in which they were, without those that came back."""

    def see(self, events: Sequence[KeyEvent]) -> None:
        """The changes of one or more revisions."""
        for revision in sorted({event.kv.mod_revision for event in events}):
            group = []
            for event in events:
                if event.kv.mod_revision != revision:
                    continue
                name = event.kv.key[len(self._prefix) :].decode()
                if name == LAST:
                    continue
                if event.kind == "delete":
                    del self._since[name]
                    self._ended = revision
                    continue
                self._since.setdefault(name, revision)
                if decode(event.kv.value, BatchRecord, event.kv.key).operation:
                    group.append(name)
            if group:
                self.taken += group
                passed = [
                    name
                    for name, since in self._since.items()
                    if name < group[-1] and name not in group and since <= self._ended
                ]
                if passed or group != sorted(group):
                    self.wrong.append(f"{group} were taken, and {passed} waited")


@asynccontextmanager
async def refereed(client: EtcdClient) -> AsyncIterator[Referee]:
    """Somebody watches, and has seen everything at the end."""
    prefix = client.keyspace.table("t").backlog_prefix
    referee, seen, began = Referee(prefix), 0, asyncio.Event()

    async def look() -> None:
        nonlocal seen
        async with aclosing(watch(client, prefix, prefix_end(prefix))) as changes:
            async for batch in changes:
                referee.see(batch.events)
                seen = max(seen, batch.revision)
                began.set()

    looking = asyncio.create_task(look())
    await began.wait()
    try:
        yield referee
        # A change of its own, which comes last.
        last = await client.put(prefix + LAST.encode(), b'{"version":1,"type":"noop"}')
        await eventually(lambda: seen >= last)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


@pytest.mark.parametrize("together", [1, 7])
async def test_the_string_is_in_order_whoever_publishes_when_and_how_often(
    service: Service, client: EtcdClient, together: int
) -> None:
    """B1, B2, B3: by default nothing comes after what sorts behind it, unless somebody decides so."""
    await configure(client, together=together)
    names = [f"{number:02d}{letter}" for number, letter in enumerate(ALPHABET)]
    shuffler = random.Random(5)

    async def retry_until_known(mine: list[str]) -> None:
        for name in mine:
            await publish(client, name)
            await publish(client, shuffler.choice(mine[: mine.index(name) + 1]))

    # Five publishers, none of whom knows how far the others are: most of what they bring is late.
    publishing = asyncio.gather(*(retry_until_known(names[first::5]) for first in range(5)))
    retried, skipped = list[str](), list[str]()

    async def over() -> bool:
        block = (await ordering(client)).blocked
        if block is not None:
            skip = shuffler.random() < 0.5
            before = await string(client)
            assert block.code == "BATCH_LATE"
            (skipped if skip else retried).append(block.batch)
            await unblock(client, client.keyspace.table("t"), block.batch, skip=skip)
            assert before == await string(client) or not skip
        return publishing.done() and await drained(client)

    assert await eventually(over, 120)
    await publishing
    done = [name for name in await applied(client) if name not in skipped]
    assert sorted([*done, *skipped]) == names
    assert len(await string(client)) == len(done)
    in_order = [name for name in done if name not in retried]
    assert in_order == sorted(in_order)
    assert [letter for letter in await string(client) if letter in spelled(in_order)] == list(
        spelled(in_order)
    )


@pytest.mark.slow("publishes 10,000 batches, and some of them twice, each with transactions of its own")
async def test_ten_thousand_publishes_race_with_the_drain(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """B5: 64 at a time and some of them twice; each is applied once, none is stranded, and whenever one is
    taken it is the lowest that waits."""
    count, at_once = 10_000, 64
    names = [f"{number:05d}{ALPHABET[number % 26]}" for number in range(count)]
    random.Random(3).shuffle(names)
    async with serving(etcd_config) as service, refereed(client) as referee:
        await service.create_table("t")
        await configure(client, late="apply", together=20)
        queue = iter(names)

        async def retry_until_known() -> None:
            for name in queue:
                await publish(client, name)
                if name[3] == "7":
                    await publish(client, name)

        await asyncio.gather(*(retry_until_known() for _ in range(at_once)))
        assert await eventually(lambda: drained(client), 240.0, every_s=0.1)
        assert await eventually(lambda: nothing_left(client))
    assert referee.wrong == []
    assert len(referee.taken) == count
    assert set(referee.taken) == set(names)
    assert await string(client) == spelled(referee.taken)
