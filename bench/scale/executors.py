"""Operations of one job, with more and more executors and tables.

Real processes: etcd, a coordinator, and executors whose jobs run in threads. One caller keeps one operation
under way in each table, and waits for its end before it starts the next. What etcd read and wrote meanwhile
is what its own metrics say, and the processor time of each part stands beside it. Its counter of reads
counts each compare of a transaction as one, since ``applyCompare`` calls ``Range`` as a read does; so reads
proper are requests for a range and those of a take.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from common import Processes, cpu_s, one_operation, print_table, sized, until_executors

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.etcd.txn import Put, Txn, absent
from distop.process.loop import event_loop

EXECUTORS = sized((1, 4, 16), (1, 2))
TABLES, MANY_TABLES = sized((40, 200), (2, 3))
ROUNDS, WARM_UP = sized((15, 2), (2, 1))
"""Operations of each table."""
AT_ONCE = 16
"""Operations an executor runs at one time."""
ONE_JOB_ROUNDS = sized(100, 3)

READS_OF_A_TAKE = 3
"""The transaction that takes an operation reads its runner's key, its plan and its results."""

READS = "etcd_mvcc_range_total", "etcd_debugging_mvcc_range_total"
"""Names of etcd's counter of reads: etcd 3.6 has the first one only, 3.4 counts under the second."""
REQUESTS = 'grpc_server_started_total{grpc_method="%s",grpc_service="etcdserverpb.KV",grpc_type="unary"}'


@dataclass(frozen=True)
class Figures:
    """The figures of one run: rates, and per operation what etcd did and each part used."""

    ops_per_s: float
    reads_and_compares_per_op: float
    range_requests_per_op: float
    txns_per_op: float
    cpu_ms_per_op: dict[str, float]
    """Milliseconds of processor time by part: all executors together, the callers in this process."""


