"""What the benchmarks share: sizes, processes with logs, a table for people, one line of JSON for programs.

Each benchmark takes ``--small``: it runs once, in seconds, and its figures mean nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from rich.console import Console
from rich.table import Table

from distop.client import AsyncClient
from distop.errors import DeadlineExceeded
from distop.lake.storage.allowed import ALL
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, find_etcd
from distop.process.loop import event_loop

T = TypeVar("T")

_SMALL = "DISTOP_BENCH_SMALL"
"""Environment variable: it reaches the processes of a benchmark, too."""
if "--small" in sys.argv:
    sys.argv.remove("--small")
    os.environ[_SMALL] = "1"

SKIPPED = 77
"""Exit code of a benchmark that lacks something that it needs; as of automake's tests."""


def is_small() -> bool:
    """Whether ``--small`` was given: the run only shows that the benchmark works."""
    return _SMALL in os.environ


def sized(full: T, small: T) -> T:
    """The size of a measurement: ``full``, or ``small`` with ``--small``."""
    return small if is_small() else full


def skip(reason: str) -> NoReturn:
    """End a benchmark that lacks something that it needs."""
    print(reason)
    sys.exit(SKIPPED)


@contextmanager
def own_etcd(options: Sequence[str] = ()) -> Iterator[tuple[EtcdProcess, Path, Processes]]:
    """An etcd of the benchmark, a folder, and processes that use this etcd; ended and removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="distop-bench-") as folder,
        EtcdProcess(Path(folder) / "etcd", options=options) as etcd,
        Processes(Path(folder), EtcdConfig(endpoints=(etcd.endpoint,)).to_env()) as processes,
    ):
        yield etcd, Path(folder), processes


def run_on_own_etcd(
    program: Callable[[EtcdConfig, Path, Processes], Coroutine[Any, Any, T]], options: Sequence[str] = ()
) -> T:
    """The result of a program that gets the configuration, folder and processes of :func:`own_etcd`."""
    with own_etcd(options) as (etcd, folder, processes), asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(program(EtcdConfig(endpoints=(etcd.endpoint,)), folder, processes))


class Processes:
    """``distop`` processes of a benchmark, ended by pid at its end; their logs lie in ``folder``."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._env = {**os.environ, **ALL, **environment}
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> int:
        """Start ``distop <arguments>``; its pid."""
        return self._start(name, "-m", "distop.cli.main", *arguments)

    def start_script(self, name: str, script: Path, *arguments: str) -> int:
        """Start a script of the benchmark itself; its pid."""
        return self._start(name, str(script), *arguments)

    def _start(self, name: str, *command: str) -> int:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
            )
        self._running[process.pid] = process
        return process.pid

    def reap(self, pid: int) -> None:
        """Wait until a process has ended that was sent a signal; at most 30 s."""
        self._running.pop(pid).wait(30)

    def end_all(self) -> None:
        """End all that run, in an orderly way, and wait for it."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for pid in list(self._running):
            self.reap(pid)

    def log_of(self, name: str) -> str:
        """The end of a process's log."""
        return (self._folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def until(condition: Callable[[], Awaitable[T | None]], awaited: str, timeout_s: float = 60.0) -> T:
    """Wait until ``condition`` returns something other than ``None``; its value.

    ``awaited`` names what did not come about, in the message that ends the benchmark.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while (value := await condition()) is None:
        if loop.time() > deadline:
            raise SystemExit(f"waited {timeout_s:.0f} s in vain for {awaited}")
        await asyncio.sleep(0.01)
    return value


async def until_executors(
    client: AsyncClient, type: str = "noop", count: int = 1, timeout_s: float = 60.0
) -> None:
    """Wait until so many executors are members that run operations of this type."""

    async def registered() -> bool | None:
        return sum(type in member.types for member in await client.members()) >= count or None

    await until(registered, f"{count} executors of {type!r}", timeout_s)


async def until_collected(etcd: EtcdClient, timeout_s: float = 60.0) -> None:
    """Wait until no operation is active: the collector has removed the keys of all that have ended."""

    async def collected() -> bool | None:
        return not (await etcd.scan(etcd.keyspace.active, keys_only=True)).kvs or None

    await until(collected, "the collector", timeout_s)


async def one_operation(client: AsyncClient, table: str, jobs: int) -> float:
    """Run an operation of so many trivial jobs; seconds from the start call until its end is known."""
    began = time.perf_counter()
    operation = await client.start(table, "noop", {"partitions": jobs})
    try:
        ended = await operation.wait(timeout_s=300)
    except DeadlineExceeded as error:
        raise SystemExit(f"{error.message}: {(await client.table(table).why()).sentence}") from error
    took = time.perf_counter() - began
    ended.raise_for_outcome()
    return took


def peak_mb(pid: int) -> float:
    """Peak resident memory of a process so far, in MiB (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_all_s() -> float:
    """Processor time so far of this process and all below it, ended ones that were waited for too (Linux)."""
    ticks, children = dict[int, int](), dict[int, list[int]]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(pid := int(stat.parent.name))
            ticks[pid] = sum(map(int, fields[11:15]))
    pids, total = [os.getpid()], 0
    while pids:
        pid = pids.pop()
        total += ticks.get(pid, 0)
        pids += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for people, with the version of etcd."""
    table = Table(*columns, title=f"{title} (etcd {find_etcd().version})", box=None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def print_json(**figures: float) -> None:
    """The figures for programs: one JSON object on the last line, which names the version of etcd."""
    small = {"small": True} if is_small() else {}
    print(json.dumps({"etcd": find_etcd().version, **small, **figures}))
