"""The cluster of deploy/compose.yaml: its containers, which stand for hosts, and what can happen to them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import docker
import s3fs
from docker.errors import DockerException

from distop.client import Client, Credentials

ROOT = Path(__file__).parent.parent
SECRETS = ROOT / "deploy" / "compose" / "secrets"
PROJECT = "distop-demo"
COMPOSE = ["docker", "compose", "--progress", "quiet", "-p", PROJECT, "-f", "deploy/compose.yaml"]
UP_S, DOWN_S = 420, 180
"""Deadlines of Compose."""


class Cluster:
    """Its containers by the names of their services, and clients of it."""

    hosts_are = "containers"

    def __init__(self) -> None:
        self._engine = docker.from_env(timeout=60)
        self._engine.ping()
        self.struck: Counter[str] = Counter()

    def connect(self) -> Client:
        """As who may do everything, through both coordinators."""
        shown = Credentials(ca=str(SECRETS / "ca.crt"), token_file=str(SECRETS / "admin-token"))
        return Client("127.0.0.1:7070,127.0.0.1:7080", timeout_s=60, connect_timeout_s=60, credentials=shown)

    def address(self, service: str) -> str:
        """What the others know it by."""
        return service

    def service_of(self, host: str) -> str:
        """The service of a member's host, which is its container."""
        return str(self._engine.containers.get(host).labels["com.docker.compose.service"])

    def url(self, name: str) -> str:
        """Where files of all hosts are."""
        return f"s3://{name}"

    def put(self, file: Path, name: str) -> None:
        """Have all hosts see a file."""
        self.storage.put_file(str(file), name)

    @cached_property
    def storage(self) -> s3fs.S3FileSystem:
        """Its object store, at the address that it has on this machine."""
        networks = self.container("s3").attrs["NetworkSettings"]["Networks"].values()
        address = next(iter(networks))["IPAddress"]
        secret = (SECRETS / "s3-secret-key").read_text().strip()
        return s3fs.S3FileSystem(key="distop", secret=secret, endpoint_url=f"http://{address}:8333")

    def container(self, service: str) -> Any:
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        (container,) = self._engine.containers.list(all=True, filters={"label": labels})
        return container

    # -- faults --------------------------------------------------------------------------------------

    @contextmanager
    def killed(self, services: str) -> Iterator[None]:
        """Hosts that die, with all that runs there, and come back; spaces stand between their names."""
        hosts = [self.container(service) for service in services.split()]
        for host in hosts:
            host.kill("SIGKILL")
        self.struck["hosts_killed"] += len(hosts)
        yield
        for host in hosts:
            host.start()

    @contextmanager
    def stopped(self, service: str) -> Iterator[None]:
        """A host that is asked to end, and comes back."""
        self.container(service).stop(timeout=30)
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

    @contextmanager
    def filled(self, service: str) -> Iterator[None]:
        """A host whose disk is full: what is not read-only there."""
        host = self.container(service)
        _, printed = host.exec_run(["sh", "-c", "cat /dev/zero > /tmp/full"])
        if b"No space left" not in printed:
            raise SystemExit(f"the disk of {service} did not fill up: {printed.decode(errors='replace')}")
        self.struck["disks_filled"] += 1
        yield
        host.exec_run(["rm", "/tmp/full"])

    @contextmanager
    def slowed(self, service: str) -> Iterator[None]:
        """A host whose packets leave 200 ms late; where the kernel cannot hold packets back (netem), it sends
        1 Mbit/s at most."""
        inside = ["nsenter", f"--net=/proc/{self.container(service).attrs['State']['Pid']}/ns/net"]
        for how in (
            ["netem", "delay", "200ms"],
            ["tbf", "rate", "1mbit", "burst", "16kb", "latency", "400ms"],
        ):
            added = _run(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", *how)
            if added.returncode == 0:
                break
        else:
            raise SystemExit(f"the network of {service} cannot be slowed (root and tc?): {added.stderr}")
        self.struck[f"networks_slowed_by_{how[0]}"] += 1
        yield
        _run(*inside, "tc", "qdisc", "del", "dev", "eth0", "root")

    @contextmanager
    def ahead(self, service: str, library: Path) -> Iterator[None]:
        """A host whose clock is ten minutes ahead, by libfaketime: started anew for it, and after it."""
        changed = {
            "environment": {
                "LD_PRELOAD": f"/opt/{library.name}",
                "FAKETIME": "+600",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            },
            "volumes": [f"{library}:/opt/{library.name}:ro"],
        }
        file = library.parent / "ahead.json"
        file.write_text(json.dumps({"services": {service: changed}}))
        again = ["up", "--detach", "--wait", "--no-deps", service]
        _compose("-f", str(file), *again, timeout_s=DOWN_S)
        self.struck["clocks_ahead"] += 1
        yield
        _compose(*again, timeout_s=DOWN_S)

    @contextmanager
    def program(self, name: str, script: Path, *words: str) -> Iterator[None]:
        """Another host, with a Spark program of a user's, until the end of the context. It is one of the
        containers, by this name."""
        (network,) = self.container("master").attrs["NetworkSettings"]["Networks"]
        shown = ("ca.crt", "admin-token", "aws")
        host = self._engine.containers.run(
            "distop:spark",
            ["-c", script.read_text(), *words],
            entrypoint=["python"],
            name=name,
            hostname=name,
            network=network,
            detach=True,
            environment={
                "DISTOP_ADDRESS": "coordinator1:7070,coordinator2:7070",
                "DISTOP_CA": "/run/secrets/ca.crt",
                "DISTOP_TOKEN_FILE": "/run/secrets/admin-token",
                "AWS_ENDPOINT_URL": "http://s3:8333",
                "AWS_SHARED_CREDENTIALS_FILE": "/run/secrets/aws",
                "AWS_REGION": "us-east-1",
            },
            volumes=[f"{SECRETS / secret}:/run/secrets/{secret}:ro" for secret in shown],
            labels={"com.docker.compose.project": PROJECT, "com.docker.compose.service": name},
        )
        try:
            yield
        except BaseException:
            print(host.logs(tail=40).decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            host.remove(force=True, v=True)

    def run_inside(self, service: str, script: Path, *words: str) -> Any:
        """What a Python program says, as JSON, where the service runs."""
        name = self.container(service).name
        done = subprocess.run(
            ["docker", "exec", "--interactive", name, "python", "-", *words],
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
    _compose(
        "down", "--volumes", "--remove-orphans", "--timeout", "5", timeout_s=DOWN_S
    )  # of a demo that was killed
    try:
        _compose("up", "--detach", "--wait", timeout_s=UP_S)
        yield cluster
    except BaseException:
        subprocess.run([*COMPOSE, "logs", "--tail", "40"], cwd=ROOT, timeout=60, check=False)
        raise
    finally:
        _compose("down", "--volumes", "--timeout", "5", timeout_s=DOWN_S)


def libfaketime(folder: Path) -> Path | None:
    """Debian's, unpacked below the folder; None where it cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("apt-get", "download", "libfaketime", cwd=folder)
    for package in folder.glob("libfaketime_*.deb"):
        _run("dpkg", "-x", str(package), str(folder), cwd=folder)
    folder.chmod(0o755)
    library = next(folder.glob("usr/lib/*/faketime/libfaketime.so.1"), None)
    return Path(shutil.copy(library, folder / library.name)) if library else None


def _run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def _compose(*words: str, timeout_s: float) -> None:
    subprocess.run([*COMPOSE, *words], cwd=ROOT, timeout=timeout_s, check=True)


def missing() -> str:
    """What this machine lacks for it; empty if nothing."""
    try:
        docker.from_env(timeout=10).ping()
    except DockerException as error:
        return f"no container engine answers ({error}): start one, or set DOCKER_HOST"
    if _run(*COMPOSE, "version").returncode:
        return "docker has no Compose (docker compose version): install its plugin"
    return ""
