"""What security costs: the same operations with all of it on and with none, in turns.

    make bench-security

Two installations of real processes stand side by side, each with an etcd, a coordinator, a sidecar and an
executor of its own, as in ``completions.py``. One is what ``distop dev --secure`` makes: TLS to the
coordinator and to etcd, a token with each call, a policy. The clock runs from the StartOperation call until
the caller knows of its end. Each operation of one is followed by the same of the other; the one that
begins changes. The rate is compared round by round: the machine may be busier later.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from common import Processes, one_operation, print_json, print_table, sized, until_collected, until_executors

from distop.cli.secure import ADMIN, GRANTS, Security
from distop.client import AsyncClient, Credentials
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import FREQUENT_COMPACTION, EtcdProcess, free_port
from distop.process.loop import event_loop

JOBS, ROUNDS, ONE_JOB_ROUNDS = sized((10_000, 15, 300), (100, 1, 2))
CALLER = "operator"
"""The user that starts operations of the secure installation."""
TABLE = "bench"


@dataclass
class Installation:
    """One of the two, ready to work."""

    client: AsyncClient
    etcd: EtcdClient

    async def run(self, jobs: int) -> float:
        """Seconds of one operation, once nothing is left of the one before."""
        await until_collected(self.etcd)
        return await one_operation(self.client, TABLE, jobs)


async def installed(stack: AsyncExitStack, folder: Path, security: Security | None) -> Installation:
    """Start one; it ends with the stack."""
    if security is not None:
        etcd, config = security.etcd(folder / "etcd")
        admin, caller = security.credentials(ADMIN), security.credentials(CALLER)
        options = security.coordinator_arguments()
    else:
        etcd = EtcdProcess(folder / "etcd", options=FREQUENT_COMPACTION)
        config = EtcdConfig(endpoints=(etcd.endpoint,))
        admin = caller = Credentials()
        options = []
    stack.enter_context(etcd)
    processes = stack.enter_context(Processes(folder, config.to_env()))
    address = f"127.0.0.1:{free_port()}"
    processes.start("coordinator", "coordinator", "--listen", address, *options)
    processes.start("sidecar", "sidecar")
    script = Path(__file__).with_name("socket_executor.py")
    processes.start_script("executor", script, str(folder / "marks.jsonl"))
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=30, credentials=admin) as client:
        if security is not None:
            await client.change_grants(GRANTS)
        await client.create_table(TABLE, "/nowhere")
        await until_executors(client)
    client = AsyncClient(address, timeout_s=30, connect_timeout_s=30, credentials=caller)
    installation = Installation(await stack.enter_async_context(client), EtcdClient(config))
    stack.push_async_callback(installation.etcd.close)
    await installation.run(1000)  # connections, imports, leadership
    return installation


async def in_turns(pair: list[Installation], jobs: int, rounds: int) -> list[list[float]]:
    """Seconds of an operation of so many jobs: for each installation, those of its rounds."""
    taken: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (number % 2, 1 - number % 2):
            taken[which].append(await pair[which].run(jobs))
    return taken


async def measure(folder: Path) -> dict[str, float]:
    """The figures, and a table of them."""
    async with AsyncExitStack() as stack:
        pair = []
        for name, security in (("plain", None), ("secure", Security(folder / "keys"))):
            (folder / name).mkdir()
            pair.append(await installed(stack, folder / name, security))
        one_job = await in_turns(pair, 1, ONE_JOB_ROUNDS)
        many = await in_turns(pair, JOBS, ROUNDS)
    rows = [
        (name, f"{statistics.median(short) * 1e3:.1f}", f"{JOBS / statistics.median(long):,.0f}")
        for name, short, long in zip(("off", "on"), one_job, many, strict=True)
    ]
    print_table(
        f"with security off and on, {ROUNDS} operations of {JOBS:,} jobs and {ONE_JOB_ROUNDS} of one each",
        ("security", "one job, p50 ms", "jobs/s"),
        rows,
    )
    plain_p50, secure_p50 = map(statistics.median, one_job)
    ratios = [plain / secure for plain, secure in zip(*many, strict=True)]
    return {
        "secure_over_plain_10k": round(statistics.median(ratios), 2),
        "secure_p50_extra_ms": round((secure_p50 - plain_p50) * 1e3, 2),
        "plain_p50_ms": round(plain_p50 * 1e3, 2),
        "plain_jobs_per_s_10k": round(JOBS / statistics.median(many[0])),
    }


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(prefix="distop-bench-") as folder,
        asyncio.Runner(loop_factory=event_loop) as runner,
    ):
        print_json(**runner.run(measure(Path(folder))))
