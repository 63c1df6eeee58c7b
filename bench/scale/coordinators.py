"""How much more two coordinators do than one.

Real processes: etcd and two coordinators, one of which is drained in every other round and then leads
nothing: what it uses of the processor then is for following who has work, and for calls. Tables are fed from
their backlogs with batches of ``noop`` without jobs, so that the leaders do the work and callers none. On two
cores they share them with etcd.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from common import Processes, cpu_s, print_json, print_table, run_on_own_etcd, sized, until

from distop.client import AsyncClient
from distop.metastore.backlog.batches import BatchRecord, ordering_of
from distop.metastore.backlog.queue import open_gate, set_ordering
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import FREQUENT_COMPACTION, free_port
from distop.metastore.etcd.txn import Get, Put, Txn
from distop.metastore.records.record import encode

TABLES, BATCHES = sized((40, 25), (2, 3))
WARM_UPS, ROUNDS = sized((1, 3), (0, 1))
"""Rounds before, for imports and connections; then with one coordinator, and as many with both."""


class Bench:
    """Tables ``t0`` and so on, and the two coordinators."""

    def __init__(self, client: AsyncClient, etcd: EtcdClient, pids: list[int]) -> None:
        self._client, self._etcd, self._pids = client, etcd, pids
        self._keys = [etcd.keyspace.table(f"t{number}") for number in range(TABLES)]
        self._round = 0

    async def prepare(self) -> None:
        for keys in self._keys:
            await self._client.create_table(keys.name, f"/nowhere/{keys.name}")

    async def round(self) -> tuple[float, list[float]]:
        """Batches per second of a round, and the share of each coordinator in their processor time."""
        self._round += 1
        names = [f"{self._round:03d}-{number:04d}" for number in range(BATCHES)]
        record = encode(BatchRecord(type="noop", argument={"partitions": 0}))
        for keys in self._keys:
            await set_ordering(self._etcd, keys, {"gate": "closed"}, request="")
            await self._etcd.txn(Txn(then=tuple(Put(keys.backlog(name), record) for name in names)))
        # A leader stays for a while with a table it had: who leads is to be chosen anew.
        await until(self._nobody_leads, "the end of the round before")
        before, began = [cpu_s(pid) for pid in self._pids], time.perf_counter()
        await asyncio.gather(*(open_gate(self._etcd, keys, request="") for keys in self._keys))
        await until(lambda: self._drained(names[-1]), "the backlogs", timeout_s=300)
        took = time.perf_counter() - began
        used = [cpu_s(pid) - was for pid, was in zip(self._pids, before, strict=True)]
        return TABLES * BATCHES / took, [share / (sum(used) or 1) for share in used]

    async def _nobody_leads(self) -> bool | None:
        read = await self._etcd.txn(Txn(then=tuple(Get(keys.coordinator) for keys in self._keys)))
        return not any(read.got(index) for index in range(TABLES)) or None

    async def _drained(self, last: str) -> bool | None:
        read = await self._etcd.txn(Txn(then=tuple(Get(keys.ordering) for keys in self._keys)))
        orderings = [ordering_of(read.single(index, keys.ordering)) for index, keys in enumerate(self._keys)]
        return all(ordering.last >= last for ordering in orderings) or None


async def measured(config: EtcdConfig, processes: Processes) -> dict[str, float]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    pids = [
        processes.start(f"coordinator-{number}", "coordinator", "--listen", address)
        for number, address in enumerate(addresses)
    ]
    etcd = EtcdClient(config)
    rates: dict[int, list[float]] = {1: [], 2: []}
    shares: dict[int, list[float]] = {}
    async with AsyncClient(",".join(addresses), timeout_s=30, connect_timeout_s=30) as client:

        async def both() -> bool | None:
            return len(await client.members()) == len(addresses) or None

        await until(both, "the coordinators")
        bench = Bench(client, etcd, pids)
        await bench.prepare()
        for _ in range(WARM_UPS):
            await bench.round()
        for _ in range(ROUNDS):
            for count in (1, 2):
                await client.drain(addresses[1], undo=count == 2)
                rate, shares[count] = await bench.round()
                rates[count].append(rate)
    await etcd.close()
    single, both_lead = (statistics.median(rates[count]) for count in (1, 2))
    rows = [
        (str(count), f"{statistics.median(rates[count]):.0f}", " and ".join(f"{part:.0%}" for part in share))
        for count, share in shares.items()
    ]
    print_table(
        f"{TABLES} tables fed from backlogs", ("coordinators", "batches/s", "share of each in the time"), rows
    )
    return {
        "coordinators_1_per_s": round(single, 1),
        "coordinators_2_per_s": round(both_lead, 1),
        "coordinators_2_over_1": round(both_lead / single, 3),
        "coordinators_lesser_share": round(min(shares[2]), 3),
    }


def measure() -> dict[str, float]:
    return run_on_own_etcd(lambda config, folder, processes: measured(config, processes), FREQUENT_COMPACTION)


if __name__ == "__main__":
    print_json(**measure())
