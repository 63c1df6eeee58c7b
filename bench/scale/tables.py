"""What many tables cost: listing them and their operations, the doctor, the page, and a new leader.

    make bench-scale ARGS=tables

The tables are written into etcd in bulk: a record, its claim and index entry, a counter, and the line of one
ended operation each. One coordinator answers, with its page. The baseline is the same with a tenth of the
tables, in the same run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable

from common import Processes, own_etcd, print_json, print_table, sized, until

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.etcd.txn import Get, Op, Put, Txn
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.registry import table_puts

SIZES = sized(tuple(map(int, os.environ.get("DISTOP_BENCH_TABLES", "1000,4000,10000").split(","))), (10, 30))
LED = sized(int(os.environ.get("DISTOP_BENCH_LED", "1000")), 3)
CANCELLED = 10
"""Operations that a new leader has to end before it counts as acting."""
LEASE_TTL_S = 2
BITE = 25
"""Tables made by one transaction."""
PAGES = ("/", "/api/operations", "/api/tables", "/members", "/api/leaders")


def keys_of(client: EtcdClient, number: int) -> list[Op]:
    record = TableRecord(
        name=f"house.t{number:05d}", location=f"file:///nowhere/{number}", format="files", uuid=str(number)
    )
    keys = client.keyspace.table(record.name)
    ended = OperationId(record.name, "noop", 1)
    line = HistoryRecord(outcome="success", started_at=number + 1.0, finished_at=number + 2.0)
    return [
        *table_puts(keys, record),
        LocationClaim.of(client.keyspace, record).put,
        Put(keys.next_instance("noop"), b"2"),
        Put(keys.history(ended), encode(line)),
    ]


async def make_tables(client: EtcdClient, first: int, end: int) -> None:
    gate = asyncio.Semaphore(8)

    async def make(numbers: range) -> None:
        async with gate:
            await client.txn(Txn(then=tuple(op for number in numbers for op in keys_of(client, number))))

    bites = (range(start, min(start + BITE, end)) for start in range(first, end, BITE))
    await asyncio.gather(*map(make, bites))


async def took_ms(call: Callable[[], Awaitable[object]], times: int = 3) -> float:
    """Milliseconds of a call, the median of so many."""
    measured = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        measured.append((time.perf_counter() - began) * 1000)
    return sorted(measured)[times // 2]


def fetch(url: str) -> int:
    with urllib.request.urlopen(url, timeout=300) as reply:
        return len(reply.read())


async def measure_size(sdk: AsyncClient, web: str, count: int) -> dict[str, float]:
    async def whole_tables() -> None:
        if (listed := len([table async for table in sdk.tables(page_size=1000)])) != count:
            raise SystemExit(f"{listed} of {count} tables were listed")

    async def whole_operations() -> None:
        if (listed := len([operation async for operation in sdk.operations(page_size=1000)])) != count:
            raise SystemExit(f"{listed} of {count} operations were listed")

    async def doctor() -> None:
        diagnosis = await sdk.diagnose()
        if diagnosis.tables != count:
            raise SystemExit(f"the doctor has looked at {diagnosis.tables} of {count} tables")

    pages = {}
    for path in PAGES:
        # The server keeps an answer for a moment: each look asks for another one, and the slowest counts.
        looks = iter(range(100))

        async def look(path: str = path, looks: object = looks) -> None:
            size = 100 - next(looks)  # type: ignore[call-overload]
            await asyncio.to_thread(fetch, f"http://{web}{path}?page_size={size}")

        pages[path] = max([await took_ms(look, 1) for _ in range(3)])
    return {
        "tables": await took_ms(lambda: anext(aiter(sdk.tables(page_size=100)))),
        "operations": await took_ms(lambda: anext(aiter(sdk.operations(page_size=100)))),
        "tables_s": await took_ms(whole_tables, 1) / 1000,
        "operations_s": await took_ms(whole_operations, 1) / 1000,
        "page": max(pages.values()),
        "doctor_s": await took_ms(doctor, 1) / 1000,
    }


async def new_leader(client: EtcdClient, processes: Processes) -> float:
    """Seconds from the end of a leader of many tables until another one leads all, and has acted."""
    address = start_coordinator(processes, "old")
    await until(lambda: members(client, 1), "the coordinator")
    names = [f"led{number:04d}" for number in range(LED)]
    async with AsyncClient(address[0]) as sdk:
        gate = asyncio.Semaphore(16)

        async def begin(name: str) -> None:
            async with gate:
                keys = client.keyspace.table(name)
                record = TableRecord(name=name, location=f"file:///nowhere/{name}", format="files", uuid=name)
                claim = LocationClaim.of(client.keyspace, record)
                await client.txn(Txn(then=(*table_puts(keys, record), claim.put)))
                await sdk.start(name, "noop", {"partitions": 2})

        await asyncio.gather(*map(begin, names))

    async def led(by: str = "") -> bool | None:
        """Whether all tables are led: by the coordinator at this address, or by any if it is empty."""
        keys = [client.keyspace.table(name).coordinator for name in names]
        read = await client.read_many([Get(key) for key in keys])
        kvs = [read.single(index, key) for index, key in enumerate(keys)]
        leaders = {decode(kv.value, LeaderRecord, kv.key).address for kv in kvs if kv.exists}
        return (all(kv.exists for kv in kvs) and (not by or leaders == {by})) or None

    await until(led, "the first leader", 120)
    other, _, _ = start_coordinator(processes, "new")

    await until(lambda: members(client, 2), "two coordinators")
    os.kill(address[2], signal.SIGKILL)
    began = time.perf_counter()
    processes.reap(address[2])
    async with AsyncClient(other) as sdk:
        chosen = [OperationId(name, "noop", 1) for name in names[:: max(1, LED // CANCELLED)]]
        await asyncio.gather(*(sdk.operation(str(operation)).cancel() for operation in chosen))

        async def acted() -> bool | None:
            states = [await client.get(client.keyspace.operation(operation).state) for operation in chosen]
            return not any(kv.exists for kv in states) or None

        await until(acted, "the end of what was cancelled", 300)
    await until(lambda: led(other), "the new leader", 300)
    return time.perf_counter() - began


async def members(client: EtcdClient, count: int) -> bool | None:
    return len((await client.scan(client.keyspace.coordinators)).kvs) == count or None


def start_coordinator(processes: Processes, name: str) -> tuple[str, str, int]:
    """Start a coordinator; its address, the address of its page, and its pid."""
    address, web = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    listen = ("--listen", address, "--web", web, "--lease-ttl", str(LEASE_TTL_S))
    return address, web, processes.start(name, "coordinator", *listen)


async def run(etcd: EtcdProcess, processes: Processes) -> dict[str, float]:
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,), timeout_s=30))
    address, web, pid = start_coordinator(processes, "coordinator")

    await until(lambda: members(client, 1), "the coordinator")
    rows, done = list[list[str]](), 0
    figures: dict[str, float] = {}
    for path in PAGES:  # what renders them is loaded
        await asyncio.to_thread(fetch, f"http://{web}{path}")
    async with AsyncClient(address, timeout_s=300) as sdk:
        for size in SIZES:
            await make_tables(client, done, size)
            done = size
            took = await measure_size(sdk, web, size)
            cells = (f"{figure:,.{1 if name.endswith('_s') else 0}f}" for name, figure in took.items())
            rows.append([f"{size:,}", *cells])
            short = f"{size // 1000}k" if size >= 1000 else str(size)
            figures |= {
                f"ls_{short}_tables_first_page_ms": round(max(took["tables"], took["operations"]), 1),
                f"ls_{short}_whole_s": round(took["tables_s"], 2),
                f"ls_{short}_ms_per_table": round(took["tables_s"] * 1000 / size, 3),
                f"page_{short}_ms": round(took["page"], 1),
                f"doctor_{short}_s": round(took["doctor_s"], 2),
            }
    os.kill(pid, signal.SIGTERM)
    processes.reap(pid)
    figures[f"leader_{LED}_tables_s"] = round(await new_leader(client, processes), 2)
    await client.close()
    lists = ("table list", "operation list")
    columns = ["", *lists, *(f"{name}, all s" for name in lists), "slowest page", "doctor s"]
    print_table("tables: first pages of 100 in ms, then all", columns, rows)
    over = figures[f"leader_{LED}_tables_s"] - LEASE_TTL_S
    print(f"a new leader of {LED:,} tables leads all and has acted {over:.1f} s after the TTL")
    return figures


def measure() -> dict[str, float]:
    with own_etcd() as (etcd, folder, processes):
        try:
            return asyncio.run(run(etcd, processes))
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            raise


if __name__ == "__main__":
    print_json(**measure())
