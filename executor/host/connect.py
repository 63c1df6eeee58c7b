"""The connection of an executor or a sidecar to etcd, counted if metrics are enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig

if TYPE_CHECKING:
    from distop.executor.host.metrics import MetricsConfig, ServedMetrics


def connect(etcd: EtcdConfig, metrics: MetricsConfig | None) -> tuple[EtcdClient, ServedMetrics | None]:
    """A client, and the metrics of its calls: nothing of them is loaded unless they are enabled."""
    if metrics is None:
        return EtcdClient(etcd), None
    from distop.executor.host.metrics import ServedMetrics

    served = ServedMetrics(metrics)
    return served.etcd_client(etcd), served
