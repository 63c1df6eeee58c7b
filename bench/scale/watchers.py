"""How much those who watch an operation slow it down.

An operation of 10,000 trivial jobs is started and held; so many watchers attach, over connections of their
own process; then it is let go, and timed until one caller knows of its end. The baseline is one
watcher in the same run.
Real processes: etcd, a coordinator, a sidecar, an executor, the watchers.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import grpc.aio
from common import Processes, print_json, print_table, run_on_own_etcd, sized, until_executors

from distop.client import AsyncClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc

COUNTS, ROUNDS, JOBS = sized(((1, 50, 200, 500), 3, 10_000), ((1, 3), 1, 100))
MOST = COUNTS[-1]
PER_CHANNEL = 100
TABLE = "bench"


class Watchers:
    """A process with so many watchers of one operation."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, address: str, operation: str, count: int) -> Watchers:
        """Start them; when this returns, each has received the operation's first state."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "watch", address, operation, str(count), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 120)
        return cls(process)

    async def updates(self) -> float:
        """Wait for their end; the mean number of updates that one of them received."""
        out, _ = await asyncio.wait_for(self._process.communicate(), 120)
        return float(out)


async def watch(address: str, operation: str, count: int) -> None:
    """The process of the watchers: prints ``attached`` once all are, then their mean number of updates."""
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-count // PER_CHANNEL))
    ]
    attached, updates = [], [0]

    async def watcher(number: int) -> None:
        stub = distop_pb2_grpc.OperationServiceStub(channels[number // PER_CHANNEL])
        request = pb.WatchOperationRequest(name=operation)
        async for update in stub.WatchOperation(request):
            updates[0] += 1
            if update.operation.HasField("finished_at"):
                return
            if number not in attached:
                attached.append(number)
                if len(attached) == count:
                    print("attached", flush=True)
        raise SystemExit("a stream has ended before the operation")

    await asyncio.gather(*map(watcher, range(count)))
    print(updates[0] / count)


async def run(config: EtcdConfig, folder: Path, processes: Processes, jobs: int) -> dict[str, float]:
    address = f"127.0.0.1:{free_port()}"
    processes.start("coordinator", "coordinator", "--listen", address)
    processes.start("sidecar", "sidecar")
    script = Path(__file__).parents[1] / "socket_executor.py"
    held = folder / "held"
    processes.start_script("executor", script, str(folder / "marks.jsonl"), str(held))
    log = folder / "coordinator.log"
    taken: dict[int, list[float]] = {}
    sent: dict[int, float] = {}
    async with AsyncClient(address, timeout_s=60, connect_timeout_s=60) as client:
        await client.create_table(TABLE, "/nowhere")
        await until_executors(client)
        for count in (1, *COUNTS):  # the first only warms up
            taken[count] = []
            for _ in range(ROUNDS):
                held.touch()
                operation = await client.start(TABLE, "noop", {"partitions": jobs})
                watchers = await Watchers.start(address, operation.name, count)
                end = asyncio.create_task(operation.wait(timeout_s=300))
                began = time.perf_counter()
                held.unlink()
                (await end).raise_for_outcome()
                taken[count].append(time.perf_counter() - began)
                sent[count] = await watchers.updates()
    lost = log.read_text(errors="replace").count("lease_lost")
    median = {count: statistics.median(times) for count, times in taken.items()}
    print_table(
        f"an operation of {jobs:,} jobs, from letting it go to its end; leases lost: {lost}",
        ("watchers", "seconds (median)", "x one watcher", "updates to each"),
        [
            (f"{count}", f"{median[count]:.2f}", f"{median[count] / median[1]:.2f}", f"{sent[count]:.0f}")
            for count in COUNTS
        ],
    )
    return {
        "watchers_1_s": round(median[1], 3),
        "watchers_500_s": round(median[MOST], 3),
        "watchers_500_slowdown": round(median[MOST] / median[1], 2),
        "watchers_leases_lost": lost,
    }


def measure(jobs: int = JOBS) -> dict[str, float]:
    return run_on_own_etcd(lambda config, folder, processes: run(config, folder, processes, jobs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["watch"]:
        asyncio.run(watch(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        print_json(**measure(*map(int, sys.argv[1:])))
