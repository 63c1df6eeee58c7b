"""The processes under test: etcd, coordinators and runners, started again whenever they end.

Each service reaches etcd through a proxy of its own, so that its connections can be cut. Each runner has a
runtime folder, and so a sidecar, of its own, as if it were on another host.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from chaos.kinds import KINDS, STEPS
from chaos.writers import SparkWriter
from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.metastore.crashpoints import ONCE_VARIABLE, VARIABLE, record_name
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.record import decode
from support.etcd.proxy import Proxy
from support.services.tokens import token_line
from support.waiting import eventually

TTL_S = 2
START_S = 180.0
TESTS = Path(__file__).parent.parent
OTHERS = {
    "distop.executor.sidecar.server": "sidecar",
    "chaos.spark_writer": "Spark program",
    "pyspark": "Spark worker",
    "chaos.foreign": "foreign program",
    "chaos.catalog_program": "foreign program",
    "distop.cli.main landing": "landing process",
}
"""Processes that the harness does not supervise, by what stands in their command."""


@dataclass
class Service:
    """One coordinator or runner, started again by a supervisor whenever it ends."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    proxy: Proxy
    sidecar_folder: SidecarFolder | None = None
    """The folder of a runner's sidecar."""
    catalog: str = ""
    """Where a coordinator serves the catalog, ``host:port``."""
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    pids: set[int] = field(default_factory=set)
    _supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self._spawn()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise-{self.name}")

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        self.pids.add(self.process.pid)

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if not self.running:
                self._end_group()
                self._spawn()

    def signal(self, number: signal.Signals) -> None:
        """Nothing if it has just ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _end_group(self) -> None:
        """What a killed driver has started (the JVM) ends by itself; make sure. Sidecars are not in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(AssertionError):
                await eventually(lambda: not self.running)
        self._end_group()
        if self.process is not None:
            self.process.wait()

    def sidecar_pid(self) -> int:
        """0: there is none."""
        try:
            return int(self.sidecar_folder.pid_file.read_text()) if self.sidecar_folder else 0
        except (FileNotFoundError, ValueError):
            return 0


TOKEN = "the token of whoever calls here"
TOKENS_VARIABLE = "CHAOS_TOKENS"
CATALOG_VARIABLE = "CHAOS_CATALOG"


