"""A YARN of a test's own: a ResourceManager and a NodeManager on loopback; files are on the local disk.

``deploy/yarn.sh`` fetches the programs, and packs the Python that containers are sent.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self
from xml.sax.saxutils import escape

import pyspark

from distop.metastore.etcd.embedded import free_port
from support.processes import end
from support.repository import ROOT
from support.waiting import eventually

FETCHED = ROOT / ".venv" / "yarn"
ARCHIVE = FETCHED / "env.tar.gz"
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


def there() -> bool:
    """Whether this machine has what it needs."""
    return ARCHIVE.exists() and (FETCHED / "jars.done").exists() and bool(shutil.which("java"))


class Yarn:
    """Both servers. Their logs and all that containers leave are in ``folder``."""

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