def counted(endpoint: str) -> tuple[float, float, float]:
    """Reads of ranges, requests for a range, and transactions so far."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as reply:
        lines = dict(line.decode().rsplit(" ", 1) for line in reply if not line.startswith(b"#"))
    range_requests, txns = (float(lines.get(REQUESTS % method, 0)) for method in ("Range", "Txn"))
    return max(float(lines.get(name, 0)) for name in READS), range_requests, txns


async def operations(client: AsyncClient, tables: list[str], rounds: int) -> float:
    """Run so many operations of each table, all tables at once; the seconds that took."""

    async def of(table: str) -> None:
        for _ in range(rounds):
            await one_operation(client, table, 1)

    began = time.perf_counter()
    await asyncio.gather(*(of(table) for table in tables))
    return time.perf_counter() - began


async def sequential_ms(etcd: EtcdClient) -> float:
    """Milliseconds (median) of three conditional transactions, one after the other."""
    taken = []
    for number in range(ONE_JOB_ROUNDS):
        began = time.perf_counter()
        for step in range(3):
            key = b"raw.%d.%d" % (number, step)
            await etcd.txn(Txn((absent(key),), (Put(key, b'{"state":"success"}'),)))
        taken.append(time.perf_counter() - began)
    await etcd.delete(b"raw.", b"raw/")
    return sorted(taken)[len(taken) // 2] * 1e3


async def _run(etcd: EtcdProcess, folder: Path, executors: int, tables: int) -> tuple[Figures, float, float]:
    """Figures, and the median of a lone operation of one job and of its baseline, in milliseconds."""
    config, address = EtcdConfig(endpoints=(etcd.endpoint,)), f"127.0.0.1:{free_port()}"
    names = [f"t{number}" for number in range(tables)]
    raw = EtcdClient(config)
    with Processes(folder, config.to_env()) as processes:
        coordinator = processes.start("coordinator", "coordinator", "--listen", address)
        options = "--master", "none", "--max-operations", str(AT_ONCE)
        pids = [processes.start(f"executor{number}", "executor", *options) for number in range(executors)]
        parts = {
            "coordinator": [coordinator],
            "etcd": [etcd.pid],
            "executors": pids,
            "callers": [os.getpid()],
        }

        def used() -> dict[str, float]:
            return {part: sum(map(cpu_s, of_part)) for part, of_part in parts.items()}

        async with AsyncClient(address, timeout_s=60, connect_timeout_s=60) as client:
            for name in names:
                await client.create_table(name, f"/nowhere/{name}")
            await until_executors(client, count=executors, timeout_s=240)
            await operations(client, names, WARM_UP)
            before, used_before = counted(etcd.endpoint), used()
            seconds = await operations(client, names, ROUNDS)
            reads, ranges, txns = (
                (now - then) / (tables * ROUNDS)
                for now, then in zip(counted(etcd.endpoint), before, strict=True)
            )
            cpu = {part: (now - used_before[part]) / (tables * ROUNDS) * 1e3 for part, now in used().items()}
            lone = sorted([await one_operation(client, names[0], 1) for _ in range(ONE_JOB_ROUNDS)])
        baseline = await sequential_ms(raw)
    await raw.close()
    figures = Figures(tables * ROUNDS / seconds, reads, ranges, txns, cpu)
    return figures, lone[len(lone) // 2] * 1e3, baseline


async def _measure() -> dict[str, float]:
    measured: dict[tuple[int, int], Figures] = {}
    one_job = three_txns = 0.0
    for executors, tables in (*((count, TABLES) for count in EXECUTORS), (1, MANY_TABLES)):
        with (
            tempfile.TemporaryDirectory(prefix="distop-bench-") as folder,
            EtcdProcess(Path(folder) / "etcd") as etcd,
        ):
            figures, lone, baseline = await _run(etcd, Path(folder), executors, tables)
        measured[executors, tables] = figures
        if (executors, tables) == (EXECUTORS[0], TABLES):
            one_job, three_txns = lone, baseline
    rows = [
        (
            str(executors),
            str(tables),
            f"{run.ops_per_s:.0f}",
            f"{run.range_requests_per_op:.2f}",
            f"{run.reads_and_compares_per_op:.1f}",
            f"{run.txns_per_op:.2f}",
        )
        for (executors, tables), run in measured.items()
    ]
    headings = (
        "executors",
        "tables",
        "operations/s",
        "range requests/op",
        "reads and compares/op",
        "requests for transactions/op",
    )
    print_table("operations of one job", headings, rows)
    print_table(
        "processor time of an operation, ms",
        ("executors", "tables", *figures.cpu_ms_per_op, "together"),
        [
            (str(executors), str(tables), *map("{:.2f}".format, parts), f"{sum(parts):.2f}")
            for (executors, tables), run in measured.items()
            if (parts := run.cpu_ms_per_op.values())
        ],
    )
    print_table(
        "one at a time",
        ("one job, p50 ms", "three transactions, p50 ms", "ratio"),
        [(f"{one_job:.1f}", f"{three_txns:.1f}", f"{one_job / three_txns:.1f}")],
    )
    alone, most = measured[EXECUTORS[0], TABLES], EXECUTORS[-1]
    return {
        **{f"ops_per_s_{count}_executors": round(measured[count, TABLES].ops_per_s) for count in EXECUTORS},
        f"ops_per_s_{most}_over_1_executors": round(measured[most, TABLES].ops_per_s / alone.ops_per_s, 2),
        "range_reads_per_op": round(
            max(measured[count, TABLES].range_requests_per_op for count in EXECUTORS) + READS_OF_A_TAKE, 1
        ),
        "reads_and_compares_per_op": round(
            max(measured[count, TABLES].reads_and_compares_per_op for count in EXECUTORS), 1
        ),
        "ops_per_s_200_tables": round(measured[1, MANY_TABLES].ops_per_s),
        **{
            f"cpu_ms_per_op_{part}": round(used, 2)
            for part, used in measured[1, MANY_TABLES].cpu_ms_per_op.items()
        },
        "one_job_p50_ms": round(one_job, 2),
        "one_job_over_three_txns": round(one_job / three_txns, 2),
    }


def measure() -> dict[str, float]:
    """The figures, and their tables on the screen."""
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(_measure())


if __name__ == "__main__":
    from common import print_json

    print_json(**measure())
