"""What a coordinator counts, and that it costs nothing when nobody looks."""

import json
import re
from typing import cast

import pytest

from distop.coordinator import service
from distop.coordinator.metrics import prometheus
from distop.coordinator.metrics.counts import Metrics, code_of
from distop.coordinator.metrics.prometheus import MAX_TYPES, PrometheusMetrics
from distop.coordinator.state.tracker import Tracked
from distop.errors import Conflict, EtcdUnavailable, OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.jobs import failure_record, success_record
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    COMMITTING,
    RUNNING,
    CompletionRecord,
    HistoryRecord,
    OperationArg,
    ResolveRecord,
)
from support.metrics import families
from support.repository import ROOT

BOARD = ROOT / "deploy" / "grafana" / "distop.json"


def tracked(instance: int = 1, *, total: int = 10, kind: str = "noop") -> Tracked:
    operation = OperationId("flights", kind, instance)
    arg = OperationArg(table="flights", type=kind, instance=instance, partition_count=total)
    made = Tracked(Keyspace().operation(operation), arg)
    made.set_state(RUNNING, 1)
    return made


def mark(one: Tracked, *jobs: int, failed: bool = False) -> None:
    value = failure_record("a", "BAD_ROW", "x", 1.0) if failed else success_record("a", {}, 1.0)
    for job in jobs:
        one.apply_put(KeyValue(one.keys.job_state(str(job)), value, 2, 2))


def history(
    outcome: str = "success", *, took_s: float = 2.0, succeeded: int = 0, failed: int = 0
) -> HistoryRecord:
    return HistoryRecord(
        outcome=outcome, started_at=100.0, finished_at=100.0 + took_s, succeeded=succeeded, failed=failed
    )


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_operations_are_counted_by_type_and_outcome():
    metrics = PrometheusMetrics()
    metrics.operation_started("noop")
    metrics.operation_finished(tracked(1), history())
    metrics.operation_finished(tracked(2), history("failed", took_s=0.02))
    assert value(metrics, "distop_operations_started_total", type="noop") == 1
    for outcome, took in (("success", 2.0), ("failed", 0.02)):
        labels = {"type": "noop", "outcome": outcome}
        assert value(metrics, "distop_operations_finished_total", **labels) == 1
        assert value(metrics, "distop_operation_duration_seconds_sum", **labels) == pytest.approx(took)


def test_clocks_that_differ_make_no_negative_duration():
    metrics = PrometheusMetrics()
    metrics.operation_finished(tracked(), history(took_s=-3.0))
    assert value(metrics, "distop_operation_duration_seconds_sum", type="noop", outcome="success") == 0


def test_jobs_are_counted_once_by_scrapes_and_by_the_end():
    metrics, one = PrometheusMetrics(), tracked()
    metrics.incarnation(lambda: {"flights": [one]})
    done = {"type": "noop", "state": "success"}
    mark(one, 0, 1, 2)
    assert value(metrics, "distop_jobs_finished_total", **done) == 3
    assert value(metrics, "distop_jobs_unfinished", type="noop") == 7
    mark(one, 2, 3)
    mark(one, 4, failed=True)
    one.set_state(b"", 5)
    one.jobs.restart()  # the event of its end may be faster than the reply
    metrics.operation_finished(one, history("failed", succeeded=4, failed=1))
    assert value(metrics, "distop_jobs_finished_total", **done) == 4
    assert value(metrics, "distop_jobs_finished_total", type="noop", state="failed") == 1
    assert value(metrics, "distop_operations_active", type="noop", state="running") is None


def test_jobs_are_counted_once_however_many_operations_are_led(monkeypatch: pytest.MonkeyPatch):
    """G3"""
    monkeypatch.setattr(prometheus, "MAX_REMEMBERED", 2)
    metrics, led = PrometheusMetrics(), [tracked(number) for number in range(1, 6)]
    metrics.incarnation(lambda: {"flights": led})
    for one in led:
        mark(one, 0)
    done = {"type": "noop", "state": "success"}
    for _ in range(3):
        assert value(metrics, "distop_jobs_finished_total", **done) == 5
    for one in led:
        one.set_state(b"", 5)
        metrics.operation_finished(one, history(succeeded=1))
    assert value(metrics, "distop_jobs_finished_total", **done) == 5


