"""What running jobs as an operation costs on Spark, against Spark's own cheapest stage.

    make bench-spark

distop: an operation of N trivial jobs from the StartOperation call to its end, on ``distop executor --master
local[2]``: every job started, marked in etcd, counted by a coordinator. Bare: one Spark stage of N trivial
Python tasks, in a session of its own on the same machine: once with the settings of distop's runner, once
with Spark's defaults. One after the other, each in a fresh process, each warmed up.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from common import Processes, one_operation, print_json, print_table, run_on_own_etcd, sized, until_executors

from distop.client import AsyncClient
from distop.metastore.etcd.embedded import free_port

MASTER = "local[2]"
SIZES = SMALLER, LARGER = sized((1_000, 10_000), (10, 20))
ROUNDS = sized(3, 1)
TABLE = "bench"


def bare_stage(tuned: bool, *sizes: int) -> dict[int, float]:
    """Seconds (median) of a bare stage of so many tasks."""
    script = Path(__file__).with_name("bare_stage.py")
    rounds = ROUNDS if tuned else 1
    command = [
        sys.executable,
        str(script),
        MASTER,
        "tuned" if tuned else "default",
        str(rounds),
        *map(str, sizes),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return {int(size): seconds for size, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


async def operations(processes: Processes) -> dict[int, float]:
    """Seconds (median) of an operation of so many jobs."""
    address = f"127.0.0.1:{free_port()}"
    processes.start("coordinator", "coordinator", "--listen", address)
    processes.start("executor", "executor", "--master", MASTER)
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=30) as client:
        await client.create_table(TABLE, "/nowhere")
        await until_executors(client)
        await one_operation(client, TABLE, sized(100, 2))
        return {
            size: statistics.median([await one_operation(client, TABLE, size) for _ in range(ROUNDS)])
            for size in SIZES
        }


def main() -> None:
    distop = run_on_own_etcd(lambda config, folder, processes: operations(processes))
    tuned = bare_stage(True, *SIZES)
    default = bare_stage(False, SMALLER)
    rows = [
        (
            f"{size:,}",
            f"{distop[size]:.2f}",
            f"{tuned[size]:.2f}",
            f"{distop[size] / tuned[size]:.2f}",
            f"{default[size]:.2f}" if size in default else "",
            f"{distop[size] / default[size]:.2f}" if size in default else "",
        )
        for size in SIZES
    ]
    headings = (
        "jobs",
        "operation s",
        "bare stage s",
        "distop / bare",
        "bare, Spark's defaults s",
        "distop / bare",
    )
    print_table(f"trivial jobs on Spark, {MASTER}", headings, rows)
    print_json(
        ratio_1k=round(distop[SMALLER] / tuned[SMALLER], 3),
        ratio_10k=round(distop[LARGER] / tuned[LARGER], 3),
        ratio_1k_default=round(distop[SMALLER] / default[SMALLER], 3),
    )


if __name__ == "__main__":
    main()
