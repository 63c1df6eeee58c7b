"""Runs one operation in the program that has started it, since only that program has its DataFrame."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from distop.errors import DeadlineExceeded
from distop.executor.launch.launch import LauncherBroken
from distop.executor.runner.options import RunnerOptions
from distop.executor.runner.service import ExecutorConfig, serve_until_told
from distop.executor.runner.types import ServedTypes
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation_id import OperationId
from distop.operations import DistributedOperation
from distop.process.loop import event_loop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

REST_S = 1.0
"""How long it waits before it takes its operation again. No other executor takes it."""
STOP_S = 10.0
"""How long the executor may take to stop once the operation is over."""


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
                runner.run(serve_until_told(config, ServedTypes.only(kind), session, stop))
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