def test_led_tables_and_active_operations_are_counted_at_each_scrape():
    metrics = PrometheusMetrics()
    led: dict[str, list[Tracked]] = {}
    metrics.incarnation(lambda: led)
    assert value(metrics, "distop_tables_led") == 0
    led["flights"] = [tracked(1), tracked(2, kind="ingest")]
    led["weather"] = []
    assert value(metrics, "distop_tables_led") == 2
    assert value(metrics, "distop_operations_active", type="ingest", state="running") == 1


def test_parked_operations_are_counted_until_somebody_decides():
    metrics, one = PrometheusMetrics(), tracked()
    metrics.incarnation(lambda: {"flights": [one, tracked(2)]})
    assert value(metrics, "distop_operations_parked", type="noop") == 0
    one.set_state(COMMITTING, 2)
    one.completion = CompletionRecord(attempts=5, error="x", parked=True)
    assert value(metrics, "distop_operations_parked", type="noop") == 1
    one.decision = ResolveRecord(action="retry")
    assert value(metrics, "distop_operations_parked", type="noop") == 0


async def test_tables_are_not_counted_while_etcd_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    metrics, counts = PrometheusMetrics(), [{"blocked": 2}]

    async def count(_: object) -> dict[str, int]:
        if not counts:
            assert value(metrics, "distop_tables", condition="blocked") == 2
            raise EtcdUnavailable("it is away")
        return counts.pop()

    monkeypatch.setattr(service, "count_tables", count)
    monkeypatch.setattr(service, "COUNT_EVERY_S", 0.0)
    with pytest.raises(EtcdUnavailable):
        await service._count_tables(cast(EtcdClient, None), metrics)
    assert value(metrics, "distop_tables", condition="blocked") is None


def test_elections_and_failures_are_counted():
    metrics = PrometheusMetrics()
    metrics.election(won=True)
    metrics.election(won=False)
    metrics.leadership_lost()
    metrics.incarnation(dict)
    metrics.planning(3)
    metrics.finish_lost_race("noop")
    metrics.action_failed("noop", Conflict())
    metrics.action_failed("noop", ZeroDivisionError())
    assert value(metrics, "distop_elections_total", outcome="won") == 1
    assert value(metrics, "distop_elections_total", outcome="lost") == 1
    assert value(metrics, "distop_leaderships_lost_total") == 1
    assert value(metrics, "distop_incarnations_total") == 1
    assert value(metrics, "distop_planning") == 3
    assert value(metrics, "distop_finish_lost_races_total", type="noop") == 1
    assert value(metrics, "distop_action_failures_total", type="noop", code="CONFLICT") == 1
    assert value(metrics, "distop_action_failures_total", type="noop", code="INTERNAL") == 1


def test_each_coordinator_has_metrics_of_its_own():
    first, second = PrometheusMetrics(), PrometheusMetrics()
    first.operation_started("noop")
    assert value(second, "distop_operations_started_total", type="noop") is None


def test_types_are_labels_up_to_a_limit():
    metrics = PrometheusMetrics()
    for number in range(MAX_TYPES + 5):
        metrics.operation_started(f"type{number}")
    assert value(metrics, "distop_operations_started_total", type="type0") == 1
    assert value(metrics, "distop_operations_started_total", type="other") == 5


async def test_calls_that_get_no_answer_are_counted_by_code():
    metrics = PrometheusMetrics()
    nowhere = EtcdConfig(endpoints=(f"127.0.0.1:{free_port()}",), timeout_s=0.2)
    client = metrics.etcd_client(nowhere)
    with pytest.raises(EtcdUnavailable):
        await client.get(b"k")
    await client.close()
    assert value(metrics, "distop_etcd_errors_total", call="Range", code="ETCD_UNAVAILABLE") == 1
    assert value(metrics, "distop_etcd_call_seconds_count", call="Range") is None


def test_counting_nothing_is_the_default():
    metrics = Metrics()
    metrics.operation_finished(tracked(), history())
    metrics.action_failed("noop", OutcomeUnknown())
    assert code_of(OutcomeUnknown()) == "OUTCOME_UNKNOWN"


async def test_the_board_shows_metrics_that_exist():
    known = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
    for family in await families():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "info": ["_info"]}
        known |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    board = json.loads(BOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    shown = set(re.findall(r"\b(?:distop|process)_\w+", " ".join(expressions)))
    assert len(expressions) > 20
    assert shown <= known, shown - known
