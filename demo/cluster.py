"""The flights on the cluster of deploy/compose.yaml, while its hosts die, part and stand still.

``make cluster-demo``. It needs a container engine with Compose. Prints what was found as JSON, last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import docker
import s3fs
from crew import until
from docker.errors import DockerException
from flights import FILE, OPTIONS, write_days

from distop.client import Client, Credentials, Operation

ROOT = Path(__file__).parent.parent
SECRETS = ROOT / "deploy" / "compose" / "secrets"
COMPOSE = ["docker", "compose", "--progress", "quiet", "-p", "distop-demo", "-f", "deploy/compose.yaml"]
TABLE = "flights"
UP_S, DOWN_S, CUT_S = 300, 120, 20
"""Deadlines of Compose; and how long a part of the cluster is away, four times as long as a lease lives."""


class Cluster:
    """Its containers by the names of their services, and clients of it."""

    def __init__(self) -> None:
        self._engine = docker.from_env(timeout=60)
        self._engine.ping()
        self.struck: Counter[str] = Counter()

    def connect(self) -> Client:
        """As who may do everything, through both coordinators."""
        shown = Credentials(ca=str(SECRETS / "ca.crt"), token_file=str(SECRETS / "admin-token"))
        return Client("127.0.0.1:7070,127.0.0.1:7080", timeout_s=60, connect_timeout_s=60, credentials=shown)

    def storage(self) -> s3fs.S3FileSystem:
        """Its object store, at the address that it has on this machine."""
        networks = self.container("s3").attrs["NetworkSettings"]["Networks"].values()
        address = next(iter(networks))["IPAddress"]
        secret = (SECRETS / "s3-secret-key").read_text().strip()
        return s3fs.S3FileSystem(key="distop", secret=secret, endpoint_url=f"http://{address}:8333")

    def container(self, service: str) -> Any:
        labels = ["com.docker.compose.project=distop-demo", f"com.docker.compose.service={service}"]
        (found,) = self._engine.containers.list(all=True, filters={"label": labels})
        return found

    # -- faults --------------------------------------------------------------------------------------

    @contextmanager
    def killed(self, service: str) -> Iterator[None]:
        """A host that dies, with all that runs there, and comes back."""
        self.container(service).kill("SIGKILL")
        self.struck["hosts_killed"] += 1
        yield
        self.container(service).start()

    @contextmanager
    def parted(self, service: str) -> Iterator[None]:
        """A host that nobody reaches, and that reaches nobody."""
        host = self.container(service)
        (name,) = host.attrs["NetworkSettings"]["Networks"]
        network = self._engine.networks.get(name)
        network.disconnect(host)
        self.struck["partitions_of_network"] += 1
        yield
        network.connect(host, aliases=[service])

    @contextmanager
    def paused(self, service: str) -> Iterator[None]:
        """A host that stands still, and wakes up as if nothing had happened."""
        self.container(service).pause()
        self.struck["hosts_paused"] += 1
        yield
        self.container(service).unpause()

    def run_inside(self, service: str, script: Path) -> Any:
        """What a Python program says, as JSON, where the service runs."""
        name = self.container(service).name
        done = subprocess.run(
            ["docker", "exec", "--interactive", name, "python", "-"],
            stdin=script.open(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{script.name} failed in {service}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)


@contextmanager
def started() -> Iterator[Cluster]:
    """The cluster, until it is ended with all that it holds."""
    cluster = Cluster()
    _compose("down", "--volumes", "--timeout", "5", timeout_s=DOWN_S)  # of a demo that was killed
    try:
        _compose("up", "--detach", "--wait", timeout_s=UP_S)
        yield cluster
    except BaseException:
        subprocess.run([*COMPOSE, "logs", "--tail", "40"], cwd=ROOT, timeout=60, check=False)
        raise
    finally:
        _compose("down", "--volumes", "--timeout", "5", timeout_s=DOWN_S)


def _compose(*words: str, timeout_s: float) -> None:
    subprocess.run([*COMPOSE, *words], cwd=ROOT, timeout=timeout_s, check=True)


def strike(cluster: Cluster, client: Client, names: Iterable[str]) -> None:
    """One fault after the other, each in the middle of an operation, with more batches behind it."""
    faults: list[tuple[str, Callable[[str], Any], Callable[[Operation], str]]] = [
        ("a worker of Spark is killed -9", cluster.killed, lambda _: "worker1"),
        ("the coordinator that leads is cut off", cluster.parted, lambda _: _leader(client)),
        ("a member of etcd is killed -9", cluster.killed, lambda _: "etcd2"),
        ("the executor at work stands still", cluster.paused, _runner(client)),
        ("a sidecar is killed -9", cluster.killed, lambda _: "sidecar2"),
        ("the coordinator that leads is killed -9", cluster.killed, lambda _: _leader(client)),
    ]
    days = sorted(names)
    share = -(-len(days) // len(faults))
    for number, (what, fault, chosen) in enumerate(faults):
        for day in days[number * share : (number + 1) * share]:
            client.enqueue(TABLE, day, "ingest", {"paths": [f"s3://landing/{day}"], **OPTIONS})
        service = until(partial(_victim, client, chosen), "an operation at work", 120)
        before = _left(client)
        with fault(service):
            time.sleep(CUT_S)
            applied = before - _left(client)
        print(f"  {what} ({service}) for {CUT_S} s: {applied} batches were applied meanwhile", flush=True)


def _victim(client: Client, chosen: Callable[[Operation], str]) -> str | None:
    running = client.ordering(TABLE).running
    if not running:
        return None
    operation = client.get(running)
    return chosen(operation) or None if operation.runner else None


def _leader(client: Client) -> str:
    """The service that leads the table; its container is the member's host."""
    leader = client.get_table(TABLE).leader
    return _service(client, leader) if leader else ""


