"""How long pages take, and what they hold in memory, with 10,000 tables and an operation of 100,000 jobs.

    make bench-page

The tables are written into etcd in bulk, each with one ended operation. Another one has an operation that an
executor of the bench takes and marks with the product's own transactions: most jobs are done, some have
failed, some were tried again. One coordinator answers over HTTP. Each look is a new one: nothing is cached
any more. The baseline is a page of the same installation before it was filled.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from statistics import median
from urllib.parse import quote

from common import Processes, own_etcd, peak_mb, print_json, print_table, sized, until
from scale.tables import fetch, make_tables, members, start_coordinator

from distop.client import AsyncClient, AsyncOperationHandle
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import (
    MAX_GROUP,
    Mark,
    count_try,
    failure_record,
    flat_txn,
    success_record,
)
from distop.metastore.operations.runs import Run, take_operation
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RunnerRecord
from distop.metastore.records.record import encode

TABLES = sized(10_000, 10)
JOBS = sized(100_000, 300)
FAILED_OF, TRIED = sized((400, 50), (50, 2))
"""One job of so many has failed; so many were tried again."""
ROUNDS = sized(5, 1)
REST_S = sized(6.0, 0.0)
"""Seconds between two looks at a page: longer than anything is cached that nobody changes."""
TABLE = "house"
OPERATION = OperationId(TABLE, "noop", 1)


def paths(page: str, **query: str) -> str:
    return f"{page}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())


PAGES = {
    "home": ("/", paths("/", after="house.t00050")),
    "operation": (
        paths("/operation", name=str(OPERATION)),
        paths("/operation", name=str(OPERATION), jobs="failed"),
        paths("/operation", name=str(OPERATION), jobs="waiting"),
        paths("/api/jobs", name=str(OPERATION)),
    ),
    "table": (
        paths("/table", name=TABLE),
        paths("/table", name="house.t00007"),
        paths("/table/batches", name=TABLE),
    ),
    "operations": ("/operations", paths("/operations", states="failed"), paths("/operations", type="merge")),
    "search": (paths("/search", q="t0999"), paths("/search", q="nowhere")),
    "members": ("/members",),
}
"""The pages of each figure: the slowest of them counts."""


async def looks(web: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each look, by path."""
    taken: dict[str, list[float]] = {path: [] for group in PAGES.values() for path in group}
    for number in range(rounds):
        for path, times in taken.items():
            began = time.perf_counter()
            await asyncio.to_thread(fetch, f"http://{web}{path}")
            times.append((time.perf_counter() - began) * 1000)
        if number < rounds - 1:
            await asyncio.sleep(REST_S)
    return taken


async def mark_some(client: EtcdClient, run: Run, jobs: range) -> None:
    """Results of jobs: one of :data:`FAILED_OF` has failed."""
    gate = asyncio.Semaphore(8)

    async def write(group: range) -> None:
        now = time.time()
        bad = failure_record("a1", "JOB_FAILED", "ValueError: line 17 has no column id", now)
        good = success_record("a1", {"rows": 1000}, now)
        marks = [Mark(str(number), "a1", bad if number % FAILED_OF == 1 else good) for number in group]
        async with gate:
            if not (await client.txn(flat_txn(run, marks))).succeeded:
                raise SystemExit("the operation does not take the results of its jobs")

    await asyncio.gather(*(write(jobs[at : at + MAX_GROUP]) for at in range(0, len(jobs), MAX_GROUP)))


async def begin(
    client: EtcdClient, sdk: AsyncClient, session: LeaseSession
) -> tuple[AsyncOperationHandle, Run]:
    """The operation, taken by an executor, with most of its jobs ended."""
    record = MemberRecord(id="bench", host="bench", types=["noop"])
    await client.put(client.keyspace.executor("bench"), encode(record), lease=session.lease_id)
    await sdk.create_table(TABLE, location="file:///nowhere/house", format="files")
    operation = await sdk.start(TABLE, "noop", {"partitions": JOBS}, max_failed_partitions=-1)
    keys = client.keyspace.operation(OPERATION)
    runner = RunnerRecord(member="bench", started_at=time.time())
    taken = await take_operation(client, keys, runner, session.lease_id)
    if operation.name != str(OPERATION) or taken is None:
        raise SystemExit(f"{operation.name} cannot be taken")
    for number in range(TRIED):
        await count_try(client, taken.run, str(number * 10), f"a{number}", "SPARK: the worker was lost")
    await mark_some(client, taken.run, range(JOBS * 7 // 10))
    return operation, taken.run


def slowest(taken: Mapping[str, list[float]], paths: tuple[str, ...]) -> list[float]:
    """The times of that page whose median is highest."""
    return max((taken[path] for path in paths), key=median)


async def run(etcd: EtcdProcess, processes: Processes) -> dict[str, float]:
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,), timeout_s=30))
    address, web, pid = start_coordinator(processes, "coordinator")
    await until(lambda: members(client, 1), "the coordinator")
    async with AsyncClient(address, timeout_s=120) as sdk, LeaseSession(client, 60) as session:
        await asyncio.to_thread(fetch, f"http://{web}/")  # what renders pages is loaded
        began = time.perf_counter()
        await asyncio.to_thread(fetch, f"http://{web}/members")
        empty = (time.perf_counter() - began) * 1000
        await make_tables(client, 0, TABLES)
        operation, held = await begin(client, sdk, session)
        live = await looks(web, ROUNDS)
        await mark_some(client, held, range(JOBS * 7 // 10, JOBS))
        await operation.wait(timeout_s=120)
        ended = await looks(web, ROUNDS)
    await client.close()
    rows, figures = list[tuple[str, str, str, str, str]](), {"empty_page_ms": round(empty, 1)}
    for name, group in PAGES.items():
        for path in group:
            each = (f"{pick(times):,.0f}" for times in (live[path], ended[path]) for pick in (median, max))
            rows.append((path, *each))  # type: ignore[arg-type]
        worst = max(slowest(live, group), slowest(ended, group), key=median)
        figures |= {
            f"{name}_page_ms" if name != "home" else "home_ms": round(median(worst), 1),
            f"{name}_worst_ms": round(max(max(taken[path]) for taken in (live, ended) for path in group), 1),
        }
    columns = ("", "running: median ms", "worst", "ended: median ms", "worst")
    print_table(f"pages with {TABLES:,} tables and {JOBS:,} jobs, {ROUNDS} looks each", columns, rows)
    return figures | {"rss_mb": round(peak_mb(pid))}


def measure() -> dict[str, float]:
    with own_etcd() as (etcd, _, processes):
        try:
            return asyncio.run(run(etcd, processes))
        except BaseException:
            print(processes.log_of("coordinator"), file=sys.stderr)
            raise


if __name__ == "__main__":
    print_json(**measure())
