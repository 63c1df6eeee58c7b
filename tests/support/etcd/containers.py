"""The three members as containers, through testcontainers; the image is made from the etcd of this host.

There is no registry to pull from: the image is etcd's program and the libraries it is linked with, and no
more. ``DISTOP_ETCD_IMAGE`` names another one.
"""

import asyncio
import io
import os
import re
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from distop.metastore.etcd.embedded import free_port
from support.etcd.clusters import NAMES, OPTIONS, Cluster, etcd_to_kill
from support.processes import captured
from support.waiting import eventually

IMAGE = "distop-test-etcd"
DATA = "/data"


@cache
def engine() -> Any:
    """A docker engine; the test is skipped where none answers."""
    # Its reaper is an image of its own, which nothing here could pull; we remove what we make.
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except DockerException as error:
        return f"no container engine answers: {error}"
    return client


def engine_or_skip() -> Any:
    found = engine()
    if isinstance(found, str):
        pytest.skip(found)
    return found


NOT_THERE = (
    "docker with Compose is not there, or may not make a base image (root may; or name DISTOP_BASE_IMAGE): "
    "no target of make installs it, make images needs it"
)


def base_of_images() -> str:
    """The base on which ``make images`` can build here; empty: it cannot."""
    base = os.environ.get("DISTOP_BASE_IMAGE") or ("here" if os.getuid() == 0 else "")
    return base if shutil.which("docker") and not isinstance(engine(), str) else ""


def image() -> str:
    """The image to run: the one that is named, or one made from scratch out of this host's etcd."""
    if named := os.environ.get("DISTOP_ETCD_IMAGE"):
        return named
    binary = etcd_to_kill()
    tag = f"{IMAGE}:{binary.version}"
    client = engine_or_skip()
    if not client.images.list(tag):
        changes = ['ENTRYPOINT ["/etcd"]', f"ENV ETCD_DATA_DIR={DATA}"]
        client.api.import_image_from_data(_archive(binary.path), IMAGE, binary.version, changes=changes)
    return tag


def _archive(binary: Path) -> bytes:
    """A root file system with etcd in it: its libraries as ``ldd`` names them; none if it is static."""
    said = captured(["ldd", binary], timeout=20).stdout
    libraries = re.findall(r"(/\S+) \(0x", said)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        archive.add(binary, "etcd")
        for library in libraries:
            archive.add(library, library.lstrip("/"))
        for folder in ("tmp", DATA.strip("/")):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(entry)
    return packed.getvalue()


class ContainerCluster(Cluster):
    """Three containers on a network of their own. A member that is cut off is taken from that network."""

    def __init__(self) -> None:
        self._engine = engine_or_skip()
        self._image = image()
        self._containers: dict[str, Any] = {}
        self._network: Any = None
        self._ports = {name: free_port() for name in NAMES}
        self._hosts: dict[str, str] = {}
        self.endpoints: tuple[str, ...] = ()

    def _start(self, name: str, *, joins: bool = False) -> None:
        from docker.types import EndpointConfig
        from testcontainers.core.container import DockerContainer

        cluster = ",".join(f"{other}={self.peer_url(other)}" for other in NAMES)
        url = f"http://{self._hosts[name]}:2379"
        command = [
            f"--name={name}",
            f"--initial-cluster={cluster}",
            f"--initial-cluster-state={'existing' if joins else 'new'}",
            f"--initial-advertise-peer-urls={self.peer_url(name)}",
            "--listen-peer-urls=http://0.0.0.0:2380",
            "--listen-client-urls=http://0.0.0.0:2379",
            f"--advertise-client-urls={url}",
            *OPTIONS,
        ]
        container = DockerContainer(self._image).with_command(command)
        # Under a fixed address: it must come back under the same one after it was cut off.
        place = EndpointConfig(self._engine.api.api_version, ipv4_address=self._hosts[name])
        container.with_kwargs(network=self._made.name, networking_config={self._made.name: place})
        self._containers[name] = container.start()

    def _connect(self, name: str) -> None:
        self._network.connect(self._containers[name].get_wrapped_container(), ipv4_address=self._hosts[name])

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._make_network)
        for name in NAMES:
            await asyncio.to_thread(self._start, name)
        await self.leader()
        return self

    def _make_network(self) -> None:
        from docker.types import IPAMConfig, IPAMPool
        from testcontainers.core.network import Network

        # Of the addresses that are meant for tests of networks, so that nobody's own are in the way.
        subnet = f"198.18.{os.getpid() % 250}"
        pool = IPAMPool(subnet=f"{subnet}.0/24", gateway=f"{subnet}.1")
        self._made = Network(docker_network_kw={"ipam": IPAMConfig(pool_configs=[pool])}).create()
        self._network = self._engine.networks.get(self._made.id)
        self._hosts = {name: f"{subnet}.{10 + at}" for at, name in enumerate(NAMES)}
        self.endpoints = tuple(f"{self._hosts[name]}:2379" for name in NAMES)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        for container in self._containers.values():
            container.stop(force=True)
        self._made.remove()

    def direct(self, name: str) -> str:
        return f"{self._hosts[name]}:2379"

    def peer_url(self, name: str) -> str:
        return f"http://{self._hosts[name]}:2380"

    async def pause(self, name: str) -> None:
        await asyncio.to_thread(self._containers[name].get_wrapped_container().pause)

    async def resume(self, name: str) -> None:
        await asyncio.to_thread(self._containers[name].get_wrapped_container().unpause)

    async def cut(self, name: str) -> None:
        container = self._containers[name].get_wrapped_container()
        await asyncio.to_thread(self._network.disconnect, container)

    async def heal(self, name: str) -> None:
        await asyncio.to_thread(self._connect, name)

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self._containers[name].get_wrapped_container().kill)

    async def start_anew(self, name: str) -> None:
        await asyncio.to_thread(self._containers.pop(name).stop, True)
        await asyncio.to_thread(self._start, name, joins=True)
        await eventually(lambda: self._answers(name), 30.0, every_s=0.2)

    async def _answers(self, name: str) -> bool:
        try:
            await asyncio.to_thread(self._etcdctl, name, "endpoint", "health")
        except subprocess.SubprocessError:
            return False
        return True
