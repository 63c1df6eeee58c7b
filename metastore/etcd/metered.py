"""A client of etcd whose calls are timed and counted, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Skipped

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class EtcdMetrics:
    """The metrics of a process's calls to etcd."""

    def __init__(self, registry: CollectorRegistry) -> None:
        answered = "Calls to etcd until their answer, fail-over to other members included"
        self.calls = Histogram(
            "distop_etcd_call_seconds", answered, ["call"], buckets=_BUCKETS, registry=registry
        )
        unanswered = "Calls to etcd without an answer"
        self.errors = Counter("distop_etcd_errors", unanswered, ["call", "code"], registry=registry)
        broken = "Watch streams that broke and were opened again"
        self.watches_broken = Counter("distop_etcd_watches_broken", broken, registry=registry)
        registry.register(_KeysSkipped())


class _KeysSkipped(Collector):
    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        skipped = "Keys that could not be read, each time one is skipped: distop cluster doctor names them"
        yield CounterMetricFamily("distop_etcd_keys_skipped", skipped, value=Skipped.count)


class MeteredClient(EtcdClient):
    """The client of etcd, with metrics."""

    def __init__(self, config: EtcdConfig, metrics: EtcdMetrics) -> None:
        super().__init__(config)
        self._metrics = metrics

    async def open_watch(self, request: Any) -> grpc.aio.StreamStreamCall[Any, Any]:
        call = await super().open_watch(request)
        call.add_done_callback(self._watch_done)
        return call

    def _watch_done(self, call: Any) -> None:
        if not call.cancelled():
            self._metrics.watches_broken.inc()

    async def _call(
        self, method: Callable[[Any], Any], request: Any, *, writes: bool, timeout_s: float | None = None
    ) -> Any:
        with self._timed(type(request).__name__.removesuffix("Request")):
            return await super()._call(method, request, writes=writes, timeout_s=timeout_s)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except DistopError as error:
            self._metrics.errors.labels(name, error.code).inc()
            raise
        self._metrics.calls.labels(name).observe(time.perf_counter() - began)
