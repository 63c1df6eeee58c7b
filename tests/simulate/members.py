"""Coordinators and executors: the product's own processes, with what they stand on replaced."""

import asyncio
import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from distop.coordinator.service import Coordinator, CoordinatorConfig
from distop.coordinator.work.places import Places
from distop.coordinator.work.processes import Surroundings
from distop.errors import LeaseLost
from distop.executor.host.connect import connect
from distop.executor.runner import service
from distop.executor.runner.options import RunnerOptions, ServedTypes
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.tables.watermarks import ChunkReader
from distop.operations.registry import Registry
from simulate.chance import Chance
from simulate.doors import Doors
from simulate.kinds import KINDS, OPERATIONS
from simulate.launcher import Launcher, Removed
from simulate.loop import Loop, present
from simulate.network import Network
from simulate.renewal import Renewal


async def coordinate(chance: Chance) -> None:
    """The life of a coordinator."""
    config = CoordinatorConfig(
        etcd=_etcd(chance),
        listen="127.0.0.1:0",
        lease_ttl_s=chance.coordinator_ttl_s,
        operations=OPERATIONS,
    )
    coordinator = Coordinator(config)
    present().stop = coordinator.stop
    await coordinator.run()


async def execute(chance: Chance) -> None:
    """The life of an executor."""
    config = service.ExecutorConfig(
        etcd=_etcd(chance), runner=RunnerOptions(lease_ttl_s=chance.executor_ttl_s, max_operations=2)
    )
    client, _ = connect(config.etcd, None)
    types = ServedTypes(Registry(OPERATIONS), list(KINDS))
    stop = asyncio.Event()
    present().stop = stop.set
    await service.serve(client, config, types, stop)
    await client.close()


def _etcd(chance: Chance) -> EtcdConfig:
    return EtcdConfig(endpoints=("model:0",), timeout_s=chance.timeout_s)


@contextmanager
def replaced(network: Network, doors: Doors, chance: Chance, removed: Removed) -> Iterator[None]:
    """What the product finds instead of gRPC, threads, and processes for user code."""
    replacements: dict[str, Any] = {
        "distop.metastore.etcd.channels.open_channel": network.channel,
        "distop.metastore.members.lease.Renewal": partial(Renewal, network),
        "distop.metastore.members.registration.os": SimpleNamespace(getpid=lambda: 1),
        "socket.gethostname": lambda: "host",
        "distop.coordinator.service.Processes": lambda operations: Processes(operations, chance),
        "distop.coordinator.service.grpc": SimpleNamespace(aio=SimpleNamespace(server=doors.server)),
        "distop.coordinator.service.reflection": mock.MagicMock(),
        # What is done differently for many keys is done for some.
        "distop.metastore.operations.runs._LISTED_AT_ONCE": chance.many_keys,
        "distop.metastore.records.watermarks.FOLD_BYTES": chance.many_bytes,
        "distop.executor.runner.service.make_launcher": lambda ledger, *_: Launcher(ledger, chance, removed),
    }
    with ExitStack() as stack:
        for name, replacement in replacements.items():
            stack.enter_context(mock.patch(name, replacement))
        stack.enter_context(mock.patch.object(ChunkReader, "__call__", _read_chunks))
        yield


def _read_chunks(reader: ChunkReader, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
    loop, home = asyncio.get_running_loop(), reader._home
    assert isinstance(loop, Loop)
    assert home is not None
    chunks: list[tuple[bytes, bytes] | None] = loop.read(
        (reader._revision, tuple(positions)), lambda: reader.read(home[0], positions)
    )
    return chunks


class Processes:
    """In place of the pool of processes for user code: it runs here, and takes its time."""

    places = Places

    def __init__(self, operations: Sequence[str], chance: Chance) -> None:
        self.operations, self._chance = operations, chance
        self.lease = _Lease()

    async def load(self, module: str, *, forkable: bool = False) -> None:
        importlib.import_module(module)

    async def run(self, call: Any, kind: str = "", *, limit_s: float) -> Any:
        lease = self.lease.lease

        def check() -> None:
            if self.lease.lease != lease:
                raise LeaseLost

        surroundings = Surroundings(Registry(self.operations), check)
        return await asyncio.get_running_loop().run_in_executor(None, call, surroundings)

    def close(self) -> None:
        pass


class _Lease:
    """In place of the memory that such processes share."""

    def __init__(self) -> None:
        self.lease, self.until = 0, 0.0

    def holds(self, lease: int, until: float) -> None:
        self.lease, self.until = lease, until
