"""Traces of operations for OpenTelemetry: their identifiers, and spans that are sent in the background.

All identifiers are derived from the operation. So whichever leader or executor continues it after a kill
continues its trace, without asking anybody. Every span is a child of the root, and only the process whose
transaction finished the operation sends the root: a killed process leaves no span without a parent.

Nothing waits for a collector. Spans go into a bounded queue, which a thread empties; what finds the queue
full is dropped, and counted. Only this thread loads OpenTelemetry, and only if there is something to send.
Spark's workers and planning processes send nothing: they report times, with what they report anyway.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from distop.errors import InvalidArgument, require, shortened
from distop.process.logs import trace_id

log = logging.getLogger(__name__)

VARIABLE = "DISTOP_TRACES"
HEADER = "traceparent"
"""The metadata of a call that names the caller's span, as W3C Trace Context defines it."""

MAX_WAITING, MAX_BATCH = 4096, 512
"""Spans that wait to be sent, and those of one request."""
GATHER_S = 0.2
"""How long a span waits for others. Those of a process that is killed meanwhile are lost."""
EXPORT_S = 5.0
"""Longest time for one request, with its repetitions."""
CLOSE_S = 2.0
"""Longest time that the last spans may take when the process ends."""
MAX_TEXT = 1000
"""Characters of an attribute."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?:-.*)?"
)

callers_span: ContextVar[str] = ContextVar("callers_span", default="")
"""The ``traceparent`` of the call that this task answers; empty: it has none."""


def traceparent_in(metadata: Iterable[tuple[str, Any]]) -> str:
    """The caller's ``traceparent`` among the metadata of a call; empty if there is none that is valid."""
    for name, value in metadata:
        if name == HEADER and (match := _TRACEPARENT.fullmatch(str(value))) is not None:
            return f"00-{match[1]}"
    return ""


