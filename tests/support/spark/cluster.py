"""A standalone cluster of Spark. Master and workers are in this process's JVM, executors are processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext

HOSTS = ("127.0.0.2", "127.0.0.3")
"""Spark begins the second attempt of a slow task on another host only."""


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Two hosts with one core each; yields the address of the master.

    As Spark's own ``local-cluster`` does it, whose workers all have the same host.
    """
    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    jvm: Any = SparkContext._jvm
    deploy, option = jvm.org.apache.spark.deploy, jvm.scala.Option.apply
    conf = jvm.org.apache.spark.SparkConf()
    servers = [deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1()]
    try:
        masters = gateway.new_array(jvm.java.lang.String, 1)
        masters[0] = f"spark://{servers[0].address().hostPort()}"
        for number, host in enumerate(HOSTS):
            worker = deploy.worker.Worker.startRpcEnvAndEndpoint(
                host, 0, 0, 1, 1024, masters, str(folder / host), option(number), conf, option(None)
            )
            servers.append(worker)
        yield str(masters[0])
    finally:
        for server in reversed(servers):
            server.shutdown()
            server.awaitTermination()
