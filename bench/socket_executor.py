"""An executor without Spark whose jobs go the way of Spark's workers: over the Unix socket to the sidecar.

    socket_executor.py RESULTS [HELD]

Started by ``completions.py`` and others. Everything but the launcher is the product's own; each launch writes
one line of JSON with the latencies of its marks to RESULTS. No job begins while the file HELD is there.
"""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import sys
import threading
import time
from pathlib import Path

from distop.errors import NeedsSpark
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import Launch, LaunchedFrame, pack, settling, summed
from distop.executor.ledger.ledger import Ledger
from distop.executor.runner.options import RunnerOptions, ServedTypes
from distop.executor.runner.runner import Runner
from distop.executor.sidecar.client import SidecarClient
from distop.executor.task.session import TaskSession
from distop.executor.task.task import Task, TaskJob, TaskSummary
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.jobs import Mark, Verdict
from distop.operations import Registry
from distop.process.loop import event_loop
from distop.process.tracing import Tracer

SLOTS = 2


class TimedSession(TaskSession[TaskJob]):
    """A session that notes how long each mark waits for its verdict."""

    def mark(self, mark: Mark, tag: TaskJob) -> None:
        _sent[mark.attempt] = time.perf_counter()
        super().mark(mark, tag)

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        now = time.perf_counter()
        _latencies.extend(now - _sent.pop(mark.attempt) for _, mark, _ in answers)
        super().answered(answers)


_sent: dict[str, float] = {}
_latencies: list[float] = []


class SocketTasks:
    """The tasks of one launch, each a thread with a connection to the sidecar of its own."""

    def __init__(self, client: SidecarClient, launch: Launch, results: Path, held: Path | None) -> None:
        self._client, self._work, self._results, self._held = client, launch.work, results, held
        self._tasks: list[asyncio.Future[TaskSummary]] = []
        for number, partitions in enumerate(pack(launch.partitions, slots=SLOTS, small=True)):
            task = functools.partial(self._task, partitions, f"t{number}")
            self._tasks.append(asyncio.get_running_loop().create_future())
            threading.Thread(target=settling(self._tasks[-1], task), daemon=True).start()

    def held_up(self) -> str:
        return ""

    def cancel(self, reason: str) -> None:
        """Do nothing: tasks are notified of a cancellation by the sidecar."""

    async def wait(self) -> TaskSummary:
        summary = await summed(self._tasks)
        if _latencies:
            self._report()
        return summary

    def _task(self, partitions: list[str], name: str) -> TaskSummary:
        while self._held is not None and self._held.exists():
            time.sleep(0.005)
        work = self._work
        session = TimedSession(self._client, str(work.arg.id), work.run_token, claims=work.claims)
        try:
            return Task(work, session, name).run(partitions)
        finally:
            session.close()

    def _report(self) -> None:
        ordered, count = sorted(_latencies), len(_latencies)
        _latencies.clear()
        line = {
            "marks": count,
            "p50_ms": ordered[count // 2] * 1e3,
            "p99_ms": ordered[count * 99 // 100] * 1e3,
        }
        with self._results.open("a") as file:
            file.write(json.dumps(line) + "\n")


class SocketLauncher:
    """A launcher whose tasks are threads of this process: :class:`SocketTasks`."""

    def __init__(self, config: EtcdConfig, results: Path, held: Path | None) -> None:
        self._config, self._results, self._held = config, results, held

    async def start(self) -> None:
        sidecar_folder = SidecarFolder.of(self._config.endpoints, self._config.prefix)
        self._client = await asyncio.to_thread(SidecarClient, sidecar_folder, self._config.to_env())

    def launch(self, launch: Launch) -> SocketTasks:
        return SocketTasks(self._client, launch, self._results, self._held)

    def launch_frame(self, launch: Launch) -> LaunchedFrame:
        raise NeedsSpark(launch.work.operation.type)

    def held_up(self) -> str:
        return ""

    async def close(self) -> None:
        self._client.close()


async def serve(results: Path, held: Path | None = None) -> None:
    """Serve until SIGTERM."""
    config, stop = EtcdConfig.from_env(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = EtcdClient(config)
    ledger, launcher, tracer = Ledger(client), SocketLauncher(config, results, held), Tracer.from_env("bench")
    await launcher.start()
    served = ServedTypes(Registry(), ["noop"])
    await Runner(ledger, launcher, served, RunnerOptions(), tracer=tracer).serve(stop)
    tracer.close()
    await ledger.close()
    await launcher.close()
    await client.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(serve(*map(Path, sys.argv[1:])))
