"""Identifiers of traces, and what becomes of spans when nobody takes them."""

import logging
import time

import pytest

from distop.errors import InvalidArgument
from distop.metastore.records.operation import OperationArg
from distop.process import tracing
from distop.process.logs import TextFormatter
from distop.process.tracing import Span, Trace, Tracer, own_traceparent, traceparent_in

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


TRACE = Trace("t.noop.1/abc")


def span(trace: Trace = TRACE, part: str = "plan") -> Span:
    return Span(trace, part, "plan", 1.0, 2.0)


def test_the_ids_of_a_trace_are_the_same_in_every_process_and_differ_between_parts() -> None:
    arg = OperationArg(table="t", type="noop", instance=1, uuid="abc")
    again = OperationArg(table="t", type="noop", instance=1, uuid="abc", partition_count=7)
    other = OperationArg(table="t", type="noop", instance=1, uuid="abd")
    assert arg.trace.id == again.trace.id != other.trace.id
    assert arg.trace.span("") == again.trace.span("") != arg.trace.span("plan")
    assert 0 < arg.trace.id < 1 << 128
    assert 0 < arg.trace.span("") < 1 << 64


def test_the_trace_of_a_caller_is_joined() -> None:
    trace = Trace("t.noop.1/abc", traceparent_in([("other", "1"), ("traceparent", CALLER)]))
    assert f"{trace.id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{trace.parent:016x}" == "b7ad6b7169203331"
    assert trace.sampled
    assert not Trace("t.noop.1/abc", CALLER[:-2] + "00").sampled


@pytest.mark.parametrize(
    "given",
    ["", "x", CALLER.upper(), CALLER[:-1], CALLER.replace("b7ad6b7169203331", "0" * 16), "ff" + CALLER[2:]],
)
def test_a_malformed_traceparent_is_ignored(given: str) -> None:
    assert traceparent_in([("traceparent", given)]) == ""


def test_a_newer_traceparent_is_read_as_far_as_it_is_known() -> None:
    assert traceparent_in([("traceparent", "01" + CALLER[2:] + "-more")]) == CALLER


def test_a_program_sends_the_span_that_its_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", CALLER)
    assert own_traceparent() == (("traceparent", CALLER),)
    monkeypatch.setenv("TRACEPARENT", "none")
    assert own_traceparent() == ()


@pytest.mark.parametrize(
    "given", ["collector:4317", "http://collector", "otlp://c:1", "http://c:x", "http://c:1/v1"]
)
def test_an_address_that_is_no_collectors_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.VARIABLE, given)
    with pytest.raises(InvalidArgument, match="DISTOP_TRACES"):
        Tracer.from_env("test")


def test_without_an_address_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tracing.VARIABLE, raising=False)
    tracer = Tracer.from_env("test")
    tracer.send(span())
    tracer.close()
    assert not tracer.on
    assert not tracer.counts


def test_nobody_waits_for_a_collector_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans beyond the queue are dropped and counted; the end of the process is not held up."""
    monkeypatch.setattr(tracing, "MAX_WAITING", 10)
    monkeypatch.setattr(tracing, "CLOSE_S", 0.1)
    monkeypatch.setattr(tracing, "EXPORT_S", 0.5)
    monkeypatch.setattr(tracing, "_exporter", lambda *_: (lambda span: span, Hanging()))
    tracer = Tracer("http://127.0.0.1:1", "test")
    began = time.monotonic()
    tracer.send(*(span(part=str(number)) for number in range(1000)))
    tracer.close()
    assert tracer.counts["dropped"] >= 980
    assert time.monotonic() - began < 30
    Hanging.released = True


class Hanging:
    """An exporter whose collector does not answer."""

    released = False

    def export(self, spans: list[Span]) -> None:
        while not self.released:
            time.sleep(0.01)

    def shutdown(self) -> None:
        pass


def test_a_span_of_a_trace_that_its_caller_does_not_record_is_not_sent() -> None:
    tracer = Tracer("http://127.0.0.1:1", "test")
    tracer.send(span(Trace("t.noop.1/abc", CALLER[:-2] + "00")))
    tracer.close()
    assert set(tracer.counts.values()) == {0}


def test_what_is_logged_for_an_operation_carries_the_id_of_its_trace() -> None:
    record = logging.makeLogRecord({"msg": "sealed", "operation": "t.noop.1"})
    trace, formatter = Trace("t.noop.1/abc"), TextFormatter()
    with Tracer("http://127.0.0.1:1", "test").inside(trace):
        assert f"operation=t.noop.1 trace_id={trace.id:032x}" in formatter.format(record)
    with Tracer().inside(trace):
        assert "trace_id" not in formatter.format(record)
    assert "trace_id" not in formatter.format(record)
