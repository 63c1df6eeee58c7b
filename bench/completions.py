"""How fast an operation of N trivial jobs gets from the call to its end.

    make bench-completions

Real processes: etcd, a coordinator, a sidecar, and an executor whose tasks go through the sidecar as Spark's
workers do. The clock runs from the StartOperation call until the caller knows of its end; the next round
begins once the collector has removed the keys of the one before. The baselines of the same run and the same
etcd, from one process: single conditional transactions, 32 in flight; and as many of them in groups of 120,
four groups in flight, which is the most that etcd can do for such results. What traces cost is measured with
trios of installations on the same etcd, of which one sends traces to a collector: they take turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import grpc
from common import (
    Processes,
    cpu_s,
    one_operation,
    peak_mb,
    print_json,
    print_table,
    run_on_own_etcd,
    sized,
    until_collected,
    until_executors,
)

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.etcd.txn import Put, Txn, absent
from distop.process.tracing import VARIABLE

SIZES = _, COMPARED, LARGEST = sized((1_000, 10_000, 100_000), (50, 100, 200))
"""Jobs of the operations; the rate of :data:`COMPARED` is compared with that of grouped transactions."""
GROUP, GROUPS_IN_FLIGHT = 120, 4
ROUNDS = dict(zip(SIZES, sized((5, 5, 2), (1, 1, 1)), strict=True))
ONE_JOB_ROUNDS = sized(200, 3)
RAW_TXNS, IN_FLIGHT = sized(10_000, 100), 32
TRIOS, TRIO_ROUNDS = sized((9, 9), (1, 1))
TABLE = "bench"


async def raw_rate(client: EtcdClient) -> float:
    """Single conditional transactions per second, :data:`IN_FLIGHT` at once."""
    numbers = count()

    async def worker() -> None:
        while (number := next(numbers)) < RAW_TXNS:
            key = b"raw.%d" % number
            await client.txn(Txn((absent(key),), (Put(key, b'{"state":"success"}'),)))

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    took = time.perf_counter() - began
    await client.delete(b"raw.", b"raw/")
    return RAW_TXNS / took


async def raw_grouped_rate(client: EtcdClient, keys: int) -> float:
    """Keys per second, each under a compare of its own, in groups; nothing else is done with them."""
    numbers = iter(range(keys))

    async def worker() -> None:
        while some := [b"raw.%d" % number for number in islice(numbers, GROUP)]:
            each = (Txn((absent(key),), (Put(key, b'{"state":"success"}'),)) for key in some)
            await client.txn(Txn(then=tuple(each)))

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(GROUPS_IN_FLIGHT)))
    took = time.perf_counter() - began
    await client.delete(b"raw.", b"raw/")
    return keys / took


@contextmanager
def collector(received: list[int]) -> Iterator[str]:
    """The URL of a collector of traces, which appends the size of each request."""

    def export(request: bytes, _: Any) -> bytes:
        received.append(len(request))
        return b""

    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait(10)


class Installation:
    """A coordinator, a sidecar and an executor, and a client of them."""

    def __init__(self, client: AsyncClient, etcd: EtcdClient, coordinator: int, results: Path) -> None:
        self.client, self.etcd, self.coordinator, self.results = client, etcd, coordinator, results

    async def operation(self, jobs: int) -> float:
        """Seconds of one operation, once the keys of the one before are gone."""
        await until_collected(self.etcd)
        return await one_operation(self.client, TABLE, jobs)


@asynccontextmanager
async def installed(config: EtcdConfig, folder: Path, processes: Processes) -> AsyncIterator[Installation]:
    """An installation that has run an operation: connections, imports, leadership."""
    address = f"127.0.0.1:{free_port()}"
    results = folder / "marks.jsonl"
    coordinator = processes.start("coordinator", "coordinator", "--listen", address)
    processes.start("sidecar", "sidecar")
    processes.start_script("executor", Path(__file__).with_name("socket_executor.py"), str(results))
    etcd = EtcdClient(config)
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=30) as client:
        await client.create_table(TABLE, "/nowhere")
        await until_executors(client)
        await one_operation(client, TABLE, 1000)
        yield Installation(client, etcd, coordinator, results)
    await etcd.close()


async def traced_over_plain(config: EtcdConfig, folder: Path) -> dict[str, float]:
    """What traces cost, as figures: the rate of an installation that sends them over that of one that does
    not, and the same of two that do not, as the medians of several trios of new installations: one differs
    from the next by some percent whatever it does. And the processor time that an operation with traces takes
    more in the coordinator, in ms."""
    received: list[int] = []
    traced, again, more_ms = list[float](), list[float](), list[float]()
    with collector(received) as url:
        for number in range(TRIOS):
            names = deque(("plain", "again", "traced"))
            names.rotate(number)
            async with AsyncExitStack() as stack:
                installations: dict[str, Installation] = {}
                for name in names:
                    own = replace(config, prefix=f"{config.prefix}{name.title()}{number}")
                    env = {**own.to_env(), **({VARIABLE: url} if name == "traced" else {})}
                    processes = stack.enter_context(Processes(folder / f"{name}{number}", env))
                    installations[name] = await stack.enter_async_context(
                        installed(own, folder / f"{name}{number}", processes)
                    )
                took: dict[str, list[float]] = {name: [] for name in names}
                began = {name: cpu_s(each.coordinator) for name, each in installations.items()}
                for _ in range(TRIO_ROUNDS):
                    names.rotate()
                    for name in names:
                        took[name].append(await installations[name].operation(COMPARED))
                cpu = {name: cpu_s(each.coordinator) - began[name] for name, each in installations.items()}
            seconds = {name: statistics.median(times) for name, times in took.items()}
            traced.append(seconds["plain"] / seconds["traced"])
            again.append(seconds["plain"] / seconds["again"])
            more_ms.append((cpu["traced"] - (cpu["plain"] + cpu["again"]) / 2) / TRIO_ROUNDS * 1000)
    if not received:
        raise SystemExit("the collector has received nothing")
    return {
        "traced_over_plain_10k": round(statistics.median(traced), 3),
        "plain_over_plain_10k": round(statistics.median(again), 3),
        "traced_more_cpu_ms_10k": round(statistics.median(more_ms), 1),
    }


async def measured(
    config: EtcdConfig, folder: Path, processes: Processes, sizes: Sequence[int] = SIZES
) -> dict[str, float]:
    """The figures, and tables of them; for sizes of :data:`SIZES`, with :data:`COMPARED` among them."""
    async with installed(config, folder, processes) as plain:
        raw = await raw_rate(plain.etcd)
        one_job = sorted([await one_operation(plain.client, TABLE, 1) for _ in range(ONE_JOB_ROUNDS)])
        taken: dict[int, list[float]] = {}
        marks: dict[int, dict[str, float]] = {}
        grouped: list[float] = []
        for size in sizes:
            taken[size] = []
            for _ in range(ROUNDS[size]):
                taken[size].append(await plain.operation(size))
                if size == COMPARED:  # in turns: the machine may be busier later
                    grouped.append(await raw_grouped_rate(plain.etcd, size))
            marks[size] = json.loads(plain.results.read_text().splitlines()[-1])
        memory = peak_mb(plain.coordinator)
    compared = await traced_over_plain(config, folder) if LARGEST in sizes else {}
    median = {size: statistics.median(times) for size, times in taken.items()}
    rows = [
        (
            f"{size:,}",
            f"{median[size]:.3f}",
            f"{size / median[size]:,.0f}",
            f"{size / median[size] / raw:.1f}",
            f"{marks[size]['p50_ms']:.1f}",
            f"{marks[size]['p99_ms']:.1f}",
        )
        for size in sizes
    ]
    headings = ("jobs", "seconds (median)", "jobs/s", "x raw", "mark p50 ms", "mark p99 ms")
    print_table(f"one operation, from the call to its end; raw: {raw:,.0f} transactions/s", headings, rows)
    print_table(
        "an operation of one job",
        ("p50 ms", "p90 ms", "max ms", "coordinator's peak memory MiB"),
        [
            (
                f"{one_job[ONE_JOB_ROUNDS // 2] * 1e3:.1f}",
                f"{one_job[ONE_JOB_ROUNDS * 9 // 10] * 1e3:.1f}",
                f"{one_job[-1] * 1e3:.1f}",
                f"{memory:.0f}",
            )
        ],
    )
    rate, raw_grouped = COMPARED / median[COMPARED], statistics.median(grouped)
    print(
        f"grouped transactions: {raw_grouped:,.0f} keys/s; {COMPARED:,} jobs: {rate / raw_grouped:.2f} of it"
    )
    return {
        "jobs_per_s_10k": round(rate),
        "raw_ratio_10k": round(rate / raw, 2),
        "raw_grouped_per_s": round(raw_grouped),
        "completions_over_grouped_raw": round(rate / raw_grouped, 2),
        **({"seconds_100k": round(median[LARGEST], 2)} if LARGEST in median else {}),
        **compared,
        "coordinator_peak_mb": round(memory),
        "one_job_p50_ms": round(one_job[ONE_JOB_ROUNDS // 2] * 1e3, 2),
    }


def measure(sizes: Sequence[int] = SIZES) -> dict[str, float]:
    """The figures, and tables of them."""
    return run_on_own_etcd(lambda config, folder, processes: measured(config, folder, processes, sizes))


if __name__ == "__main__":
    print_json(**measure())
