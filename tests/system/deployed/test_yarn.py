"""``distop executor --master yarn`` on a real YARN, with the Python that venv-pack has packed.

``make test-yarn`` fetches what is needed.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from xml.sax.saxutils import escape

import pyspark
import pytest
import pytest_asyncio

from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.executor.sidecar.client import dial
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from support.etcd.etcds import enable_users
from support.etcd.lossy import LossyClient
from support.processes import end
from support.repository import ROOT
from support.services.executing import place_in, short_folder, sidecar_pid
from support.services.sidecars import program
from support.services.whole import Whole, coordinated, write_csv
from support.waiting import eventually

FETCHED = ROOT / ".venv" / "yarn"
ARCHIVE = FETCHED / "env.tar.gz"


def there() -> bool:
    """Whether this machine has what it needs."""
    return ARCHIVE.exists() and (FETCHED / "jars.done").exists() and bool(shutil.which("java"))


pytestmark = [
    pytest.mark.skipif(not there(), reason="YARN is not there: make test-yarn"),
    pytest.mark.process,
    pytest.mark.slow("needs YARN, Java and a packed Python"),
    pytest.mark.timeout(1800),
]


SERVERS = {
    name: f"org.apache.hadoop.yarn.server.{name.lower()}.{name}"
    for name in ("ResourceManager", "NodeManager")
}
LOGGING = """\
log4j.rootLogger=INFO,all
log4j.appender.all=org.apache.log4j.ConsoleAppender
log4j.appender.all.target=System.err
log4j.appender.all.layout=org.apache.log4j.PatternLayout
log4j.appender.all.layout.ConversionPattern=%d %p %c: %m%n
"""
NODE_MB = 4096


class Yarn:
    """A ResourceManager and a NodeManager on loopback; files are on the local disk. Their logs and all that
    containers leave are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stack = folder, ExitStack()
        self._page = f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Of a driver on this host, which uses it."""
        mine = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        return mine | {"HADOOP_CONF_DIR": str(self.folder), "SPARK_LOCAL_IP": "127.0.0.1"}

    @property
    def options(self) -> list[str]:
        """Of ``distop executor``: one container, with the Python that was packed."""
        settings = {
            "spark.yarn.dist.archives": f"{ARCHIVE}#env",
            "spark.pyspark.python": "./env/bin/python",
            # They are on this host already.
            "spark.yarn.jars": f"local:{Path(pyspark.__path__[0]) / 'jars'}/*",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "1g",
        }
        return ["--master", "yarn", *(word for one in settings.items() for word in ("--conf", "=".join(one)))]

    async def open(self) -> Self:
        """Start both; returns once there is a node that takes containers."""
        try:
            self._configure()
            for name in SERVERS:
                self._start(name)
            await eventually(self._takes_containers, 60.0, every_s=0.2)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End both, and with them all containers."""
        self._stack.close()

    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        words = ("YarnCoarseGrainedExecutorBackend", str(self.folder))
        return [
            pid
            for pid, command in _commands()
            if command.split("\0")[0].endswith("java") and all(word in command for word in words)
        ]

    def log(self) -> str:
        """The end of what both have said."""
        return "\n".join((self.folder / f"{name}.log").read_text()[-3000:] for name in SERVERS)

    def _configure(self) -> None:
        for name, settings in self._settings().items():
            properties = (
                f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
                for key, value in settings.items()
            )
            text = f"<configuration>{''.join(properties)}</configuration>"
            (self.folder / f"{name}.xml").write_text(text)
        (self.folder / "log4j.properties").write_text(LOGGING)

    def _settings(self) -> dict[str, dict[str, str]]:
        manager, node, queue = "yarn.resourcemanager", "yarn.nodemanager", "yarn.scheduler.capacity"
        manager_doors = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        node_doors = ("address", "localizer.address", "webapp.address", "collector-service.address")
        return {
            "core-site": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.folder / "hadoop")},
            "yarn-site": {
                f"{manager}.hostname": "127.0.0.1",
                f"{manager}.webapp.address": self._page,
                **{f"{manager}.{door}": f"127.0.0.1:{free_port()}" for door in manager_doors},
                f"{node}.hostname": "127.0.0.1",
                **{f"{node}.{door}": f"127.0.0.1:{free_port()}" for door in node_doors},
                f"{node}.log-dirs": str(self.folder / "logs"),
                f"{node}.resource.memory-mb": str(NODE_MB),
                f"{node}.resource.cpu-vcores": "4",
                # A disk that is nearly full is no bad one here.
                f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
                f"{node}.vmem-check-enabled": "false",
                "yarn.scheduler.minimum-allocation-mb": "128",
            },
            "capacity-scheduler": {
                f"{queue}.root.queues": "default",
                f"{queue}.root.default.capacity": "100",
                f"{queue}.maximum-am-resource-percent": "1.0",
            },
        }

    def _start(self, name: str) -> None:
        java = shutil.which("java")
        assert java is not None
        command = [java, "-Xmx256m", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        command += ["-cp", f"{self.folder}:{FETCHED / 'jars'}/*", SERVERS[name]]
        home = str(Path(java).resolve().parents[1])
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**self.environment, "JAVA_HOME": home},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes[name] = process
        self._stack.callback(end, process)

    def _takes_containers(self) -> bool:
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        assert not ended, self.log()
        try:
            with urllib.request.urlopen(f"http://{self._page}/ws/v1/cluster/nodes", timeout=10) as answer:
                nodes: Any = json.load(answer)["nodes"]
        except OSError:
            return False
        return any(node["state"] == "RUNNING" for node in (nodes or {}).get("node", []))


