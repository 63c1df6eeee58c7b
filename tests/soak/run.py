"""The load of a soak, and the processes that carry it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from soak import samples
from support.repository import TESTS
from support.waiting import eventually

TTL_S = 5
ORDERED_EVERY = 4
"""One table of so many is fed from its backlog; the others are started by callers who wait."""

REMEMBERED = ("history", "request", "requestExpiry", "applied", "auditTrail")
"""What stands below a table for a bounded time or number, and so grows until that is reached."""

DEADLINE_S = 60.0
"""Longest time from a start to its end that is no failure."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a soak is run."""

    minutes: float
    warm_up_s: float
    rate: float
    """Operations per second, over all tables."""
    tables: int
    jobs: int
    """Of each operation."""
    coordinators: int
    executors: int
    samples: int
    options: tuple[str, ...]
    """Flags of etcd."""
    folder: Path


class Soak:
    """One run. ``samples`` fills while it goes on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._etcd = EtcdProcess(settings.folder / "etcd", options=settings.options)
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {"coordinator": [], "executor": []}
        self.samples: list[dict[str, float]] = []
        self.operations = 0
        self.failures: list[str] = []

    async def __aenter__(self) -> Self:
        settings = self._settings
        self._etcd.start()
        self._config = EtcdConfig(endpoints=(self._etcd.endpoint,))
        self._store = EtcdClient(self._config)
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(settings.coordinators)]
        for address in addresses:
            self._start("coordinator", address)
        for _ in range(settings.executors):
            self._start("executor", "none")
        self._client = await AsyncClient(",".join(addresses), timeout_s=30, connect_timeout_s=60).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)
        await self._store.close()
        running = [process for group in self._processes.values() for process in group]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                await asyncio.to_thread(process.wait, 20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._etcd.stop()

    def _start(self, role: str, where: str) -> None:
        number = len(self._processes[role])
        with (self._settings.folder / f"{role}-{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"support.services.{role}_main", where, str(TTL_S)],
                env={**os.environ, **self._config.to_env(), "PYTHONPATH": str(TESTS)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes[role].append(process)

    async def run(self) -> None:
        """The whole of it; raises when a process ends."""
        settings, client = self._settings, self._client
        members = settings.coordinators + settings.executors

        async def all_there() -> bool:
            return len(await client.members()) == members

        await eventually(all_there, 180)
        names = [f"t{number:03d}" for number in range(settings.tables)]
        for name in names:
            await client.create_table(name, f"/nowhere/{name}")
        self._began = time.monotonic()
        self._end = self._began + settings.minutes * 60
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(names):
                feed = self._fed if number % ORDERED_EVERY == 0 else self._called
                group.create_task(self._paced(number, name, feed))
            group.create_task(self._look_around())
            group.create_task(self._sample())

    async def _paced(self, number: int, table: str, feed: Callable[[str, int], Awaitable[None]]) -> None:
        """One operation after the other, at this table's share of the rate, as evenly as they end."""
        every = self._settings.tables / self._settings.rate
        due, count = self._began + every * number / self._settings.tables, 0
        while (now := time.monotonic()) < self._end:
            if due > now:
                await asyncio.sleep(due - now)
            due = max(due + every, time.monotonic() - every)
            try:
                await feed(table, count)
            except Exception as error:
                self.failures.append(f"{table}: {type(error).__name__}: {error}"[:300])
            else:
                self.operations += 1
            count += 1

    async def _called(self, table: str, count: int) -> None:
        operation = await self._client.start(table, "noop", {"partitions": self._settings.jobs})
        await operation.result(timeout_s=DEADLINE_S)

    async def _fed(self, table: str, count: int) -> None:
        """Publish a batch and wait until it is applied."""
        batch = f"{count:08d}"
        await self._client.table(table).enqueue(batch, "noop", {"partitions": self._settings.jobs})
        applied = self._store.keyspace.table(table).applied(batch)

        async def done() -> bool:
            return (await self._store.get(applied)).exists

        await eventually(done, DEADLINE_S, every_s=0.1)

    async def _look_around(self) -> None:
        """What people and programs look at meanwhile."""
        while time.monotonic() < self._end:
            async with aclosing(self._client.operations(page_size=50)) as listing:
                await anext(listing, None)
            await self._client.table("t000").why()
            await asyncio.sleep(5)

    async def _sample(self) -> None:
        every = self._settings.minutes * 60 / self._settings.samples
        before, due = self._used(), self._began + every
        while due <= self._end + every / 2:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += every
            now = self._used()
            done = max(now["operations"] - before["operations"], 1)
            sample = await self._sampled()
            for role in ("etcd", *self._processes):
                sample[f"{role}_cpu_ms_per_operation"] = (now[role] - before[role]) * 1e3 / done
            sample["range_reads_per_operation"] = (now["ranges"] - before["ranges"]) / done
            sample["operations_per_s"] = done / (now["at"] - before["at"])
            self.samples.append(sample)
            before = self._used()  # what looking has cost is not counted

    def _used(self) -> dict[str, float]:
        for role, group in self._processes.items():
            if ended := [process.args for process in group if process.poll() is not None]:
                raise AssertionError(f"a {role} ended: {ended}; its log is in {self._settings.folder}")
        # etcd 3.6 has the first one only, 3.4 counts under the second.
        names = "etcd_mvcc_range_total", "etcd_debugging_mvcc_range_total"
        ranges = samples.etcd_metrics(self._etcd.endpoint, *names)
        return {
            "at": time.monotonic(),
            "operations": self.operations,
            "etcd": samples.cpu_s(self._etcd.pid),
            "ranges": max(ranges.values(), default=0.0),
            **{
                role: sum(samples.cpu_s(process.pid) for process in group)
                for role, group in self._processes.items()
            },
        }

    async def _sampled(self) -> dict[str, float]:
        sample: dict[str, float] = {"at_s": time.monotonic() - self._began}
        for role, group in self._processes.items():
            sample[f"{role}_rss_mib"] = sum(samples.rss_mib(process.pid) for process in group)
            sample[f"{role}_threads"] = sum(samples.threads(process.pid) for process in group)
            sample[f"{role}_descriptors"] = sum(samples.descriptors(process.pid) for process in group)
        present = (await self._store.scan(self._store.keyspace.prefix, keys_only=True)).kvs
        remembered = sum(_is_remembered(kv.key) for kv in present)
        sample["keys"], sample["remembered"] = len(present) - remembered, remembered
        in_use = "etcd_mvcc_db_total_size_in_use_in_bytes"
        sample["etcd_in_use_mib"] = (
            samples.etcd_metrics(self._etcd.endpoint, in_use).get(in_use, 0.0) / samples.MIB
        )
        sample["etcd_memory_mib"] = samples.rss_mib(self._etcd.pid)
        return sample


def _is_remembered(key: bytes) -> bool:
    parts = key.decode(errors="replace").split(".")
    return len(parts) > 2 and (parts[2] in REMEMBERED or parts[1] == "_audit")