def _runner(client: Client) -> Callable[[Operation], str]:
    return lambda operation: _service(client, operation.runner)


def _service(client: Client, member: str) -> str:
    hosts = {one.id: one.host for one in client.members()}
    if member not in hosts:
        return ""
    found = docker.from_env(timeout=60).containers.get(hosts[member])
    return str(found.labels["com.docker.compose.service"])


def _left(client: Client) -> int:
    return sum(1 for _ in client.backlog(TABLE))


def play(cluster: Cluster, days: Counter[str], source: Path) -> dict[str, Any]:
    """All of it; what is found in the end."""
    storage = cluster.storage()
    for day in days:
        storage.put_file(str(source / day / FILE), f"landing/{day}/{FILE}")
    print(f"{days.total():,} flights of 2013 in {len(days)} daily batches, in the object store", flush=True)
    with cluster.connect() as client:
        client.create_table(TABLE, f"s3://tables/{TABLE}", options={"partitionBy": ["month(time_hour)"]})
        client.set_ordering(TABLE, together=2)
        strike(cluster, client, days)
        until(lambda: _left(client) == 0 or None, "the end of the backlog", 400)
        failed = sum(found.state.value == "failed" for found in client.list(TABLE))
        marks = client.watermarks(TABLE)
        findings = [one.code for one in client.diagnose(TABLE).findings]
    found = cluster.run_inside("coordinator2", Path(__file__).parent / "cluster_rows.py")
    counted = Counter(found["days"])
    return {
        "rows": counted.total(),
        "rows_lost": (days - counted).total(),
        "rows_doubled": (counted - days).total() + found["doubled"],
        "watermarks": sum(map(len, marks.values())),
        "failed_operations": failed,
        "findings": sorted(set(findings)),
        **cluster.struck,
    }


def main() -> int:
    began = time.monotonic()
    try:
        docker.from_env(timeout=10).ping()
    except DockerException as error:
        print(f"no container engine answers ({error}): start one, or set DOCKER_HOST", file=sys.stderr)
        return 2
    if subprocess.run(
        [*COMPOSE, "version"], cwd=ROOT, timeout=60, capture_output=True, check=False
    ).returncode:
        print("docker has no Compose (docker compose version): install its plugin", file=sys.stderr)
        return 2
    folder = Path(__file__).parent / "work-cluster"
    days = write_days(folder / "source")
    with started() as cluster:
        print(f"the cluster is there ({time.monotonic() - began:.0f} s)", flush=True)
        found = play(cluster, days, folder / "source")
    found["seconds"] = round(time.monotonic() - began)
    print(json.dumps(found))
    right = {
        "rows": days.total(),
        "rows_lost": 0,
        "rows_doubled": 0,
        "watermarks": len(days),
        "failed_operations": 0,
    }
    return int(any(found[name] != value for name, value in right.items()))


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
