"""Watermarks that are more than one value holds: what was written lately is put into chunks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from distop.errors import DistopError
from distop.metastore.etcd.txn import Txn
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode_plain
from distop.metastore.records.table import TableRecord
from distop.metastore.records.watermarks import CHUNK_BYTES, FOLD_BYTES, Marks
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.watermarks import (
    ChunkReader,
    change_watermarks,
    fold,
    make_room,
    read_marks,
    watermark_chunks,
    without_source,
)
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import make_table

Plain = dict[str, dict[str, str]]


def many(source: str, count: int, start: int = 0) -> Plain:
    return {
        source: {f"2024/{number:06}.csv": "2024-01-01T00:00:00.000000Z" for number in range(start, count)}
    }


async def prefix_of(client: LossyClient, table: str = "t") -> bytes:
    kv = await client.get(client.keyspace.table(table).table)
    return watermark_chunks(client.keyspace, decode(kv.value, TableRecord))


async def standing(client: LossyClient, table: str = "t") -> Plain:
    marks, _ = await read_marks(client, client.keyspace.table(table))
    return await asyncio.to_thread(lambda: {source: dict(marks[source]) for source in marks})


async def change(client: LossyClient, how: Callable[[Marks], tuple[Marks, Txn]]) -> None:
    async def changed(before: Marks, table: object, head: object) -> tuple[Marks, Txn]:
        return await asyncio.to_thread(how, before)

    keys = client.keyspace.table("t")
    await change_watermarks(client, keys, changed, audit_put(keys, "set", by="jane", target="s", at=1.0))


def with_more(part: Plain, before: Marks) -> tuple[Marks, Txn]:
    return before.then(part), Txn()


async def folded(client: LossyClient, marks: Plain) -> None:
    """A table that has them in its chunks."""
    keys = client.keyspace.table("t")
    await make_table(client)
    for source, partitions in marks.items():
        names = list(partitions)
        for first in range(0, len(names), 5_000):
            part = {source: {name: partitions[name] for name in names[first : first + 5_000]}}
            await change(client, partial(with_more, part))
            await make_room(client, keys, 0)


async def test_a_fold_changes_nothing_that_is_read(client: LossyClient) -> None:
    """G4: and it leaves small values."""
    marks = many("s3://bucket/landing", 12_000) | {"orders": {"0": "17"}}
    await folded(client, marks)
    assert await standing(client) == marks
    prefix = await prefix_of(client)
    chunks = (await client.scan(prefix)).kvs
    assert len(chunks) > 10
    assert all(len(kv.value) < CHUNK_BYTES + 10_000 for kv in chunks)
    assert len((await client.get(client.keyspace.table("t").watermarks)).value) <= FOLD_BYTES
    assert chunks[0].key.startswith(prefix + b"s3://bucket/landing.2024/")


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_a_fold_whose_reply_is_lost_leaves_all_that_was_there(
    client: LossyClient, fault: Fault
) -> None:
    """C8"""
    keys = client.keyspace.table("t")
    marks = many("s", 2_000)
    await make_table(client)
    await client.put(keys.watermarks, encode_plain(marks))
    client.fail(fault, when=puts(keys.watermarks))
    try:
        await fold(client, keys)
    except DistopError:
        assert fault is Fault.DOWN
    assert client.spent
    assert await standing(client) == marks
    await make_room(client, keys, 0)
    assert await standing(client) == marks


async def test_folds_and_changes_that_race_lose_nothing(client: LossyClient) -> None:
    """P16: a change that was worked out before a fold is worked out again."""
    keys = client.keyspace.table("t")
    marks = many("s", 6_000)
    await make_table(client)
    await client.put(keys.watermarks, encode_plain(marks))

    def setting(number: int) -> Callable[[Marks], tuple[Marks, Txn]]:
        name = f"2024/{number * 700:06}.csv"
        marks["s"][name] = f"moved {number}"
        return lambda before: (before.then({"s": {name: f"moved {number}"}}), Txn())

    changes = [change(client, setting(number)) for number in range(6)]
    await asyncio.gather(*changes, *(fold(client, keys) for _ in range(6)))
    assert await standing(client) == marks
    await make_room(client, keys, 0)
    assert await standing(client) == marks


async def test_a_source_of_many_chunks_is_forgotten_in_one_transaction(client: LossyClient) -> None:
    """U2: those before and behind it stay, also where they share a chunk with it."""
    sources = ("a", "b", "b/c", "b.c", "c")
    marks = {source: many(source, 3_000 if source == "b" else 100)[source] for source in sources}
    await folded(client, marks)
    prefix = await prefix_of(client)
    await change(client, lambda before: (before.then({"b": {"2024/000007.csv": None}}), Txn()))
    del marks["b"]["2024/000007.csv"]
    assert await standing(client) == marks
    client.sent.clear()
    await change(client, lambda before: without_source(before, prefix, "b"))
    del marks["b"]
    assert await standing(client) == marks
    assert len([txn for txn in client.sent if txn.then]) == 1
    await change(client, lambda before: without_source(before, prefix, "a"))
    await change(client, lambda before: without_source(before, prefix, "c"))
    assert await standing(client) == {"b/c": marks["b/c"], "b.c": marks["b.c"]}


async def test_a_table_of_the_same_name_has_none_of_them(client: LossyClient) -> None:
    """C8: a fold that comes late for a table that is gone writes nothing."""
    keys = client.keyspace.table("t")
    await folded(client, many("s", 2_000))
    prefix = await prefix_of(client)
    await client.put(keys.watermarks, encode_plain(many("s", 4_000, start=2_000)))
    await client.delete(keys.table)
    await client.delete(prefix, prefix_end(prefix))
    assert await fold(client, keys) > FOLD_BYTES
    assert not (await client.scan(prefix)).kvs
    await client.delete(keys.watermarks)
    await make_table(client)
    assert await standing(client) == {}


async def test_chunks_are_read_in_a_process_of_its_own(client: LossyClient) -> None:
    """G4: a plan may run there."""
    await folded(client, many("s", 3_000))
    record = decode((await client.get(client.keyspace.table("t").table)).value, TableRecord)
    reader = ChunkReader(client, record, await client.revision())
    here = await asyncio.to_thread(reader, [b"", b"s.2024/001500%2Ecsv"])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = await asyncio.wrap_future(pool.submit(reader, [b"", b"s.2024/001500%2Ecsv"]))
    assert here == there
    assert all(there)


async def test_sources_with_long_names_are_folded_as_others_are(client: LossyClient) -> None:
    """G4, H6: a chunk is split by what it takes, names included; one that cannot be written stops all."""
    keys = client.keyspace.table("t")
    await make_table(client)
    sources = [f"s3://{'landing' * 40}/{number:04}/{'x' * (number % 600)}" for number in range(1_500)]
    marks: Plain = {}
    for first in range(3):
        newer = {source: {"0": str(first)} for source in sources[first::3]}
        await change(client, partial(with_more, newer))
        marks |= newer
        await make_room(client, keys, 0)
        assert len((await client.get(keys.watermarks)).value) <= FOLD_BYTES
    assert await standing(client) == marks
    chunks = (await client.scan(await prefix_of(client))).kvs
    assert all(len(kv.value) <= CHUNK_BYTES + 1_000 for kv in chunks)
    assert len(chunks) < 60
