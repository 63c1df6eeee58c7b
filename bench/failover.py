"""How long a table is without a leader: after a crash, and after an orderly hand-over.

    make bench-failover

Real processes, a real etcd, 20 rounds each. A crash is ``kill -9`` of the coordinator that leads a table with
a running operation; what counts is the time until the other coordinator's leadership stands in etcd, beyond
the TTL of the lease, which is the price of not knowing. A hand-over is SIGTERM.

Then, in this process: the time a new leader needs from winning a table to knowing an operation of 10,000
jobs, 9,000 of which have a result.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

from common import Processes, own_etcd, print_json, print_table, sized, until
from rich.progress import track

from distop.client import AsyncClient
from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.driver import TableDriver
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.work.work import Work
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.etcd.txn import Put, Txn, equals
from distop.metastore.etcd.watch import watch
from distop.metastore.members.lease import LeaseSession, campaign, resign
from distop.metastore.operations.jobs import success_record
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING
from distop.metastore.records.record import decode
from distop.operations.registry import Registry

ROUNDS = sized(20, 1)
LEASE_TTL_S = 2
TABLE, LARGE = "bench", "large"
REBUILDS, JOBS, MARKED = sized((10, 10_000, 9_000), (1, 200, 100))


class Bench:
    """One table with an operation that never ends (nobody runs its job), and two coordinators."""

    def __init__(self, client: EtcdClient, processes: Processes) -> None:
        self._client = client
        self._processes = processes
        self._key = client.keyspace.table(TABLE).coordinator

    def start_coordinator(self) -> str:
        address = f"127.0.0.1:{free_port()}"
        listen = ("--listen", address, "--lease-ttl", str(LEASE_TTL_S))
        self._processes.start("coordinator", "coordinator", *listen)
        return address

    async def members(self) -> list[MemberRecord]:
        listing = await self._client.scan(self._client.keyspace.coordinators)
        return [decode(kv.value, MemberRecord, kv.key) for kv in listing.kvs]

    async def until_two(self) -> list[MemberRecord]:
        async def two() -> list[MemberRecord] | None:
            members = await self.members()
            return members if len(members) == 2 else None

        return await until(two, "two coordinators")

    async def round(self, signum: signal.Signals) -> float:
        """End the leader's process by ``signum``; seconds until another leadership stands in etcd."""
        members = await self.until_two()
        async with aclosing(watch(self._client, self._key)) as changes:
            await anext(changes)
            leader = await self._client.get(self._key)
            name = decode(leader.value, LeaderRecord, leader.key).member
            pid = next(member.pid for member in members if member.id == name)
            began = time.monotonic()
            os.kill(pid, signum)
            async for batch in changes:
                new = [
                    event
                    for event in batch.events
                    if event.kind == "put" and event.kv.create_revision > leader.create_revision
                ]
                if new:
                    took = time.monotonic() - began
                    break
        self._processes.reap(pid)
        self.start_coordinator()
        await self.until_two()
        return took


async def rebuild(client: EtcdClient, table: str) -> list[float]:
    """Seconds from winning the table to having its one operation as etcd has it, :data:`REBUILDS` times.

    Each time by a leader with a lease of its own, that has never seen the table before.
    """
    keys = client.keyspace.table(table)
    times = []
    with ThreadPoolExecutor(1) as threads:
        for _ in range(REBUILDS):
            async with LeaseSession(client, LEASE_TTL_S) as session:
                epoch = await campaign(client, keys, session, LeaderRecord(member="bench"))
                if epoch is None:
                    raise SystemExit(f"somebody else leads {table}")
                began = time.perf_counter()
                work = Work(Registry(), threads)
                services = Services(client=client, planning=work, publishing=work, answering=work)
                driver = TableDriver(services, Term(keys, epoch, session), Completion(services))
                driving = asyncio.create_task(driver.run())
                await until(partial(_known, driver), "the operation to be known")
                times.append(time.perf_counter() - began)
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
                await resign(client, epoch)
    return times


async def _known(driver: TableDriver) -> bool | None:
    return any(tracked.jobs.succeeded == MARKED for tracked in driver.tracked()) or None


async def begin_large(client: EtcdClient, caller: AsyncClient, table: str) -> None:
    """An operation of :data:`JOBS` jobs that nobody runs, :data:`MARKED` of which have a result."""
    await caller.create_table(table, f"/nowhere/{table}")
    started = await caller.start(table, "noop", {"partitions": JOBS})
    op = client.keyspace.operation(OperationId.parse(started.name))
    value = success_record("bench", {}, time.time())
    for first in range(0, MARKED, 100):
        puts = tuple(Put(op.job_state(str(number)), value) for number in range(first, first + 100))
        await client.txn(Txn((equals(op.state, RUNNING),), puts))


async def measure(etcd: EtcdProcess, processes: Processes) -> None:
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,)))
    bench = Bench(client, processes)
    addresses = [bench.start_coordinator() for _ in range(2)]
    await bench.until_two()
    async with AsyncClient(",".join(addresses), timeout_s=20, connect_timeout_s=20) as caller:
        await caller.create_table(TABLE, f"/nowhere/{TABLE}")
        await caller.start(TABLE, "noop", {"partitions": 1})
        await begin_large(client, caller, LARGE)

    async def led() -> bool | None:
        return (await client.get(client.keyspace.table(TABLE).coordinator)).exists or None

    await until(led, "a leader")
    crashes = [await bench.round(signal.SIGKILL) for _ in track(range(ROUNDS), "crashes")]
    graceful = [await bench.round(signal.SIGTERM) for _ in track(range(ROUNDS), "hand-overs")]
    # Nobody else may lead now.
    processes.end_all()
    large = client.keyspace.table(LARGE).coordinator

    async def not_led() -> bool | None:
        return not (await client.get(large)).exists or None

    await until(not_led, "the end of the last leader")
    rebuilds = sorted(await rebuild(client, LARGE))
    await client.close()
    over = sorted(took - LEASE_TTL_S for took in crashes)
    waits = sorted(took * 1000 for took in graceful)
    print_table(
        f"without a leader, {ROUNDS} rounds each, TTL {LEASE_TTL_S} s",
        ("", "median", "max", "bar"),
        [
            ("crash, beyond the TTL", f"{over[ROUNDS // 2]:+.2f} s", f"{over[-1]:+.2f} s", "<= +0.50 s"),
            ("hand-over", f"{waits[ROUNDS // 2]:.0f} ms", f"{waits[-1]:.0f} ms", "<= 50 ms"),
        ],
    )
    print_table(
        f"a new leader, from winning to knowing {JOBS:,} jobs with {MARKED:,} results, {REBUILDS} times",
        ("", "median", "max", "bar"),
        [("rebuild", f"{rebuilds[REBUILDS // 2]:.2f} s", f"{rebuilds[-1]:.2f} s", "<= 1.00 s")],
    )
    print_json(
        crash_over_ttl_s_max=round(over[-1], 3),
        graceful_ms_max=round(waits[-1], 1),
        rebuild_10k_s=round(rebuilds[-1], 3),
    )


def main() -> None:
    with own_etcd() as (etcd, _, processes):
        asyncio.run(measure(etcd, processes))


if __name__ == "__main__":
    main()
