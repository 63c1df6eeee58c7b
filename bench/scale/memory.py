"""What one more of something takes: memory of the services, bytes in etcd.

    make bench-scale ARGS=memory

Real processes: etcd, a coordinator with its page, a sidecar, an executor without Spark. Resident memory is
read from Linux before and after so many more tables, operations, jobs and watchers; so the figures hold on a
busy machine, too.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from common import Processes, own_etcd, print_json, print_table, sized, until
from scale.tables import make_tables
from scale.watchers import Watchers

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.process.loop import event_loop

TABLES = sized(int(os.environ.get("DISTOP_BENCH_TABLES", "10000")), 10)
WAITING, JOBS, WATCHERS, ENDED = sized((500, 100_000, 1000, 300), (3, 100, 3, 3))
TYPE = "noop"
KEYS = "keys and values"


def resident(pid: int) -> int:
    """Resident bytes of a process now; :func:`most_resident` counts from here."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _bytes(pid, "VmRSS:")


def most_resident(pid: int) -> int:
    """The most bytes that were resident since :func:`resident` was called."""
    return _bytes(pid, "VmHWM:")


def _bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


async def stored(client: EtcdClient, prefix: bytes, count: int) -> float:
    """Bytes of keys and values below a prefix, for each of so many."""
    kvs = (await client.scan(prefix)).kvs
    return sum(len(kv.key) + len(kv.value) for kv in kvs) / count


async def run(etcd: EtcdProcess, folder: Path, processes: Processes) -> dict[str, float]:
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint,), timeout_s=30))
    address = f"127.0.0.1:{free_port()}"
    coordinator = processes.start("coordinator", "coordinator", "--listen", address, "--web", "127.0.0.1:0")
    sidecar = processes.start("sidecar", "sidecar", "--folder", str(folder / "sidecar"))
    keys = client.keyspace

    async def members(count: int) -> bool | None:
        registered = [*(await client.scan(keys.coordinators)).kvs, *(await client.scan(keys.executors)).kvs]
        return len(registered) >= count or None

    figures: dict[str, float] = {}
    rows: list[tuple[str, str, str]] = []

    def note(name: str, label: str, bytes_each: float, of: str) -> None:
        figures[f"memory_{name}"] = round(bytes_each)
        rows.append((label, of, f"{bytes_each:,.0f}"))

    await until(lambda: members(2), "coordinator and sidecar")
    async with AsyncClient(address, timeout_s=120) as sdk:
        await sdk.create_table("one", location=(folder / "one").as_uri(), format="files")
        note("coordinator", "at rest", resident(coordinator), "coordinator")
        note("sidecar", "at rest", resident(sidecar), "sidecar")

        before_c, before_e = resident(coordinator), resident(etcd.pid)
        await make_tables(client, 0, TABLES)
        async for _ in sdk.tables(page_size=1000):
            pass
        note(
            "idle_table",
            f"idle table ({TABLES:,})",
            (resident(coordinator) - before_c) / TABLES,
            "coordinator",
        )
        note("idle_table_etcd", "idle table", (resident(etcd.pid) - before_e) / TABLES, "etcd")
        note("idle_table_stored", "idle table", await stored(client, keys.prefix, TABLES), KEYS)

        before_c = resident(coordinator)
        waiting = [await sdk.start(f"house.t{n:05d}", TYPE, {"partitions": 1}) for n in range(WAITING)]
        note(
            "operation",
            f"operation led ({WAITING})",
            (resident(coordinator) - before_c) / WAITING,
            "coordinator",
        )

        before_c = resident(coordinator)
        watched = await sdk.start("one", TYPE, {"partitions": 1})
        watchers = await Watchers.start(address, watched.name, WATCHERS)
        note(
            "watcher", f"watcher ({WATCHERS:,})", (resident(coordinator) - before_c) / WATCHERS, "coordinator"
        )

        executor = processes.start("executor", "executor", "--master", "none")
        for operation in [*waiting, watched]:
            await sdk.operation(operation.name).wait(timeout_s=300)
        await watchers.updates()
        note("executor", "at rest, without Spark", resident(executor), "executor")

        services = {"coordinator": coordinator, "executor": executor, "etcd": etcd.pid}
        before = {name: resident(pid) for name, pid in services.items()}
        large = await sdk.start("one", TYPE, {"partitions": JOBS})
        await large.wait(timeout_s=300)
        for name, pid in services.items():
            most = (most_resident(pid) - before[name]) / JOBS
            note(f"job_{name}", f"job of one operation ({JOBS:,}), at most", most, name)

        table = keys.table("one")
        for _ in range(ENDED):
            done = await sdk.start("one", TYPE, {"partitions": 1})
            await done.wait(timeout_s=60)
        kept = len((await client.scan(table.history_prefix)).kvs)
        note(
            "history_stored",
            f"entry of the history ({kept})",
            await stored(client, table.history_prefix, kept),
            KEYS,
        )
        note(
            "table_stored",
            "its table with all its keys, each entry",
            await stored(client, table.prefix, kept),
            KEYS,
        )
    await client.close()
    print_table("what one of them takes", ("what", "of", "bytes"), rows)
    return figures


def measure() -> dict[str, float]:
    with own_etcd() as (etcd, folder, processes), asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(run(etcd, folder, processes))


if __name__ == "__main__":
    print_json(**measure())
