"""Coordinators for tests: in this event loop, and as processes that can be killed and stopped."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc.aio

from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.leadership import Leadership, preferred
from distop.coordinator.service import Coordinator, CoordinatorConfig
from distop.coordinator.work.work import Work
from distop.errors.wire import from_rpc_error
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.members.lease import LeaseSession
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import to_json
from support.repository import TESTS
from support.services import preloaded
from support.services.leases import LEASE_S, TTL_S
from support.services.sharing import services_of
from support.tables.nowhere import nowhere
from support.types.probes import PROBES
from support.waiting import eventually

FINAL = (pb.SUCCEEDED, pb.FAILED, pb.CANCELLED)

DEADLINE_S = 60.0
"""Ends what hangs."""


class Service:
    """The gRPC stubs of one coordinator; errors are raised as the classes they were on the other side."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.operations: Any = distop_pb2_grpc.OperationServiceStub(self.channel)
        self.tables: Any = distop_pb2_grpc.TableServiceStub(self.channel)
        self.cluster: Any = distop_pb2_grpc.ClusterServiceStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)

    async def create_table(self, name: str, **fields: Any) -> pb.Table:
        request = pb.CreateTableRequest(name=name, location=nowhere(), **fields)
        with raising():
            table: pb.Table = await self.tables.CreateTable(request, timeout=DEADLINE_S)
        return table

    async def start(
        self, table: str, kind: str = "noop", argument: dict[str, Any] | None = None, **fields: Any
    ) -> OperationId:
        argument_json = to_json(argument or {}, "argument")
        request = pb.StartOperationRequest(table=table, type=kind, argument_json=argument_json, **fields)
        with raising():
            return OperationId.parse((await self.operations.StartOperation(request, timeout=DEADLINE_S)).name)

    async def get(self, operation: OperationId) -> pb.Operation:
        with raising():
            request = pb.GetOperationRequest(name=str(operation))
            reply: pb.Operation = await self.operations.GetOperation(request, timeout=DEADLINE_S)
        return reply

    async def cancel(self, operation: OperationId, **fields: Any) -> pb.Operation:
        request = pb.CancelOperationRequest(name=str(operation), **fields)
        with raising():
            reply: pb.Operation = await self.operations.CancelOperation(request, timeout=DEADLINE_S)
        return reply

    async def resolve(self, operation: OperationId, action: str, **fields: Any) -> pb.Operation:
        request = pb.ResolveOperationRequest(name=str(operation), action=action, **fields)
        with raising():
            reply: pb.Operation = await self.operations.ResolveOperation(request, timeout=DEADLINE_S)
        return reply

    async def ended(self, operation: OperationId, timeout_s: float = DEADLINE_S) -> pb.Operation:
        """The operation once it is over and its last key is gone from the index."""

        async def over() -> pb.Operation | None:
            current = await self.get(operation)
            return current if current.state in FINAL else None

        return await eventually(over, timeout_s)

    async def parked(self, operation: OperationId, timeout_s: float = DEADLINE_S) -> pb.Operation:
        """The operation once it is parked."""
        return await eventually(lambda: self.get(operation), timeout_s, holds=lambda it: it.completion.parked)


