"""An etcd of three members that tests pause, cut off, kill and replace, as processes of this host.

``make cluster-test`` does the same to members in containers.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

import pytest
from aetcd.rpc import rpc_pb2

from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import (
    ClusterMember,
    EtcdBinary,
    EtcdProcess,
    find_etcd,
    find_etcdctl,
    free_port,
)
from support.etcd.proxy import Proxy
from support.processes import captured, sockets_of
from support.waiting import eventually

NAMES = ("m0", "m1", "m2")
OPTIONS = ("--heartbeat-interval=150", "--election-timeout=1500", "--initial-cluster-token=test")
"""Half as patient again as by default: on a busy machine members must not take each other for dead."""


def etcd_to_kill() -> EtcdBinary:
    """An etcd that keeps what it acknowledged when it is killed; the test is skipped where there is none."""
    binary = find_etcd()
    if binary.lossy:
        pytest.skip(f"etcd {binary.version} ({binary.origin}) can lose data when killed: needs another one")
    return binary


REFUSING_S = 1.0
"""So long a cut-off member waits to be refused: it calls again at once, and who calls takes telling."""


class PeerProxy(Proxy):
    """In front of one member's peers; it can tell who calls, and refuse one of them.

    etcd has one peer address for all others, so callers are distinguished by the process of their socket.
    """

    def __init__(self, target: str, caller: Callable[[int, int], str]) -> None:
        super().__init__(target)
        self._caller = caller
        self._refused: set[str] = set()
        self._ports: dict[asyncio.StreamWriter, int] = {}

    def refuse_from(self, name: str) -> None:
        """Break the connections of one member, and accept none, until :meth:`accept_from`."""
        self._refused.add(name)
        for writer, port in self._ports.items():
            if self._caller(port, self._port) == name:
                writer.transport.abort()

    def accept_from(self, name: str) -> None:
        self._refused.discard(name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._serve(reader, writer)
        finally:
            self._ports.pop(writer, None)

    async def _admits(self, writer: asyncio.StreamWriter) -> bool:
        port = writer.get_extra_info("peername")[1]
        # Not in the event loop, which all traffic of the members goes through.
        if self._refused and await asyncio.to_thread(self._caller, port, self._port) in self._refused:
            await asyncio.sleep(REFUSING_S)
            return False
        self._ports[writer] = port
        return True


class Cluster:
    """Three processes. Their connections go through proxies, which is where they are cut.

    Clients reach member ``n`` at ``endpoints[n]``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = etcd_to_kill()
        self._peers = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        self._clients = {name: free_port() for name in NAMES}
        self._peer_proxies = {name: PeerProxy(address, self._caller) for name, address in self._peers.items()}
        self._client_proxies = {name: Proxy(f"127.0.0.1:{port}") for name, port in self._clients.items()}
        self.endpoints = tuple(self._client_proxies[name].endpoint for name in NAMES)
        self._members = {name: self._process(name) for name in NAMES}
        self._stack = AsyncExitStack()

    def _process(self, name: str, *, joins: bool = False) -> EtcdProcess:
        addresses = {other: proxy.endpoint for other, proxy in self._peer_proxies.items()}
        membership = ClusterMember(name=name, listen_peers=self._peers[name], cluster=addresses, joins=joins)
        return EtcdProcess(
            self._folder / (f"{name}-again" if joins else name),
            client_port=self._clients[name],
            binary=self._binary,
            options=OPTIONS,
            membership=membership,
        )

    def _caller(self, port: int, to: int) -> str:
        """The member whose process has a connection from one port to the other. One elsewhere may come from
        the same port."""
        table = Path("/proc/net/tcp").read_text()
        start = table.find(f": 0100007F:{port:04X} 0100007F:{to:04X} ")
        if start < 0:
            return ""
        inode = table[start : table.find("\n", start)].split()[9]
        for name, member in self._members.items():
            if not member.running:
                continue
            with suppress(OSError):  # it has ended meanwhile
                if inode in sockets_of(member.pid):
                    return name
        return ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as started:
            for proxy in (*self._peer_proxies.values(), *self._client_proxies.values()):
                await started.enter_async_context(proxy)
            for member in self._members.values():
                started.callback(member.kill)
                member.launch()
            for member in self._members.values():
                await asyncio.to_thread(member.await_answer)
            self._stack = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._members.values():
            member.kill()
        await self._stack.aclose()

    def config(self, prefix: str) -> EtcdConfig:
        """How a client reaches them."""
        return EtcdConfig(endpoints=self.endpoints, prefix=prefix)

    def direct(self, name: str) -> str:
        """Where a member listens, whether or not it is cut off from its clients."""
        return f"127.0.0.1:{self._clients[name]}"

    def peer_url(self, name: str) -> str:
        """Where other members reach it."""
        return f"http://{self._peer_proxies[name].endpoint}"

    async def pause(self, name: str) -> None:
        """Pause it; its connections stay open."""
        self._members[name].suspend()

    async def resume(self, name: str) -> None:
        self._members[name].resume()

    async def cut(self, name: str) -> None:
        """It reaches nobody and nobody reaches it, neither members nor clients."""
        # Clients meet silence, as behind a firewall that drops packets; members a connection that breaks.
        self._client_proxies[name].hold_requests()
        self._client_proxies[name].hold_replies()
        await self._peer_proxies[name].refuse()
        for other, proxy in self._peer_proxies.items():
            if other != name:
                proxy.refuse_from(name)

    async def heal(self, name: str) -> None:
        self._client_proxies[name].flow()
        await self._peer_proxies[name].accept()
        for proxy in self._peer_proxies.values():
            proxy.accept_from(name)

    async def kill(self, name: str) -> None:
        self._members[name].kill()
        # Where nobody listens connections are refused, as they would be without a proxy.
        await self._peer_proxies[name].refuse()
        await self._client_proxies[name].refuse()

    async def start_anew(self, name: str) -> None:
        """A new member in the place of one that was killed, with nothing of its data."""
        await self._peer_proxies[name].accept()
        await self._client_proxies[name].accept()
        self._members[name] = self._process(name, joins=True)
        await asyncio.to_thread(self._members[name].start)

    async def leader(self, *, but: str = "") -> str:
        """The member that leads, once one does that is not ``but``."""
        return await eventually(lambda: self._leader(but), every_s=0.1)

    async def _leader(self, but: str) -> str:
        for name in NAMES:
            if name == but:
                continue
            client = EtcdClient(EtcdConfig(endpoints=(self.direct(name),), timeout_s=1.0))
            try:
                status = await client.maintenance(lambda stub: stub.Status, rpc_pb2.StatusRequest())
            except DistopError:
                continue
            finally:
                await client.close()
            if status.leader and status.leader == status.header.member_id:
                return name
        return ""

    async def replace(self, name: str) -> None:
        """Take a member that was killed for lost: remove it, and add a new one in its place."""
        other = next(member for member in NAMES if member != name)
        listed = await asyncio.to_thread(self._etcdctl, other, "member", "list")
        identity = next(line.split(", ")[0] for line in listed.splitlines() if line.split(", ")[2] == name)
        await self._until_done(other, "member", "remove", identity)
        # etcd takes nobody in before the members that are left have been in touch for some seconds.
        await self._until_done(other, "member", "add", name, f"--peer-urls={self.peer_url(name)}")
        await self.start_anew(name)

    async def _until_done(self, at: str, *words: str) -> None:
        async def done() -> bool:
            try:
                await asyncio.to_thread(self._etcdctl, at, *words)
            except subprocess.CalledProcessError as error:
                if "unhealthy" not in error.stderr:
                    raise
                return False
            return True

        await eventually(done, 30.0, every_s=0.5)

    def _etcdctl(self, at: str, *words: str) -> str:
        command = [str(find_etcdctl()), f"--endpoints={self.direct(at)}", *words]
        environment = os.environ | {"ETCDCTL_API": "3"}
        done = captured(command, env=environment, check=True, timeout=20)
        return done.stdout