def own_traceparent() -> tuple[tuple[str, str], ...]:
    """The metadata that names the present span of this program, if it uses OpenTelemetry; else what the
    variable ``TRACEPARENT`` says, as scripts get it from their CI system."""
    if (api := sys.modules.get("opentelemetry.trace")) is not None:
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            return ((HEADER, f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"),)
    given = os.environ.get("TRACEPARENT", "")
    return ((HEADER, given),) if _TRACEPARENT.fullmatch(given) else ()


def _derived(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one operation."""

    token: str
    """Unique, the same in every process: the operation's name and uuid."""
    caller: str = ""
    """The ``traceparent`` of the call that started it: its span is the parent of the root."""

    @property
    def id(self) -> int:
        """The caller's trace id; without a caller, derived from the operation."""
        return int(self.caller[3:35], 16) if self.caller else _derived(self.token, 16)

    @property
    def parent(self) -> int:
        """The id of the caller's span; 0: there is none."""
        return int(self.caller[36:52], 16) if self.caller else 0

    @property
    def sampled(self) -> bool:
        """Whether it is to be recorded: as the caller says."""
        return not self.caller or bool(int(self.caller[53:55], 16) & 1)

    def span(self, part: str) -> int:
        """The id of the span of a part, which is unique within the operation; that of the root is empty."""
        return _derived(f"{self.token}/{part}", 8)


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are in seconds since the Unix epoch."""

    trace: Trace
    part: str
    """Which part of the operation it is; empty: all of it."""
    name: str
    began: float
    ended: float
    _: KW_ONLY
    attributes: Mapping[str, object] = field(default_factory=dict)
    """By names without the prefix ``distop.``; empty ones are left out."""
    error: str = ""
    """``CODE: message``; empty: it has not failed."""
    events: Sequence[tuple[float, str, Mapping[str, object]]] = ()
    """Times, names and attributes."""


class Tracer:
    """Sends the spans of one process. Belongs to one thread, that of its event loop.

    Parameters
    ----------
    endpoint:
        URL of an OTLP/gRPC collector; empty: nothing is sent, and nothing costs anything.
    service:
        Which kind of process this is.
    """

    def __init__(self, endpoint: str = "", service: str = "") -> None:
        self._endpoint, self._service = endpoint, service
        self._waiting: queue.Queue[Span | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self.counts = Counter(dict.fromkeys(("sent", "dropped", "failed"), 0) if endpoint else {})
        """Spans by their outcome: sent, dropped as the queue was full, or refused by the collector or not
        sent in time."""

    @classmethod
    def from_env(cls, service: str) -> Tracer:
        """The tracer that ``DISTOP_TRACES`` asks for.

        Raises :class:`~distop.errors.InvalidArgument` if that is no URL of a collector, and
        :class:`~distop.errors.ExtraMissing` if OpenTelemetry is not installed.
        """
        if not (endpoint := os.environ.get(VARIABLE, "")):
            return cls()
        with suppress(ValueError):
            url = urlsplit(endpoint)
            if url.scheme in ("http", "https") and url.hostname and url.port and url.path in ("", "/"):
                require("opentelemetry", "otel", VARIABLE)
                return cls(endpoint, service)
        raise InvalidArgument(
            f"{VARIABLE}={endpoint!r} is no address of a collector",
            hint=f"use {VARIABLE}=http://HOST:4317, or https://",
        )

    @property
    def on(self) -> bool:
        """Whether spans are sent."""
        return bool(self._endpoint)

    def send(self, *spans: Span) -> None:
        """Send spans that have ended, soon. Never blocks, never raises."""
        if not self._endpoint:
            return
        if self._thread is None:  # only now: Spark forks when it starts
            self._thread = threading.Thread(target=self._serve, name="distop-traces", daemon=True)
            self._thread.start()
        for span in spans:
            if span.trace.sampled:
                try:
                    self._waiting.put_nowait(span)
                except queue.Full:
                    self.counts["dropped"] += 1

    @contextmanager
    def inside(self, trace: Trace) -> Iterator[None]:
        """What this task logs inside carries the id of the trace."""
        if not self._endpoint:
            yield
            return
        token = trace_id.set(f"{trace.id:032x}")
        try:
            yield
        finally:
            trace_id.reset(token)

    def close(self) -> None:
        """Send what waits, for :data:`CLOSE_S` at most. Blocks."""
        if self._thread is not None:
            until = time.monotonic() + CLOSE_S
            with suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(max(0.0, until - time.monotonic()))

    # -- the thread ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        encode, exporter = _exporter(self._endpoint, self._service)
        closing = False
        while not closing:
            batch = [self._waiting.get()]
            if batch[0] is not None and self._waiting.qsize() < MAX_BATCH:
                time.sleep(GATHER_S)
            with suppress(queue.Empty):
                while len(batch) < MAX_BATCH:
                    batch.append(self._waiting.get_nowait())
            closing = None in batch
            if spans := [encode(span) for span in batch if span is not None]:
                self.counts["sent" if self._exported(exporter, spans) else "failed"] += len(spans)
        exporter.shutdown()

    def _exported(self, exporter: Any, spans: list[Any]) -> bool:
        try:
            return bool(exporter.export(spans).name == "SUCCESS")
        except Exception:
            log.warning("traces_not_sent", exc_info=True)
            return False


def _exporter(endpoint: str, service: str) -> tuple[Any, Any]:
    """A function that converts a span to the SDK's, and the SDK's exporter; the standard variables
    ``OTEL_EXPORTER_OTLP_*`` add headers and certificates."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    names: dict[str, Any] = {
        "service.name": f"distop-{service}",
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    resource, flags = Resource.create(names), TraceFlags(TraceFlags.SAMPLED)

    def encode(span: Span) -> ReadableSpan:
        trace = span.trace
        above = trace.span("") if span.part else trace.parent
        parent = SpanContext(trace.id, above, is_remote=True, trace_flags=flags) if above else None
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace.id, trace.span(span.part), is_remote=False, trace_flags=flags),
            parent=parent,
            resource=resource,
            attributes=_attributes(span.attributes),
            events=[
                Event(name, _attributes(more), timestamp=int(at * 1e9)) for at, name, more in span.events
            ],
            status=Status(StatusCode.ERROR, span.error[:MAX_TEXT]) if span.error else Status(),
            start_time=int(span.began * 1e9),
            end_time=int(max(span.began, span.ended) * 1e9),
        )

    return encode, OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)


def _attributes(given: Mapping[str, object]) -> dict[str, str | bool | int | float]:
    return {
        f"distop.{name}": value if isinstance(value, bool | int | float) else shortened(str(value), MAX_TEXT)
        for name, value in given.items()
        if value not in ("", None)
    }
