"""The executor as a process, inside a user's own program, and for one operation of the program itself."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from distop.errors import DeadlineExceeded, DistopError, EtcdDenied, LauncherBroken, require
from distop.executor.host.connect import connect
from distop.executor.host.scratch_sweep import keep_swept
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import LocalLauncher, TaskLauncher
from distop.executor.ledger.ledger import Ledger
from distop.executor.runner.options import RunnerOptions, ServedTypes, Tally
from distop.executor.runner.runner import Runner
from distop.lake.storage.allowed import restrict
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.operations import DistributedOperation, Registry
from distop.process.loop import (
    cancel_all,
    event_loop,
    event_of,
    kept_running,
    log_failure,
    notify_manager,
    settle_heap,
)
from distop.process.tracing import Tracer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distop.executor.host.metrics import MetricsConfig, ServedMetrics

log = logging.getLogger(__name__)

NO_SPARK = "none"
"""The master for threads of this process instead of Spark."""

_RETRY_S = 0.5

T = TypeVar("T")

REST_S = 1.0
"""How long it waits before it takes its operation again. No other executor takes it."""
STOP_S = 10.0
"""How long the executor may take to stop once the operation is over."""


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig:
    """The configuration of an executor."""

    etcd: EtcdConfig
    master: str = NO_SPARK
    """A Spark master, such as ``local[2]`` or ``spark://host:7077``; ``none``: threads, no Spark."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More settings for Spark; they override the runner's own."""
    types: Sequence[str] | None = None
    """Operation types to serve; ``None``: all that are installed here."""
    slots: int = 0
    """Threads per operation without Spark; 0: a few more than there are processors."""
    runner: RunnerOptions = field(default_factory=RunnerOptions)
    metrics: MetricsConfig | None = None
    """Where its metrics are served; ``None``: nowhere."""