@contextlib.contextmanager
def raising() -> Any:
    """Calls inside fail with a :class:`~distop.errors.DistopError`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def config_of(etcd: EtcdConfig, **fields: Any) -> CoordinatorConfig:
    """A coordinator for a test: any port, the probe types."""
    given = {"listen": "127.0.0.1:0", "lease_ttl_s": LEASE_S, "operations": PROBES, **fields}
    return CoordinatorConfig(etcd=etcd, **given)


@contextlib.asynccontextmanager
async def running(config: CoordinatorConfig) -> AsyncIterator[Coordinator]:
    """A coordinator in this event loop, ready, and stopped at the end."""
    coordinator = Coordinator(config)
    task = asyncio.create_task(coordinator.run())
    await eventually(lambda: coordinator.ready.is_set() or task.done())
    if task.done():
        task.result()
    try:
        yield coordinator
    finally:
        coordinator.stop()
        await task


@contextlib.asynccontextmanager
async def serving(etcd: EtcdConfig, **fields: Any) -> AsyncIterator[Service]:
    """A coordinator in this event loop, seen through gRPC."""
    async with running(config_of(etcd, **fields)) as coordinator, Service(coordinator.address) as service:
        yield service


@contextlib.asynccontextmanager
async def leadership(
    client: EtcdClient, *, linger_s: float = 0.2
) -> AsyncIterator[tuple[Leadership, MemberRecord]]:
    """Leadership alone, over any client."""
    with ThreadPoolExecutor(1) as threads:
        work = Work(Registry(PROBES), threads)
        async with LeaseSession(client, 10) as session:
            member = MemberRecord(id=f"m-{session.lease_id:x}")
            await client.put(client.keyspace.coordinator(member.id), encode(member), lease=session.lease_id)
            services = services_of(client, work)
            leading = Leadership(services, session, member, Completion(services), linger_s=linger_s)
            task = asyncio.create_task(leading.run())
            try:
                yield leading, member
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def leader_of(client: EtcdClient, table: str) -> str:
    """The member that leads a table; empty without one."""
    kv = await client.get(client.keyspace.table(table).coordinator)
    return decode(kv.value, LeaderRecord).member if kv.exists else ""


def tables_for(members: Sequence[str], *, each: int) -> list[str]:
    """Names of tables such that every member should lead ``each``. With random names, one may get none."""
    names = [f"t{number}" for number in range(100 * len(members))]
    shares = ([name for name in names if preferred(members, name) == member] for member in members)
    return [name for share in shares for name in share[:each]]


async def members(client: EtcdClient) -> dict[int, MemberRecord]:
    """The live coordinators by pid."""
    listed = (await client.scan(client.keyspace.coordinators)).kvs
    records = [decode(kv.value, MemberRecord) for kv in listed]
    return {record.pid: record for record in records}


class CoordinatorProcess:
    """A coordinator as a process of its own. Its log is ``<folder>/coordinator-<port>.log``."""

    def __init__(
        self,
        etcd: EtcdConfig,
        folder: Path,
        *,
        operations: Sequence[str] = PROBES,
        catalog: bool = False,
        crash: str = "",
        ttl_s: int = TTL_S,
    ) -> None:
        self.etcd = etcd
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log_file = folder / f"coordinator-{self.port}.log"
        self.catalog = f"127.0.0.1:{free_port()}" if catalog else ""
        self._operations, self._crash, self._ttl_s = ",".join(operations), crash, ttl_s
        self._process: preloaded.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, by itself or otherwise."""
        return self._process is not None and self._process.poll() is None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it; see :meth:`member` for when it is ready."""
        env = {
            **os.environ,
            **self.etcd.to_env(),
            "DISTOP_OPERATIONS": self._operations,
            "PYTHONPATH": str(TESTS),
            **({"DISTOP_CRASH_POINTS": self._crash} if self._crash else {}),
        }
        to = [self.address, str(self._ttl_s), *filter(None, [self.catalog])]
        self.log_file.unlink(missing_ok=True)
        self._process = preloaded.start("support.services.coordinator_main", to, env=env, log=self.log_file)

    async def member(self, client: EtcdClient) -> str:
        """Its member id, once it is ready. ``client`` must reach the same etcd."""

        async def record() -> MemberRecord | None:
            assert self._process is not None
            assert self._process.poll() is None, self.log_file.read_text()
            return (await members(client)).get(self.pid)

        return (await eventually(record)).id

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal. After SIGSTOP, returns when it has halted."""
        os.kill(self.pid, number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    async def exit_code(self) -> int:
        """Its exit code, once it has ended by itself."""
        process = self._process
        assert process is not None
        await eventually(lambda: process.poll() is not None)
        return process.wait()

    def kill(self) -> None:
        """SIGKILL, also of a halted process; nothing if it has ended."""
        if self._process is not None and self.is_running:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self.log_file.read_text()


def through(etcd: EtcdConfig, endpoint: str) -> EtcdConfig:
    """The same etcd, reached through a proxy."""
    return replace(etcd, endpoints=(endpoint,))
