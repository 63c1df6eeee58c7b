"""How long a table is without a leader: after a crash, and after an orderly hand-over.

    make bench-failover

Real processes, a real etcd, 20 rounds each. A crash is ``kill -9`` of the coordinator that leads a table with
a running operation; what counts is the time until the other coordinator's leadership stands in etcd, beyond
the TTL of the lease, which is the price of not knowing. A hand-over is SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from common import Processes, print_json, print_table, until
from rich.progress import track

from distop.client import AsyncClient
from distop.metastore.client import EtcdClient
from distop.metastore.config import EtcdConfig
from distop.metastore.embedded import EtcdProcess, free_port
from distop.metastore.records import LeaderRecord, MemberRecord, decode
from distop.metastore.watch import watch

ROUNDS = 20
LEASE_TTL_S = 2
TABLE = "bench"


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


async def measure(etcd: EtcdProcess, processes: Processes) -> None:
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,)))
    bench = Bench(client, processes)
    addresses = [bench.start_coordinator() for _ in range(2)]
    await bench.until_two()
    async with AsyncClient(",".join(addresses), timeout_s=20, connect_timeout_s=20) as caller:
        await caller.create_table(TABLE, "/nowhere")
        await caller.start(TABLE, "noop", {"partitions": 1})

    async def led() -> bool | None:
        return (await client.get(client.keyspace.table(TABLE).coordinator)).exists or None

    await until(led, "a leader")
    crashes = [await bench.round(signal.SIGKILL) for _ in track(range(ROUNDS), "crashes")]
    graceful = [await bench.round(signal.SIGTERM) for _ in track(range(ROUNDS), "hand-overs")]
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
    print_json(crash_over_ttl_s_max=round(over[-1], 3), graceful_ms_max=round(waits[-1], 1))


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="distop-bench-") as folder,
        EtcdProcess(Path(folder) / "etcd") as etcd,
        Processes(Path(folder), EtcdConfig(endpoints=(etcd.endpoint,)).to_env()) as processes,
    ):
        asyncio.run(measure(etcd, processes))


if __name__ == "__main__":
    main()
