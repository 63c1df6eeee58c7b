"""The same cluster without a container engine: each host is a network namespace, with a name of its own.

For root alone. There is no TLS, no user of etcd and no object store: tables and batches lie in a folder that
all hosts see, as on NFS. What can happen to the hosts is the same.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark

from distop.cli.demo.crew import until
from distop.client import Client
from distop.lake.storage.allowed import ALL
from distop.metastore.etcd.embedded import find_etcd

NETWORK = "10.234.117"
"""The first three numbers of all addresses; this machine has the number 1."""

PREFIX = "dxns"
SWITCH = f"{PREFIX}-switch"
"""A namespace that holds the bridge between the hosts: the firewall of this machine does not look at it."""
HOSTS = (
    *("etcd1", "etcd2", "etcd3", "coordinator1", "coordinator2", "master", "worker1", "worker2"),
    *("sidecar1", "sidecar2", "executor1", "executor2", "stream"),
)
NUMBERS = {name: number for number, name in enumerate(HOSTS, start=11)}
END_S = 30.0
NAMED = 'hostname "$0" && exec "$@"'

Commands = dict[str, tuple[list[str], dict[str, str]]]


def unable() -> str:
    """Why this machine cannot do it; empty if it can."""
    if os.getuid() != 0:
        return "only root may make network namespaces"
    if lacking := [name for name in ("ip", "unshare", "hostname") if not shutil.which(name)]:
        return f"this machine lacks {', '.join(lacking)}: apt-get install iproute2 util-linux hostname"
    made = _ip("netns", "add", f"{PREFIX}-try")
    _ip("netns", "del", f"{PREFIX}-try")
    return f"no network namespace can be made here: {made.stderr.strip()}" if made.returncode else ""


class Namespaces:
    """Its hosts by their names, and clients of it; the faults are those of :class:`cluster_hosts.Cluster`."""

    hosts_are = "network namespaces"

    def __init__(self, folder: Path) -> None:
        self.struck: Counter[str] = Counter()
        self._folder = folder
        self._commands = commands(folder)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def connect(self) -> Client:
        """Through both coordinators."""
        addresses = f"{self.address('coordinator1')}:7070,{self.address('coordinator2')}:7070"
        return Client(addresses, timeout_s=60, connect_timeout_s=60)

    def address(self, service: str) -> str:
        """What the others know it by."""
        return f"{NETWORK}.{NUMBERS[service]}"

    def service_of(self, host: str) -> str:
        """The service of a member's host."""
        return host

    def url(self, name: str) -> str:
        """Where files of all hosts are."""
        return str(self._folder / name)

    def put(self, file: Path, name: str) -> None:
        """Have all hosts see a file."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)

    def start(self, service: str) -> None:
        """Start what runs on a host."""
        command, more = self._commands[service]
        inside = [
            "ip",
            "netns",
            "exec",
            f"{PREFIX}-{service}",
            "unshare",
            "--uts",
            "sh",
            "-c",
            NAMED,
            service,
        ]
        environment = {**os.environ, **ALL, "SPARK_LOCAL_IP": self.address(service), **more}
        with (self._folder / f"{service}.log").open("ab") as log:
            self._started[service] = subprocess.Popen(
                [*inside, *command],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def started_all(self) -> None:
        """Make the network and its hosts, and start all of them."""
        _must("netns", "add", SWITCH)
        _must("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        _must("-n", SWITCH, "link", "set", "bridge", "up")
        _must("link", "add", PREFIX, "type", "veth", "peer", "name", "uplink", "netns", SWITCH)
        _must("-n", SWITCH, "link", "set", "uplink", "master", "bridge", "up")
        _must("addr", "add", f"{NETWORK}.1/24", "dev", PREFIX)
        _must("link", "set", PREFIX, "up")
        for service in HOSTS:
            space = f"{PREFIX}-{service}"
            _must("netns", "add", space)
            _must(
                "-n",
                SWITCH,
                "link",
                "add",
                f"to-{service}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                space,
            )
            _must("-n", SWITCH, "link", "set", f"to-{service}", "master", "bridge", "up")
            for words in (
                ("addr", "add", f"{self.address(service)}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                _must("-n", space, *words)
        for service in self._commands:
            self.start(service)

    def end_all(self) -> None:
        """End what runs there, and remove the network; also what a demo that was killed has left."""
        for service in HOSTS:
            with suppress(subprocess.TimeoutExpired):
                self._kill(service)
            _ip("netns", "del", f"{PREFIX}-{service}")
        _ip("link", "del", PREFIX)
        _ip("netns", "del", SWITCH)

    # -- faults --------------------------------------------------------------------------------------

    @contextmanager
    def killed(self, services: str) -> Iterator[None]:
        """Hosts that die, with all that runs there, and come back; spaces stand between their names."""
        for service in services.split():
            self._kill(service)
            self.struck["hosts_killed"] += 1
        yield
        for service in services.split():
            self.start(service)

    @contextmanager
    def stopped(self, service: str) -> Iterator[None]:
        """A host that is asked to end, and comes back."""
        self._started[service].terminate()
        with suppress(subprocess.TimeoutExpired):
            self._started[service].wait(END_S)
        self._kill(service)
        yield
        self.start(service)

    @contextmanager
    def parted(self, service: str) -> Iterator[None]:
        """A host that nobody reaches, and that reaches nobody."""
        _must("-n", SWITCH, "link", "set", f"to-{service}", "down")
        self.struck["partitions_of_network"] += 1
        yield
        _must("-n", SWITCH, "link", "set", f"to-{service}", "up")

    @contextmanager
    def paused(self, service: str) -> Iterator[None]:
        """A host that stands still, and wakes up as if nothing had happened."""
        self._signal(service, signal.SIGSTOP)
        self.struck["hosts_paused"] += 1
        yield
        self._signal(service, signal.SIGCONT)

    def _signal(self, service: str, number: signal.Signals) -> bool:
        pids = _ip("netns", "pids", f"{PREFIX}-{service}").stdout.split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
        return bool(pids)

    def _kill(self, service: str) -> None:
        """All that runs there, until nothing does."""
        until(
            lambda: not self._signal(service, signal.SIGKILL) or None, f"the end of {service}", every_s=0.05
        )
        if process := self._started.pop(service, None):
            process.wait(END_S)

    # -- programs ------------------------------------------------------------------------------------

    @contextmanager
    def program(self, name: str, script: Path, *words: str) -> Iterator[None]:
        """Another host, with a Spark program of a user's, until the end of the context."""
        addresses = f"{self.address('coordinator1')}:7070,{self.address('coordinator2')}:7070"
        self._commands[name] = [sys.executable, str(script), *words], {"DISTOP_ADDRESS": addresses}
        self.start(name)
        try:
            yield
        except BaseException:
            print((self._folder / f"{name}.log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            self._kill(name)

    def run_inside(self, service: str, script: Path, *words: str) -> Any:
        """What a Python program says, as JSON, with the settings of a service."""
        environment = {**os.environ, **ALL, **self._commands[service][1]}
        command = [sys.executable, str(script), *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise SystemExit(f"{script.name} failed: {done.stderr[-2000:]}")
        return json.loads(done.stdout)


def commands(folder: Path) -> Commands:
    """What runs on each host, as in deploy/compose.yaml."""
    at = {name: f"{NETWORK}.{number}" for name, number in NUMBERS.items()}
    members = [name for name in HOSTS if name.startswith("etcd")]
    etcd = {"DISTOP_ETCD": ",".join(f"{at[name]}:2379" for name in members)}
    distop = [sys.executable, "-m", "distop.cli.main"]
    package = "org.apache.spark.deploy"
    spark_class = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")
    master = f"spark://{at['master']}:7077"
    commands: Commands = {}
    for name in members:
        commands[name] = (
            [
                *(str(find_etcd().path), f"--name={name}", f"--data-dir={folder / name}"),
                *(
                    f"--listen-client-urls=http://{at[name]}:2379",
                    f"--advertise-client-urls=http://{at[name]}:2379",
                ),
                f"--listen-peer-urls=http://{at[name]}:2380",
                f"--initial-advertise-peer-urls=http://{at[name]}:2380",
                f"--initial-cluster={','.join(f'{member}=http://{at[member]}:2380' for member in members)}",
            ],
            {},
        )
    recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder / 'master'}"
    words = [spark_class, f"{package}.master.Master", "--host", at["master"], "--port", "7077"]
    commands["master"] = words, {"SPARK_MASTER_OPTS": recovery}
    for number in ("1", "2"):
        run = {"DISTOP_RUNTIME_DIR": str(folder / f"run{number}")}
        name = f"coordinator{number}"
        commands[name] = [*distop, "coordinator", f"--listen={at[name]}:7070", "--insecure"], etcd
        commands[f"sidecar{number}"] = [*distop, "sidecar"], etcd | run
        where = ["--host", at[f"worker{number}"], "--cores", "2", "--memory", "1g"]
        work = ["--work-dir", str(folder / f"work{number}"), master]
        python = {"PYSPARK_PYTHON": sys.executable}
        commands[f"worker{number}"] = [spark_class, f"{package}.worker.Worker", *where, *work], run | python
        name = f"executor{number}"
        conf = [f"spark.driver.host={at[name]}", "spark.cores.max=2", "spark.executor.memory=512m"]
        options = [f"--conf={setting}" for setting in conf]
        driver = {"DISTOP_RUNTIME_DIR": str(folder / name)}
        commands[name] = [*distop, "executor", f"--master={master}", *options], etcd | driver
    return commands


@contextmanager
def started(folder: Path) -> Iterator[Namespaces]:
    """The cluster, until it is ended with all that it holds."""
    hosts = folder / "hosts"
    shutil.rmtree(hosts, ignore_errors=True)
    hosts.mkdir(parents=True)
    cluster = Namespaces(hosts)
    cluster.end_all()
    try:
        cluster.started_all()
        with cluster.connect() as client:
            until(lambda: _all_there(client) or None, "the members of the cluster", 300, every_s=1.0)
        yield cluster
    except BaseException:
        for log in sorted(hosts.glob("*.log")):
            print(f"==== {log.name}", log.read_text(errors="replace")[-1500:], sep="\n", file=sys.stderr)
        raise
    finally:
        cluster.end_all()


def _all_there(client: Client) -> bool:
    from distop.errors import DistopError

    try:
        roles = Counter(member.role for member in client.members())
    except DistopError:
        time.sleep(0.5)
        return False
    return roles == {"coordinator": 2, "executor": 2, "sidecar": 2}


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)


def _must(*words: str) -> None:
    if (done := _ip(*words)).returncode:
        raise SystemExit(f"ip {' '.join(words)} failed: {done.stderr.strip()}")
