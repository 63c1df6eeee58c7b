"""How fast a table is drained while 1,000, 10,000 and 50,000 batches wait.

Real processes: etcd and a coordinator. Batches of ``noop`` without jobs, written to etcd in bulk; then
the gate is opened, and the clock runs until the first 1,000 of them are applied.
"""

from __future__ import annotations

import time

from common import Processes, print_json, print_table, run_on_own_etcd, sized, until

from distop.client import AsyncClient
from distop.metastore.backlog.batches import BatchRecord, ordering_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import FREQUENT_COMPACTION, free_port
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.record import encode

WAITING = FEW, SOME, MANY = sized((1_000, 10_000, 50_000), (10, 20, 30))
DRAINED = sized(1_000, 5)
AT_ONCE = 100
"""Batches of one transaction that fills a backlog."""


async def drained(client: AsyncClient, etcd: EtcdClient, waiting: int) -> float:
    """Batches per second of a table where so many wait."""
    table = f"t{waiting}"
    keys, record = etcd.keyspace.table(table), encode(BatchRecord(type="noop", argument={"partitions": 0}))
    await client.create_table(table, f"/nowhere/{table}")
    await client.table(table).set_ordering(gate="closed")
    for start in range(0, waiting, AT_ONCE):
        batches = range(start, min(start + AT_ONCE, waiting))
        await etcd.txn(Txn(then=tuple(Put(keys.backlog(f"{number:06d}"), record) for number in batches)))
    began = time.perf_counter()
    await client.table(table).open_gate()

    async def done() -> bool | None:
        return ordering_of(await etcd.get(keys.ordering)).last >= f"{DRAINED - 1:06d}" or None

    await until(done, f"{DRAINED} batches", timeout_s=300)
    took = time.perf_counter() - began
    await client.table(table).set_ordering(gate="closed")
    return DRAINED / took


async def measured(config: EtcdConfig, processes: Processes) -> dict[int, float]:
    address = f"127.0.0.1:{free_port()}"
    processes.start("coordinator", "coordinator", "--listen", address)
    etcd = EtcdClient(config)
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=30) as client:
        await drained(client, etcd, DRAINED + 1)  # imports, connections
        rates = {waiting: await drained(client, etcd, waiting) for waiting in WAITING}
    await etcd.close()
    return rates


def measure() -> dict[str, float]:
    rates = run_on_own_etcd(
        lambda config, folder, processes: measured(config, processes), FREQUENT_COMPACTION
    )
    rows = [(f"{waiting:,}", f"{rate:.0f}", f"{rate / rates[FEW]:.2f}") for waiting, rate in rates.items()]
    print_table("batches without jobs, one table", ("waiting", "batches/s", "ratio"), rows)
    names = ("1k", "10k", "50k")
    figures = {
        f"backlog_{name}_per_s": round(rates[size], 1) for name, size in zip(names, WAITING, strict=True)
    }
    return {**figures, "backlog_50k_over_1k": round(rates[MANY] / rates[FEW], 3)}


if __name__ == "__main__":
    print_json(**measure())
