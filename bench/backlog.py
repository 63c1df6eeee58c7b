"""How fast small batches are drained, and how fairly tables share their coordinators.

    make bench-backlog

Real processes: etcd and two coordinators. Batches of ``noop`` without jobs: what is measured is the way of a
batch through the backlog, with Spark out of the way. First one table alone; the baseline of the same run are
the same operations started one after the other by a caller who waits for each. Then 200 tables at once:
fairness is Jain's index of the batches applied per table at the moment when half of all are (1: all the same;
1/200: one table had everything).
"""

from __future__ import annotations

import asyncio
import time

from common import Processes, print_json, print_table, run_on_own_etcd, sized, until

from distop.client import AsyncClient
from distop.metastore.backlog.queue import open_gate
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port

BATCHES = sized(500, 10)
ALONE = sized(100, 3)
"""Operations of the baseline."""
TABLES, BATCHES_PER_TABLE = sized((200, 6), (3, 2))
IN_FLIGHT = 16


async def publish(client: AsyncClient, table: str, count: int) -> None:
    """Queue so many batches behind a closed gate."""
    await client.table(table).set_ordering(gate="closed")
    for number in range(count):
        await client.table(table).enqueue(f"{number:05d}", "noop", {"partitions": 0})


async def applied(etcd: EtcdClient, table: str) -> int:
    """How many batches of a table have been applied."""
    keys = etcd.keyspace.table(table)
    return len((await etcd.scan(keys.applied_prefix, keys_only=True)).kvs)


async def alone(client: AsyncClient) -> float:
    """Operations per second of a caller who starts one after the other."""
    await client.create_table("alone", "/nowhere/alone")
    began = time.perf_counter()
    for _ in range(ALONE):
        operation = await client.start("alone", "noop", {"partitions": 0})
        await operation.result(timeout_s=60)
    return ALONE / (time.perf_counter() - began)


async def drained(client: AsyncClient, etcd: EtcdClient) -> float:
    """Batches per second of one table that is drained."""
    await client.create_table("one", "/nowhere/one")
    await publish(client, "one", BATCHES)
    began = time.perf_counter()
    await client.table("one").open_gate()

    async def done() -> bool | None:
        return await applied(etcd, "one") == BATCHES or None

    await until(done, "the backlog", timeout_s=300)
    return BATCHES / (time.perf_counter() - began)


async def shared(client: AsyncClient, etcd: EtcdClient) -> tuple[float, float]:
    """Jain's index half-way, and batches per second, of many tables at once."""
    names = [f"t{number:03d}" for number in range(TABLES)]
    room = asyncio.Semaphore(IN_FLIGHT)

    async def prepare(name: str) -> None:
        async with room:
            await client.create_table(name, f"/nowhere/{name}")
            await publish(client, name, BATCHES_PER_TABLE)

    async def release(name: str) -> None:
        await open_gate(etcd, etcd.keyspace.table(name), request=name)

    await asyncio.gather(*map(prepare, names))
    total, began = TABLES * BATCHES_PER_TABLE, time.perf_counter()
    opening = asyncio.gather(*map(release, names))
    half: list[int] = []

    async def done() -> bool | None:
        counts = list(await asyncio.gather(*(applied(etcd, name) for name in names)))
        if not half and sum(counts) >= total / 2:
            half.extend(counts)
        return sum(counts) == total or None

    await until(done, f"{TABLES} backlogs", timeout_s=300)
    took = time.perf_counter() - began
    await opening
    return sum(half) ** 2 / (len(half) * sum(count * count for count in half)), total / took


async def measure(config: EtcdConfig, processes: Processes) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for number, address in enumerate(addresses):
        processes.start(f"coordinator-{number}", "coordinator", "--listen", address)
    etcd = EtcdClient(config)
    async with AsyncClient(",".join(addresses), timeout_s=30, connect_timeout_s=30) as client:

        async def both() -> bool | None:
            return len(await client.members()) == len(addresses) or None

        await until(both, "the coordinators")
        single = await alone(client)
        rate = await drained(client, etcd)
        fairness, together = await shared(client, etcd)
    await etcd.close()
    print_table(
        "batches without jobs",
        ("", "per second", "fairness"),
        [
            ("one after the other, by a caller", f"{single:.0f}", ""),
            (f"one table, {BATCHES} batches", f"{rate:.0f}", ""),
            (f"{TABLES} tables, {BATCHES_PER_TABLE} batches each", f"{together:.0f}", f"{fairness:.2f}"),
        ],
    )
    print_json(
        batches_per_s=round(rate, 1),
        batches_over_single=round(rate / single, 2),
        fairness_200_tables=round(fairness, 3),
    )


def main() -> None:
    run_on_own_etcd(lambda config, folder, processes: measure(config, processes))


if __name__ == "__main__":
    main()
