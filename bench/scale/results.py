"""What very many results cost: looking at an operation that has them, a million jobs while somebody looks,
and looking at others while they are removed.

    PYTHONPATH=bench python bench/scale/results.py [RESULTS [JOBS]]

Real processes: etcd, two coordinators, a sidecar, an executor.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from common import (
    Processes,
    one_operation,
    peak_mb,
    print_json,
    print_table,
    run_on_own_etcd,
    sized,
    until,
    until_collected,
    until_executors,
)

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.jobs import success_record
from distop.metastore.records.names import OperationId

FEW, MANY, MILLION = sized((1_000, 500_000, 1_000_000), (10, 50, 200))
LOOKS = sized(21, 3)
TABLE, HELD = "bench", "held"


async def write_results(etcd: EtcdClient, operation: str, count: int) -> None:
    """Results as an executor would leave them."""
    keys, value = etcd.keyspace.operation(OperationId.parse(operation)), success_record("a", {}, 1.0)
    groups = iter(range(0, count, 120))

    async def writer() -> None:
        for start in groups:
            jobs = range(start, min(start + 120, count))
            await etcd.txn(Txn(then=tuple(Put(keys.job_state(str(job)), value) for job in jobs)))

    await asyncio.gather(*(writer() for _ in range(8)))


async def look_ms(client: AsyncClient, operation: str, results: int) -> float:
    """Milliseconds of a GetOperation, the median of :data:`LOOKS`, once all results are counted."""

    async def known() -> bool | None:
        return (await client.operation(operation).get()).jobs.succeeded == results or None

    await until(known, "all results to be counted", 120)
    taken = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await client.operation(operation).get()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


@asynccontextmanager
async def looking(client: AsyncClient) -> AsyncIterator[list[float]]:
    """A caller that lists all operations every second, at least once; the seconds of each listing."""
    taken: list[float] = []
    looked = asyncio.Event()

    async def look() -> None:
        while True:
            began = time.perf_counter()
            async for _ in client.operations(TABLE):
                pass
            taken.append(time.perf_counter() - began)
            looked.set()
            await asyncio.sleep(1)

    task = asyncio.create_task(look())
    try:
        yield taken
        first = asyncio.create_task(looked.wait())
        await asyncio.wait([first, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def watch(client: AsyncClient, operation: str) -> int:
    """Watch an operation to its end; the number of updates."""
    count = 0
    async with aclosing(client.operation(operation).watch()) as updates:
        async for _ in updates:
            count += 1
    return count


async def run(
    config: EtcdConfig, folder: Path, processes: Processes, many: int, million: int
) -> dict[str, float]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    etcd, figures = EtcdClient(config), {}
    first = processes.start("coordinator", "coordinator", "--listen", addresses[0])
    async with AsyncClient(addresses[0], timeout_s=60, connect_timeout_s=60) as client:
        for table in (TABLE, HELD):
            await client.create_table(table, f"/nowhere/{table}")

        # Nobody runs these: there is no executor yet.
        rows = []
        processes.start("other", "coordinator", "--listen", addresses[1])
        async with AsyncClient(addresses[1], timeout_s=60, connect_timeout_s=60) as other:
            held = {}
            for results in (FEW, many):
                held[results] = (await client.start(HELD, "noop", {"partitions": results + 1})).name
                await write_results(etcd, held[results], results)
                at_each = [await look_ms(caller, held[results], results) for caller in (client, other)]
                figures[f"get_operation_{'few' if results == FEW else '500k'}_ms"] = round(max(at_each), 1)
                rows.append((f"{results:,}", *(f"{ms:.1f}" for ms in at_each)))
                if results == FEW:
                    await client.operation(held[results]).cancel()
                    await client.operation(held[results]).wait(timeout_s=60)
        print_table("GetOperation of a running operation, in ms", ("results", "at one", "at the other"), rows)

        async with looking(client) as taken:
            await client.operation(held[many]).cancel()
            began = time.perf_counter()
            await until_collected(etcd, 300)
            removed_s = time.perf_counter() - began
        figures["list_while_collected_max_s"] = round(max(taken), 2)

        processes.start("sidecar", "sidecar")
        script = Path(__file__).parents[1] / "socket_executor.py"
        processes.start_script("executor", script, str(folder / "marks.jsonl"))
        await until_executors(client)
        await one_operation(client, TABLE, 1000)
        alone_s = await one_operation(client, TABLE, million // 10)
        async with looking(client) as taken:
            began = time.perf_counter()
            operation = await client.start(TABLE, "noop", {"partitions": million})
            watching = asyncio.create_task(watch(client, operation.name))
            await operation.result(timeout_s=300)
            took = time.perf_counter() - began
            updates = await watching
        memory = peak_mb(first)
    await etcd.close()
    lost = sum(
        (folder / f"{name}.log").read_text(errors="replace").count("lease_lost")
        for name in ("coordinator", "other")
    )
    print_table(
        "while one lists every second and one watches",
        ("jobs", "seconds", "jobs/s", f"jobs/s of {million // 10:,} alone", "longest list s", "updates"),
        [
            (
                f"{million:,}",
                f"{took:.1f}",
                f"{million / took:,.0f}",
                f"{million / 10 / alone_s:,.0f}",
                f"{max(taken):.2f}",
                f"{updates}",
            )
        ],
    )
    return figures | {
        "million_jobs_s": round(took, 1),
        "million_jobs_list_max_s": round(max(taken), 2),
        "collect_500k_s": round(removed_s, 1),
        "coordinator_mib": round(memory),
        "results_leases_lost": lost,
    }


def measure(many: int = MANY, million: int = MILLION) -> dict[str, float]:
    return run_on_own_etcd(lambda config, folder, processes: run(config, folder, processes, many, million))


if __name__ == "__main__":
    print_json(**measure(*map(int, sys.argv[1:])))
