"""Operations without a coordinator, and executors and sidecars as processes of their own."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder, take_lock
from distop.executor.launch.launch import LocalLauncher
from distop.executor.ledger.ledger import Ledger
from distop.executor.runner.options import RunnerOptions, ServedTypes
from distop.executor.runner.runner import Runner
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from distop.metastore.members.installation import enter
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.runs import Taken, index_puts, take_operation
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import (
    RUNNING,
    JobRecord,
    OperationArg,
    OperationOptions,
    RunnerRecord,
)
from distop.metastore.records.record import decode, encode
from distop.operations import Registry
from distop.process.tracing import Tracer
from support.repository import TESTS as TESTS
from support.services import preloaded
from support.services.leases import LEASE_S, TTL_S
from support.types.work_types import WORK_TYPES
from support.waiting import eventually

_instances = itertools.count(1)


async def start_operation(
    client: EtcdClient,
    type_name: str = "noop",
    argument: Mapping[str, Any] | None = None,
    *,
    jobs: int = 1,
    partitions: list[str] | None = None,
    table: str = "flights",
    exclusive: bool = False,
    stages_files: bool = False,
    location: str = "",
    **options: Any,
) -> OperationArg:
    """Write the keys of a running operation, as a coordinator's start does."""
    arg = OperationArg(
        table=table,
        type=type_name,
        instance=next(_instances),
        uuid=secrets.token_hex(8),
        argument=dict(argument or {"argument": {"fail": []}}),  # as noop plans it
        partition_count=jobs if partitions is None else len(partitions),
        partitions=partitions,
        exclusive=exclusive,
        stages_files=stages_files,
        location=location,
        options=OperationOptions(**options),
    )
    keys = client.keyspace.operation(arg.id)
    puts = (Put(keys.arg, encode(arg)), Put(keys.state, RUNNING), *index_puts(keys))
    await enter(client)
    await client.txn(Txn(then=puts))
    return arg


async def set_state(client: EtcdClient, arg: OperationArg, state: bytes) -> None:
    """Overwrite the state of an operation, as the transaction does that seals it."""
    await client.put(client.keyspace.operation(arg.id).state, state)


async def remove_operation(client: EtcdClient, arg: OperationArg) -> None:
    """Remove all its keys at once, as the finishing transaction of a small operation does."""
    keys = client.keyspace.operation(arg.id)
    gone = DeleteRange(keys.prefix, prefix_end(keys.prefix))
    entries = (DeleteRange(client.keyspace.active_operation(arg.id)), DeleteRange(keys.waiting))
    await client.txn(Txn(then=(gone, *entries)))


async def job_records(client: EtcdClient, arg: OperationArg) -> dict[str, JobRecord]:
    """The results in etcd."""
    keys = client.keyspace.operation(arg.id)
    records = {}
    for kv in (await client.scan(keys.prefix)).kvs:
        job = keys.partition_of(kv.key)
        if job is not None and job[1] == "state":
            records[job[0]] = decode(kv.value, JobRecord, kv.key)
    return records


async def all_done(client: EtcdClient, arg: OperationArg, timeout_s: float = 15.0) -> dict[str, JobRecord]:
    """All results, once there is one for each job."""

    async def complete() -> dict[str, JobRecord] | None:
        records = await job_records(client, arg)
        return records if len(records) == arg.partition_count else None

    return await eventually(complete, timeout_s)


async def runner_of(client: EtcdClient, arg: OperationArg) -> str:
    """The member that runs it; empty: none."""
    kv = await client.get(client.keyspace.operation(arg.id).runner)
    return decode(kv.value, RunnerRecord).member if kv.exists else ""


@asynccontextmanager
async def lease(client: EtcdClient, ttl_s: int = LEASE_S) -> AsyncIterator[LeaseSession]:
    """A lease that is kept alive."""
    async with LeaseSession(client, ttl_s) as session:
        yield session


async def take(client: EtcdClient, arg: OperationArg, session: LeaseSession, member: str = "tester") -> Taken:
    """Become the runner of an operation."""
    keys: OperationKeys = client.keyspace.operation(arg.id)
    taken = await take_operation(client, keys, RunnerRecord(member=member), session.lease_id)
    assert taken is not None
    return taken