def run(config: ExecutorConfig) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0, or 1 if nothing can be launched any more."""
    types = ServedTypes(Registry(), config.types)
    settle_heap()
    return _run(config, types, session=None, stop=None, ready=lambda _: notify_manager("READY=1"))


def run_in_program(
    session: SparkSession | None,
    etcd: EtcdConfig | None,
    types: Sequence[str] | None,
    max_operations: int,
    stop: threading.Event | None,
) -> int:
    """Serve in a program of the caller: see :func:`distop.executor.run`."""
    restrict()
    config = ExecutorConfig(
        etcd=etcd or EtcdConfig.from_env(), types=types, runner=RunnerOptions(max_operations=max_operations)
    )
    return _run(config, ServedTypes(Registry(), config.types), session=session, stop=stop)


def _run(
    config: ExecutorConfig,
    types: ServedTypes,
    *,
    session: SparkSession | None,
    stop: threading.Event | None,
    ready: Callable[[str], None] = lambda member: None,
) -> int:
    with asyncio.Runner(loop_factory=event_loop) as runner:
        try:
            runner.run(serve_until_stopped(config, types, session, stop, ready))
        except LauncherBroken as error:
            log.error("executor_broken", extra={"error": str(error)})
            return 1
        except EtcdDenied as error:
            log.error("executor_failed", extra={"code": error.code, "error": str(error)})
            return error.kind.exit_code
    return 0


async def serve_until_stopped(
    config: ExecutorConfig,
    types: ServedTypes,
    session: SparkSession | None,
    stop_event: threading.Event | None,
    ready: Callable[[str], None] = lambda member: None,
) -> None:
    """Serve until ``stop_event`` is set, or (in the main thread) until a signal. Raises as :func:`serve`."""
    stop = asyncio.Event() if stop_event is None else event_of(stop_event)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client, metrics = connect(config.etcd, config.metrics)
    try:
        await serve(client, config, types, stop, session=session, ready=ready, metrics=metrics)
    finally:
        if metrics is not None:
            await metrics.stop()
        await client.close()


async def serve(
    client: EtcdClient,
    config: ExecutorConfig,
    types: ServedTypes,
    stop: asyncio.Event,
    *,
    session: SparkSession | None = None,
    ready: Callable[[str], None] = lambda member: None,
    metrics: ServedMetrics | None = None,
) -> None:
    """Serve on the running event loop, one incarnation of a runner after the other, until ``stop``.

    Parameters
    ----------
    ready:
        Called with the member id of each incarnation when it begins.
    metrics:
        Started here, when there are metrics to serve. The caller stops it.

    Raises
    ------
    LauncherBroken
        Nothing can be launched here any more. All operations have been released.
    AddressInUse
        The metrics cannot be served at their address.
    EtcdDenied
        etcd has never accepted its user and password.
    ExtraMissing
        The master is a Spark master, and Spark is not installed here.
    """
    tracer = Tracer.from_env("executor")
    ledger, tally = Ledger(client), Tally()
    launcher = make_launcher(ledger, config, session)
    folder = SidecarFolder.of(config.etcd.endpoints, config.etcd.prefix)
    sweep: asyncio.Task[None] | None = None
    try:
        # Before anything speaks to etcd: Spark's Python code forks to start a JVM (see process/forks.py).
        await launcher.start()
        if metrics is not None:
            from distop.executor.ledger.metrics import executor_metrics, is_registered

            await metrics.start(
                lambda: executor_metrics(
                    ledger,
                    running=tally.running,
                    taken=tally.taken,
                    ended=tally.ended,
                    spans=tracer.counts,
                ),
                lambda: is_registered(ledger),
            )
        # If jobs run in threads, there may be no sidecar that does it.
        sweep = asyncio.create_task(kept_running("scratch", partial(keep_swept, client, folder.scratch)))
        served = False
        while not stop.is_set():
            runner = Runner(
                ledger, launcher, types, config.runner, rng=random.Random(), tally=tally, tracer=tracer
            )
            ready(runner.member)
            try:
                await runner.serve(stop)
                served = True
            except LauncherBroken:
                raise
            except EtcdDenied:
                if not served:
                    raise  # no retry would help
                await asyncio.sleep(_RETRY_S)
            except DistopError as error:
                log_failure(log, "runner_failed", error, member=runner.member)
                await asyncio.sleep(_RETRY_S)
    finally:
        await cancel_all(sweep)
        await ledger.close()
        await launcher.close()
        await asyncio.to_thread(tracer.close)


def require_spark(master: str) -> None:
    """Raise :class:`~distop.errors.ExtraMissing` if the master is Spark's and Spark is not installed here."""
    if master != NO_SPARK:
        require("pyspark", "spark", f"the Spark master {master!r}")


def make_launcher(ledger: Ledger, config: ExecutorConfig, session: SparkSession | None) -> TaskLauncher:
    """The configured launcher. Spark is imported only if it is used."""
    if session is None and config.master == NO_SPARK:
        return LocalLauncher(ledger, slots=config.slots)
    if session is None:
        require_spark(config.master)
    from distop.executor.launch.spark import SparkLauncher

    return SparkLauncher(config.etcd, master=config.master, settings=config.settings, session=session)


def run_hosted(
    operation: OperationId,
    kind: DistributedOperation,
    wait: Callable[[], T],
    *,
    session: SparkSession | None,
    etcd: EtcdConfig,
    lease_ttl_s: int = 5,
) -> T:
    """Execute one operation until ``wait`` returns.

    Parameters
    ----------
    kind:
        Its type, with the objects that only this program has.
    wait:
        Returns once the operation is over; raises :class:`~distop.errors.DeadlineExceeded` from time to time
        while it is not, and is called again then.

    Raises
    ------
    LauncherBroken
        Its Spark session is unusable. Another program can continue the operation.
    DistopError
        Any error of ``wait`` or of etcd.
    """
    options = RunnerOptions(max_operations=1, lease_ttl_s=lease_ttl_s, rest_s=REST_S, only=operation)
    config = ExecutorConfig(etcd=etcd, runner=options)
    stop, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=event_loop) as runner:
                runner.run(serve_until_stopped(config, ServedTypes.only(kind), session, stop))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name=f"distop-{operation}", daemon=True)
    thread.start()
    try:
        while True:
            try:
                return wait()
            except DeadlineExceeded:
                if not thread.is_alive():
                    raise (failed[0] if failed else LauncherBroken("the executor has ended")) from None
    finally:
        stop.set()
        thread.join(STOP_S)
