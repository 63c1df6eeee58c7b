"""The metrics of an executor or a sidecar, served over HTTP: loaded only on demand.

No table is a label, as in the coordinator's. Counts are plain numbers where the events happen, and are read
at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.metered import EtcdMetrics, MeteredClient
from distop.process.http import HttpServer, alive, process_registry, ready, show_metrics
from distop.process.tls import Tls, TlsConfig, check_address

MAX_CONNECTIONS = 16


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Where metrics are served. No authentication is needed: they contain only counts."""

    listen: str
    """``host:port``; port 0 picks a free one."""
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        check_address("metrics", self.listen)
        self.tls.check("metrics", self.listen)


class ServedMetrics:
    """The metrics of this process."""

    def __init__(self, config: MetricsConfig) -> None:
        self._registry = process_registry()
        self._etcd = EtcdMetrics(self._registry)
        self._is_ready: Callable[[], bool] = bool
        routes = [Route("/metrics", self._metrics), Route("/livez", alive), Route("/readyz", self._ready)]
        app = Starlette(routes=routes)
        tls = Tls(config.tls) if config.tls.cert else None
        self._server = HttpServer(
            config.listen, app, option="--metrics", connections=MAX_CONNECTIONS, tls=tls
        )

    def etcd_client(self, config: EtcdConfig) -> EtcdClient:
        """A connection to etcd whose calls are counted."""
        return MeteredClient(config, self._etcd)

    async def start(self, read: Callable[[], Iterable[Metric]], is_registered: Callable[[], bool]) -> None:
        """Listen, and serve the metrics until :meth:`stop`.

        Parameters
        ----------
        read:
            Returns the present counts; called on the event loop at each scrape.
        is_registered:
            Whether this process is registered in etcd under a lease.

        Raises
        ------
        AddressInUse
        """
        self._is_ready = is_registered
        self._registry.register(_Read(read))
        await self._server.start()

    async def stop(self) -> None:
        """Answer open requests, and end."""
        await self._server.stop()

    async def _metrics(self, request: Request) -> Response:
        return show_metrics(request, self._registry)

    async def _ready(self, _: Request) -> Response:
        return ready(self._is_ready())


def counter(name: str, text: str, labels: Iterable[str], values: Mapping[Any, float]) -> Metric:
    """A counter; a value for each combination of labels, a tuple of as many texts."""
    family = CounterMetricFamily(name, text, labels=list(labels))
    for labelled, value in sorted(values.items()):
        family.add_metric(labelled, value)
    return family


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge with one value and no labels."""
    return GaugeMetricFamily(name, text, value)


class _Read(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._read()
