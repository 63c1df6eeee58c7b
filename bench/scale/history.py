"""What a long history costs: starting an operation, ending it, and forgetting requests.

    make bench-scale ARGS=history

Two tables, whose ended operations and remembered requests are written into etcd in bulk: 100 of them is the
baseline, 20,000 the other one. One coordinator answers, and operations are started and cancelled in turn.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from common import Processes, own_etcd, print_json, print_table, sized, until

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.etcd.txn import Op, Put, Txn
from distop.metastore.operations.starting import REMEMBER_S, forget_requests
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, RequestRecord
from distop.metastore.records.record import encode

SHORT, LONG = sized((100, int(os.environ.get("DISTOP_BENCH_HISTORY", "20000"))), (10, 50))
ROUNDS = sized(25, 2)
"""Starts of each table; fewer than the operations after which a history is cut."""
BITE = 40
"""Operations written by one transaction."""


async def fill(client: EtcdClient, table: str, count: int) -> None:
    """A past of so many operations and their requests, all to be remembered for a while."""
    keys, now = client.keyspace.table(table), time.time()
    gate = asyncio.Semaphore(8)

    async def write(numbers: range) -> None:
        ops: list[Op] = []
        for number in numbers:
            operation, request, at = OperationId(table, "noop", number), f"r{number}", now - number
            line = HistoryRecord(outcome="success", started_at=at, finished_at=at + 1, run=request)
            until_s = at + REMEMBER_S
            record = RequestRecord(operation=str(operation), digest="", at=at, forget_at=until_s)
            ops += [
                Put(keys.history(operation), encode(line)),
                Put(keys.request(request), encode(record)),
                Put(keys.request_expiry(int(until_s * 1000), request), b"{}"),
            ]
        async with gate:
            await client.txn(Txn(then=tuple(ops)))

    bites = (range(first, min(first + BITE, count + 1)) for first in range(1, count + 1, BITE))
    await asyncio.gather(*map(write, bites))
    # The next one is not one after which the history is cut.
    await client.put(keys.next_instance("noop"), str(count // 64 * 64 + 65).encode())


async def start_and_cancel(sdk: AsyncClient, table: str) -> tuple[float, float]:
    """Milliseconds until an operation has started, and from its cancellation until it has ended."""
    began = time.perf_counter()
    operation = await sdk.start(table, "noop", {"partitions": 1})
    started = time.perf_counter()
    await operation.cancel()
    await operation.wait(timeout_s=60)
    return (started - began) * 1000, (time.perf_counter() - started) * 1000


async def forgetting(client: EtcdClient, table: str) -> float:
    """Milliseconds of :func:`forget_requests` when no request has expired."""
    began = time.perf_counter()
    await forget_requests(client, client.keyspace.table(table), time.time())
    return (time.perf_counter() - began) * 1000


async def run(etcd: EtcdProcess, processes: Processes, folder: Path) -> dict[str, float]:
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,), timeout_s=30))
    address = f"127.0.0.1:{free_port()}"
    processes.start("coordinator", "coordinator", "--listen", address)

    async def up() -> bool | None:
        return bool((await client.scan(client.keyspace.coordinators)).kvs) or None

    await until(up, "the coordinator")
    tables = {"short": SHORT, "long": LONG}
    async with AsyncClient(address, timeout_s=60) as sdk:
        for table, count in tables.items():
            await sdk.create_table(table, location=(folder / table).as_uri(), format="files")
            await fill(client, table, count)
        measured: dict[str, list[tuple[float, float, float]]] = {table: [] for table in tables}
        for number in range(ROUNDS + 2):
            for table in tables:  # in turn, so that what else the machine does slows both
                took = (*await start_and_cancel(sdk, table), await forgetting(client, table))
                if number >= 2:
                    measured[table].append(took)
    await client.close()
    medians = {
        table: [statistics.median(column) for column in zip(*rows, strict=True)]
        for table, rows in measured.items()
    }
    rows = [(f"{count:,}", *(f"{took:.1f}" for took in medians[table])) for table, count in tables.items()]
    columns = ["ended operations", "start ms", "cancel to end ms", "nothing to forget ms"]
    print_table(f"a table with a past, medians of {ROUNDS}", columns, rows)
    start, end, look = (long / short for short, long in zip(*medians.values(), strict=True))
    return {
        "history_20k_over_100_start": round(start, 2),
        "history_20k_over_100_end": round(end, 2),
        "history_20k_over_100_forget": round(look, 2),
        "history_start_ms": round(medians["long"][0], 1),
    }


def measure() -> dict[str, float]:
    with own_etcd() as (etcd, folder, processes):
        return asyncio.run(run(etcd, processes, folder))


if __name__ == "__main__":
    print_json(**measure())