def executor(yarn: Yarn, *words: str, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of ``distop executor`` on it, with a sidecar's environment for its tasks."""
    command = [sys.executable, "-m", "distop.cli", "executor", *yarn.options, *words]
    return command, {**yarn.environment, **environment}


def _commands() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended
                yield int(folder.name), (folder / "cmdline").read_bytes().decode(errors="replace")


ENDS_S = 240
"""How long an application may take that asks its workers something."""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    made = Yarn(tmp_path_factory.mktemp("yarn"))
    asyncio.run(made.open())
    yield made
    made.close()


@dataclass
class Secured:
    """An etcd with a user whose password is in a file, and where tasks look for their sidecar."""

    config: EtcdConfig
    base: Path
    place: SidecarFolder

    @property
    def conf(self) -> list[str]:
        return ["--conf", f"spark.executorEnv.{BASE_VARIABLE}={self.base}"]


@pytest_asyncio.fixture
async def secured(tmp_path: Path, prefix: str) -> AsyncIterator[Secured]:
    file = tmp_path / "password"
    file.write_text("secret\n")
    with EtcdProcess(tmp_path / "etcd") as etcd, short_folder() as base:
        enable_users(etcd, user="distop", password="secret", prefix=f"{prefix}.")
        known = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="distop").to_env()
        config = EtcdConfig.from_env({**known, "DISTOP_ETCD_PASSWORD_FILE": str(file)})
        place = place_in(base, config)
        yield Secured(config, base, place)


async def checked(yarn: Yarn, secured: Secured, environment: dict[str, str]) -> dict[str, Any]:
    """What ``--check`` says."""
    words = [*secured.conf, "--check", "--output", "json"]
    command, given = executor(yarn, *words, environment=environment)
    done = await asyncio.to_thread(
        subprocess.run, command, env=given, capture_output=True, text=True, timeout=ENDS_S * 3, check=False
    )
    assert done.returncode in (0, 22), f"{done.stderr[-4000:]}\n{yarn.log()}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


async def test_workers_in_containers_are_well(yarn: Yarn, secured: Secured) -> None:
    """They start their sidecar, which reads the password itself, and is reached by a path that stays."""
    told = await checked(yarn, secured, secured.config.to_env())
    assert told["findings"] == []
    [worker] = told["workers"]
    assert worker["python"].startswith(str(yarn.folder))
    assert "/container_" in worker["python"]
    python = program(sidecar_pid(secured.place))
    assert python.startswith(str(yarn.folder))
    assert "/container_" not in python


async def test_workers_without_password_and_sidecar_say_so(yarn: Yarn, secured: Secured) -> None:
    """S5: the driver has it, and YARN passes it to nobody."""
    told = await checked(yarn, secured, replace(secured.config, password_file="").to_env())
    [finding] = told["findings"]
    assert finding["code"] == "SIDECAR_UNREACHABLE"
    assert "there is no password to start one" in finding["sentence"]


async def ingested(service: Whole, start: int) -> None:
    """Four files of 250 rows, in several jobs."""
    source = service.folder / f"from-{start}"
    for number in range(4):
        write_csv(source, f"{number}.csv", start + number * 250, 250)
    operation = await service.client.start("t", "ingest", {"paths": [str(source)], "split_bytes": 4096})
    assert operation.started.jobs.total >= 4
    await succeeded(service, operation.name)


async def succeeded(service: Whole, operation: str) -> None:
    ended = await service.client.operation(operation).wait(timeout_s=ENDS_S * 3)
    assert ended.error is None, ended.error


def started(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as said:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def works_in(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


async def test_operations_go_on_when_the_container_of_their_sidecar_is_gone(
    yarn: Yarn, secured: Secured, tmp_path: Path
) -> None:
    """A sidecar outlives the container that started it, and serves the tasks of the next one."""
    command, given = executor(yarn, *secured.conf, environment=secured.config.to_env())
    store = LossyClient(secured.config)
    async with coordinated(secured.config, tmp_path, store) as service:
        driver = started(command, given, tmp_path / "executor.log")
        try:
            await ingested(service, 0)
            # As a task of another container: without one it would end within a minute.
            with dial(secured.place, secured.config.to_public_env()):
                sidecar, [container] = sidecar_pid(secured.place), yarn.executors()
                folder = works_in(container)
                os.kill(container, signal.SIGKILL)
                await eventually(lambda: not folder.exists(), ENDS_S)
                await ingested(service, 1000)
                assert sidecar_pid(secured.place) == sidecar
                assert yarn.executors() != [container]
            rules = {"rules": ["id >= 0", {"not_null": "day"}, {"unique": ["id", "kind"]}]}
            operation = await service.client.start("t", "validate", rules)
            await succeeded(service, operation.name)
            assert await asyncio.to_thread(service.ids) == list(range(2000))
        finally:
            driver.terminate()
            driver.wait(60)
    await store.close()