@asynccontextmanager
async def runner(
    client: EtcdClient,
    *,
    slots: int = 4,
    serving: Sequence[str] | None = None,
    more: Sequence[str] = (),
    tracer: Tracer | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Runner, asyncio.Event]]:
    """A runner with threads for tasks, in this event loop; with the event that stops it.

    ``serving``: the types it serves; ``None``: all. ``more``: types as ``module:Class``.
    """
    ledger, stop = Ledger(client), asyncio.Event()
    types = ServedTypes(Registry([*WORK_TYPES.split(","), *more]), serving)
    given = RunnerOptions(**{"lease_ttl_s": LEASE_S, "resync_s": 1.0, **options})
    made = Runner(ledger, LocalLauncher(ledger, slots=slots), types, given, tracer=tracer)
    task = asyncio.create_task(made.serve(stop))
    member = client.keyspace.executor(made.member)

    async def registered() -> bool:
        return task.done() or (await client.get(member)).exists

    await eventually(registered)
    try:
        yield made, stop
    finally:
        stop.set()
        await task
        await ledger.close()


class Child:
    """A process of distop's that tests kill, stop and continue. Its output is ``log``."""

    def __init__(self, etcd: EtcdConfig, folder: Path, *command: str, **environment: str) -> None:
        self.log = folder / f"child-{secrets.token_hex(3)}.log"
        env = {
            **os.environ,
            **etcd.to_env(),
            "DISTOP_OPERATIONS": WORK_TYPES,
            "PYTHONPATH": str(TESTS),
            "PYTHONFAULTHANDLER": "1",
            **environment,
        }
        # Spark starts others like it, and some tests look at how a coordinator was started.
        by_itself = any(word.startswith(("local[", "local-cluster[", "support.spark.")) for word in command)
        start = preloaded.interpreter if by_itself or "coordinator" in command else preloaded.start
        assert command[0] == "-m"
        self._process: preloaded.Process = start(command[1], command[2:], env=env, log=self.log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """SIGSTOP; returns when it has halted."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, also of a halted process; nothing if it has ended."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._process.wait(timeout_s)

    async def exit_code(self) -> int:
        """Its exit code, once it has ended by itself; where it does not, its log says what it was doing."""
        try:
            await eventually(lambda: not self.running)
        except AssertionError as error:
            self._process.send_signal(signal.SIGABRT)  # faulthandler prints all stacks
            self._process.wait(10)
            raise AssertionError(f"{error}\n{self.log.read_text()[-20_000:]}") from None
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def executor_process(etcd: EtcdConfig, folder: Path, master: str = "none", **environment: str) -> Child:
    """An executor as a process: see ``support/services/executor_main.py``."""
    return Child(etcd, folder, "-m", "support.services.executor_main", master, str(TTL_S), **environment)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket below it. Sidecars that tasks have started there
    end before it is removed: they write into it."""
    with tempfile.TemporaryDirectory(prefix="dx") as folder:
        try:
            yield Path(folder)
        finally:
            for pid_file in Path(folder).glob("distop-*/*/pid"):
                end_sidecar(SidecarFolder(pid_file.parent))


def place_in(folder: Path, etcd: EtcdConfig) -> SidecarFolder:
    """Where the sidecar is for processes whose ``DISTOP_RUNTIME_DIR`` is ``folder``."""
    return SidecarFolder.of(etcd.endpoints, etcd.prefix, environ={BASE_VARIABLE: str(folder)}).prepare()


def sidecar_pid(sidecar_folder: SidecarFolder) -> int:
    """The pid of the sidecar that serves in this folder; 0: none."""
    try:
        return int(sidecar_folder.pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def end_sidecar(sidecar_folder: SidecarFolder) -> None:
    """End the sidecar that serves in this folder, if there is one; returns when its process has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _wait_until_free(sidecar_folder.serving_lock, 0.0):
            return
        if pid := sidecar_pid(sidecar_folder):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _wait_until_free(sidecar_folder.serving_lock, 10.0):
            return
    raise AssertionError(f"the sidecar of {sidecar_folder.folder} does not end")


def _wait_until_free(lock_file: Path, timeout_s: float) -> bool:
    """Whether nobody holds the lock within that time; the kernel frees it when its holder has ended."""
    until = time.monotonic() + timeout_s
    while (lock := take_lock(lock_file)) is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    os.close(lock)
    return True


@asynccontextmanager
async def sidecar_process(
    etcd: EtcdConfig,
    sidecar_folder: SidecarFolder,
    folder: Path,
    *,
    idle_exit_s: float = 60.0,
    ttl_s: int = TTL_S,
) -> AsyncIterator[Child]:
    """A sidecar as a process, in a folder of the test's; ready, so that no task starts another one."""
    given = ["--folder", str(sidecar_folder.folder), "--lease-ttl", str(ttl_s)]
    given += ["--idle-exit", str(idle_exit_s)]
    with Child(etcd, folder, "-m", "distop.executor.sidecar.server", *given) as sidecar:
        await eventually(lambda: sidecar_pid(sidecar_folder) == sidecar.pid)
        yield sidecar
