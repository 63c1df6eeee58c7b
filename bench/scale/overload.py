"""What is finished when more comes than a coordinator can take, and which answers callers get.

    make bench-scale ARGS=overload

Real processes: etcd, one coordinator, and the callers in this one. Operations without jobs, one per object,
on 20 tables: what is measured is the way from a start to its end. The baseline is the most that callers get
who wait for each end before they start the next, of several numbers of them. Then three times as many starts
a second come as that, whatever becomes of those before; what is finished a second is compared with the most,
and so is the processor time of what is finished, which says more on a machine that others keep busy.
Last, 1,000 starts come at once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from common import sized

from distop.errors import Busy, DistopError
from distop.operations.api import DistributedOperation, Plan, PlanRequest, Scope
from distop.operations.job import JobContext

TABLES = sized(20, 2)
CALLERS = sized((8, 16, 32), (2,))
WINDOW_S = sized(float(os.environ.get("DISTOP_BENCH_SECONDS", "10")), 0.4)
DEADLINE_S = 10.0
BURST = sized(1000, 10)


class Quick(DistributedOperation):
    """A type without jobs to do, one operation per object."""

    type = "quick"
    scope = Scope.PER_OBJECT

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(argument={})

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        return None


class Callers:
    """Callers that start operations and count their outcomes: finished, busy (refused in time), late."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._numbers = itertools.count()
        self.finished = self.busy = self.late = 0

    async def run(self) -> None:
        """Start one operation and wait for its end; count the outcome."""
        number = next(self._numbers)
        began = time.monotonic()
        try:
            operation = await self._client.start(f"t{number % TABLES}", "quick", object=f"o{number}")
            await operation.wait(timeout_s=60)
        except DistopError as error:
            in_time = time.monotonic() - began < DEADLINE_S - 0.5
            self.busy += isinstance(error, Busy) and in_time
            self.late += not in_time
        else:
            self.finished += 1

    async def closed(self, callers: int, seconds: float) -> float:
        """Operations per second of callers who wait for each end."""
        until, before = time.monotonic() + seconds, self.finished

        async def caller() -> None:
            while time.monotonic() < until:
                await self.run()

        await asyncio.gather(*(caller() for _ in range(callers)))
        return (self.finished - before) / seconds

    async def open(self, per_s: float, seconds: float) -> float:
        """Operations per second that are finished while so many come a second."""
        running: set[asyncio.Task[None]] = set()
        began, came, before = time.monotonic(), 0, self.finished
        while (now := time.monotonic()) < began + seconds:
            while came < (now - began) * per_s:
                task = asyncio.create_task(self.run())
                running.add(task)
                task.add_done_callback(running.discard)
                came += 1
            await asyncio.sleep(0.01)
        finished = (self.finished - before) / seconds
        await asyncio.gather(*running)
        return finished

    async def burst(self, count: int) -> float:
        """Seconds until as many operations as come at once are over."""
        began = time.monotonic()
        await asyncio.gather(*(self.run() for _ in range(count)))
        return time.monotonic() - began


async def _used(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Processors that each process keeps busy for so long."""
    from common import cpu_s

    before = {name: cpu_s(pid) for name, pid in pids.items()}
    await asyncio.sleep(seconds)
    return {name: (cpu_s(pid) - before[name]) / seconds for name, pid in pids.items()}


async def _measured(address: str, pids: Mapping[str, int]) -> dict[str, float]:
    from distop.client import AsyncClient

    async with AsyncClient(address, timeout_s=DEADLINE_S, connect_timeout_s=30) as client:
        for number in range(TABLES):
            await client.create_table(f"t{number}", f"/nowhere/t{number}")
        callers = Callers(client)
        await callers.closed(8, WINDOW_S / 4)  # warm
        best, used_at_best = 0.0, dict[str, float]()
        for count in CALLERS:
            seconds = WINDOW_S / 2
            rate, used = await asyncio.gather(callers.closed(count, seconds), _used(pids, seconds))
            if rate > best:
                best, used_at_best = rate, used
        under_load, used = await asyncio.gather(callers.open(3 * best, WINDOW_S), _used(pids, WINDOW_S))
        busy, late = callers.busy, callers.late
    async with AsyncClient(address, timeout_s=60, connect_timeout_s=30) as client:
        callers = Callers(client)
        callers._numbers = itertools.count(10_000_000)
        took = await callers.burst(BURST)
    return {
        "overload_best_per_s": round(best, 1),
        "overload_per_s": round(under_load, 1),
        "overload_goodput": round(under_load / best, 3),
        "overload_best_cpu_ms_per_op": round(sum(used_at_best.values()) / best * 1e3, 2),
        "overload_cpu_ms_per_op": round(sum(used.values()) / max(under_load, 1.0) * 1e3, 2),
        **{f"overload_processors_{name}": round(share, 2) for name, share in used.items()},
        "busy_seen": float(busy + callers.busy),
        "overload_past_deadline": float(late),
        "burst_1000_s": round(took, 2),
        "burst_1000_failed": float(BURST - callers.finished),
    }


def measure() -> dict[str, float]:
    """The figures, and a table of them."""
    from common import Processes, print_table

    from distop.metastore.etcd.config import EtcdConfig
    from distop.metastore.etcd.embedded import EtcdProcess, free_port
    from distop.process.loop import event_loop

    with tempfile.TemporaryDirectory() as folder, EtcdProcess(Path(folder, "etcd")) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,))
        here = Path(__file__).parent
        environment = {
            **config.to_env(),
            "DISTOP_OPERATIONS": "overload:Quick",
            "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
        }
        with Processes(Path(folder), environment) as processes:
            address = f"127.0.0.1:{free_port()}"
            coordinator = processes.start("coordinator", "coordinator", "--listen", address)
            pids = {"coordinator": coordinator, "etcd": etcd.pid, "callers": os.getpid()}
            with asyncio.Runner(loop_factory=event_loop) as runner:
                try:
                    figures = runner.run(_measured(address, pids))
                except Exception:
                    print(processes.log_of("coordinator"))
                    raise
            log = Path(folder, "coordinator.log").read_text()
    figures["overload_leases_lost"] = float(log.count("lease_lost"))
    rows = [(name, f"{value:,.10g}") for name, value in figures.items()]
    print_table("What hangs, and overload", ("", ""), rows)
    return figures


if __name__ == "__main__":
    from common import print_json

    print_json(**measure())
