"""Executors: the runner in a Spark driver, the sidecar on a worker, and what tasks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from distop.metastore.etcd.config import EtcdConfig

__all__ = ["run"]


def run(
    spark: SparkSession | None = None,
    *,
    etcd: EtcdConfig | None = None,
    types: Sequence[str] | None = None,
    max_operations: int = 4,
    stop: threading.Event | None = None,
) -> int:
    """Run operations in this program until ``stop`` is set, or SIGTERM or SIGINT arrives (in the main
    thread).

    Parameters
    ----------
    spark:
        The session for jobs; it stays the caller's. ``None``: threads of this process. A session
        made with the settings of ``distop.executor.launch.SETTINGS`` is much faster.
    etcd:
        How to reach etcd; by default as the environment says (``DISTOP_ETCD``).
    types:
        Operation types to serve; by default all that are registered here.
    max_operations:
        Operations at once.

    It opens what callers name if the environment lists it (``DISTOP_ALLOW_SOURCES``,
    ``DISTOP_ALLOW_LOCATIONS``; ``*``: everything).

    Returns
    -------
    0, or 1 when the session broke; all operations were then released.
    """
    # Spark's workers import this package for tasks and must not pay for gRPC.
    from distop.executor.runner.service import run_in_program

    return run_in_program(spark, etcd, types, max_operations, stop)
