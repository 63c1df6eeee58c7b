"""Every metric that a process of distop serves."""

from __future__ import annotations

from prometheus_client.core import Metric

from distop.coordinator.metrics.prometheus import PrometheusMetrics
from distop.executor.ledger.ledger import Ledger
from distop.executor.ledger.metrics import executor_metrics, sidecar_metrics
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig


async def families() -> list[Metric]:
    """Of coordinators, executors and sidecars that have done nothing yet."""
    client = EtcdClient(EtcdConfig())
    try:
        ledger = Ledger(client)
        served = list(PrometheusMetrics().registry.collect())
        served += executor_metrics(ledger, running=0, taken={}, ended={})
        served += sidecar_metrics(ledger, connected=0, accepted=0, refused=0)
    finally:
        await client.close()
    return served
