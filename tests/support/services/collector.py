"""A receiver of traces, as a collector of OpenTelemetry is one: OTLP over gRPC."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that arrives."""

    def __init__(self) -> None:
        self.url = ""
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self._spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Span]:
        """All so far."""
        with self._lock:
            return list(self._spans)

    def roots(self) -> list[Span]:
        """Those of whole operations."""
        return [span for span in self.spans if "distop.outcome" in attributes(span)]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def attributes(span: Span) -> dict[str, Any]:
    """The attributes of a span."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on loopback."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait(10)
