"""The metrics of a process for Prometheus: those that every process has, and the answer to a scrape."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response


def process_registry() -> CollectorRegistry:
    """A new registry, with the metrics of every process: version, CPU, memory, descriptors."""
    registry = CollectorRegistry()
    Info("distop_build", "The version that runs", registry=registry).info({"version": version("distop")})
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def span_metric(counts: Mapping[str, int]) -> Metric:
    """The spans of traces so far, by what became of them: :attr:`~distop.process.tracing.Tracer.counts`."""
    metric = CounterMetricFamily(
        "distop_trace_spans", "Spans of traces, by what became of them", labels=["outcome"]
    )
    for outcome, count in sorted(counts.items()):
        metric.add_metric([outcome], count)
    return metric


def show_metrics(request: Request, registry: CollectorRegistry) -> Response:
    """The metrics, in the format that the scraper accepts."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": kind})


async def alive(_: Request) -> Response:
    """Whether the event loop answers. An etcd that is away is no reason to restart a process."""
    return PlainTextResponse("alive\n")


def ready(is_member: bool) -> Response:
    """Whether a process is a member, in etcd under a lease: not while it starts or ends, nor when cut off."""
    return PlainTextResponse("ready\n" if is_member else "no member\n", 200 if is_member else 503)