class Cluster:
    """Everything that runs; what they share is below ``folder``."""

    def __init__(self, folder: Path, *, master: str, coordinators: int = 2, runners: int = 2) -> None:
        self.folder = folder
        self.plan, self.fired = folder / "plan", folder / "fired"
        self.logs = folder / "logs"
        self.etcd = EtcdProcess(folder / "etcd")
        self.services: list[Service] = []
        self._master, self._counts = master, (coordinators, runners)
        # Sockets need a short path.
        self._sockets = Path(tempfile.mkdtemp(prefix="dxc"))

    async def __aenter__(self) -> Self:
        for folder in (self.fired, self.logs):
            folder.mkdir(parents=True)
        (self.folder / "tokens").write_text(token_line("chaos", TOKEN))
        self.etcd.start()
        self.config = EtcdConfig(endpoints=(self.etcd.endpoint,))
        self.store = EtcdClient(self.config)
        for number in range(self._counts[0]):
            await self._add(f"coordinator-{number}", "coordinator", f"127.0.0.1:{free_port()}")
        for number in range(self._counts[1]):
            await self._add(f"runner-{number}", "executor", self._master)
        log = self.logs / "spark-writer.log"
        self.writer = SparkWriter(["local[1]", self.addresses()], self.environment(), log)
        return self

    async def _add(self, name: str, role: str, where: str) -> None:
        proxy = Proxy(self.etcd.endpoint)
        await proxy.accept()
        base = self._sockets / name
        base.mkdir()
        config = EtcdConfig(endpoints=(proxy.endpoint,))
        catalog = f"127.0.0.1:{free_port()}" if role == "coordinator" else ""
        env = self.environment(config) | {BASE_VARIABLE: str(base), CATALOG_VARIABLE: catalog}
        command = [sys.executable, "-m", "chaos.service_main", role, where, str(TTL_S)]
        sidecar_folder = None
        if role == "executor":
            sidecar_folder = SidecarFolder.of(
                config.endpoints, config.prefix, environ={BASE_VARIABLE: str(base)}
            )
        service = Service(name, command, env, self.logs / f"{name}.log", proxy, sidecar_folder, catalog)
        self.services.append(service)
        service.start()

    def environment(self, etcd: EtcdConfig | None = None) -> dict[str, str]:
        """Of a process that may be armed."""
        return {
            **os.environ,
            **(etcd or self.config).to_env(),
            "DISTOP_OPERATIONS": KINDS,
            "DISTOP_COMMIT_STEPS": STEPS,
            "PYTHONPATH": str(TESTS),
            "DISTOP_TOKEN": TOKEN,
            TOKENS_VARIABLE: str(self.folder / "tokens"),
            VARIABLE: f"@{self.plan}",
            ONCE_VARIABLE: str(self.fired),
        }

    async def __aexit__(self, *_: object) -> None:
        self.disarm()
        await self.writer.stop()
        await asyncio.gather(*(service.stop() for service in self.services))
        for service in self.services:
            if pid := service.sidecar_pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGTERM)
            await service.proxy.refuse()
        await self.store.close()
        self.etcd.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def arm(self, point: str, action: str, hit: int = 1) -> None:
        """From now on the first process that comes by is struck."""
        self.forget(point, action)
        new = self.plan.with_suffix(".new")
        new.write_text(f"{point}={action}@{hit}")
        new.replace(self.plan)

    def forget(self, point: str, action: str) -> None:
        """That anybody was struck there before."""
        (self.fired / record_name(point, action)).unlink(missing_ok=True)

    def disarm(self) -> None:
        self.plan.unlink(missing_ok=True)

    def struck(self, point: str, action: str) -> str | None:
        """Who was struck by an armed point, or ``None`` if nobody has come by."""
        record = self.fired / record_name(point, action)
        try:
            pid, _, command = record.read_text().partition(" ")
        except FileNotFoundError:
            return None
        for service in self.services:
            if int(pid or 0) in service.pids:
                return service.name
        return next((name for part, name in OTHERS.items() if part in command), "another process")

    def coordinators(self) -> list[Service]:
        return [service for service in self.services if service.sidecar_folder is None]

    def runners(self) -> list[Service]:
        return [service for service in self.services if service.sidecar_folder is not None]

    def addresses(self) -> str:
        return ",".join(service.command[-2] for service in self.coordinators())

    async def members(self) -> dict[int, MemberRecord]:
        """The live members by pid."""
        space = self.store.keyspace
        records = {}
        for prefix in (space.coordinators, space.executors):
            for kv in (await self.store.scan(prefix)).kvs:
                record = decode(kv.value, MemberRecord, kv.key)
                records[record.pid] = record
        return records

    async def ready(self, *, coordinators: int = 1, runners: int = 1) -> None:
        """Wait until so many are registered. Raises :class:`AssertionError` if they do not come."""

        async def enough() -> bool:
            present = await self.members()
            return (
                sum(service.pid in present for service in self.coordinators()) >= coordinators
                and sum(service.pid in present for service in self.runners()) >= runners
            )

        await eventually(enough, START_S, every_s=0.1)

    async def leader(self, table: str) -> Service | None:
        """Who leads a table."""
        kv = await self.store.get(self.store.keyspace.table(table).coordinator)
        if not kv.exists:
            return None
        member = decode(kv.value, LeaderRecord, kv.key).member
        for pid, record in (await self.members()).items():
            if record.id == member:
                return next((service for service in self.services if service.pid == pid), None)
        return None

    def pids(self) -> Iterator[int]:
        for service in self.services:
            if service.running:
                yield service.pid
