"""The metrics of one coordinator for Prometheus, in a registry of its own: several run in one process.

No table is a label: an installation may have 100,000 of them, and every label value is a series for ever. The
web page shows single tables. Operation types are labels up to :data:`MAX_TYPES`.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from distop.coordinator.metrics.counts import Led, Metrics, code_of
from distop.coordinator.state.tracker import Tracked
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.metered import EtcdMetrics, MeteredClient
from distop.metastore.records.operation import HistoryRecord
from distop.process.http import process_registry, span_metric

MAX_TYPES = 64
"""Operation types with series of their own; further ones share ``other``."""

MAX_REMEMBERED = 4096
"""Operations whose counted jobs are remembered, to count none twice: this many besides those led here."""

_DURATION_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200)


class PrometheusMetrics(Metrics):
    """Counts events here; :attr:`registry` is what ``/metrics`` shows."""

    def __init__(self) -> None:
        registry = self.registry = process_registry()
        self._types: set[str] = set()
        self._led = _Led(registry, self._type)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._started = counter(
            "distop_operations_started", "Operations whose start was accepted here", ["type"]
        )
        ended = ["type", "outcome"]
        self._finished = counter(
            "distop_operations_finished", "Operations that ended under a leader here", ended
        )
        took = "From the start of an operation to its end"
        self._duration = histogram(
            "distop_operation_duration_seconds", took, ended, buckets=_DURATION_BUCKETS
        )
        lost = "Finishing transactions that lost to another writer and were put on its result"
        self._lost_races = counter("distop_finish_lost_races", lost, ["type"])
        failed = "Failures to seal, complete or collect an operation; each is tried again"
        self._failures = counter("distop_action_failures", failed, ["type", "code"])
        self._elections = counter("distop_elections", "Campaigns for a table", ["outcome"])
        ticks = "Times and conditions of schedules at which an operation was started, or nothing was"
        self._ticks = counter("distop_schedule_ticks", ticks, ["type", "outcome"])
        self._leaderships_lost = counter(
            "distop_leaderships_lost", "Leaderships that ended without being given up"
        )
        self._incarnations = counter(
            "distop_incarnations", "Leases begun; a second one means that the first was lost"
        )
        planned = "Starts that are being planned or wait for it"
        self._planning = Gauge("distop_planning", planned, registry=registry)
        long = "Calls of user code, and preparations of commits, that take long and may hang"
        self._long_calls = Gauge("distop_calls_long", long, registry=registry)
        tables = "Tables with a batch that blocks, a parked operation, or one that no executor has taken"
        self._tables = Gauge("distop_tables", tables, ["condition"], registry=registry)
        self._etcd = EtcdMetrics(registry)
        for outcome in ("won", "lost"):
            self._elections.labels(outcome)

    def _type(self, name: str) -> str:
        if name not in self._types:
            if len(self._types) >= MAX_TYPES:
                return "other"
            self._types.add(name)
        return name

    # -- what is set --------------------------------------------------------------------------------

    def etcd_client(self, config: EtcdConfig) -> EtcdClient:
        return MeteredClient(config, self._etcd)

    def incarnation(self, led: Callable[[], Led]) -> None:
        self._incarnations.inc()
        self._led.now = led

    def planning(self, count: int) -> None:
        self._planning.set(count)

    def long_calls(self, count: Callable[[], int]) -> None:
        self._long_calls.set_function(count)

    def traces(self, counts: Mapping[str, int]) -> None:
        self._led.spans = counts

    def operation_started(self, type_name: str) -> None:
        self._started.labels(self._type(type_name)).inc()

    def operation_finished(self, tracked: Tracked, history: HistoryRecord) -> None:
        labels = self._type(tracked.arg.type), history.outcome
        self._finished.labels(*labels).inc()
        self._duration.labels(*labels).observe(max(0.0, history.finished_at - history.started_at))
        # Its marks may be gone already: the event of the end can arrive before the reply.
        self._led.count(tracked, history.succeeded, history.failed)

    def finish_lost_race(self, type_name: str) -> None:
        self._lost_races.labels(self._type(type_name)).inc()

    def action_failed(self, type_name: str, error: BaseException) -> None:
        self._failures.labels(self._type(type_name), code_of(error)).inc()

    def election(self, *, won: bool) -> None:
        self._elections.labels("won" if won else "lost").inc()

    def schedule_ticked(self, type_name: str, *, started: bool) -> None:
        self._ticks.labels(self._type(type_name), "started" if started else "skipped").inc()

    def tables(self, counts: Mapping[str, int]) -> None:
        if not counts:
            self._tables.clear()
        for condition, count in counts.items():
            self._tables.labels(condition).set(count)

    def leadership_lost(self) -> None:
        self._leaderships_lost.inc()


class _Led(Collector):
    """What is led here, read from the leaders at each scrape, so that marking jobs costs nothing.

    Finished jobs are counted by the first scrape that sees them, or when their operation ends. Each leader of
    an operation counts its jobs.
    """

    def __init__(self, registry: CollectorRegistry, type_label: Callable[[str], str]) -> None:
        self.now: Callable[[], Led] = dict
        self.spans: Mapping[str, int] = {}
        self._type = type_label
        self._jobs: Tally[tuple[str, str]] = Tally()
        self._counted: dict[bytes, tuple[int, int]] = {}
        self._active = 0
        registry.register(self)

    def count(self, tracked: Tracked, succeeded: int, failed: int) -> None:
        """Count the results of an operation's jobs that were not counted yet."""
        root, kind = tracked.keys.root, self._type(tracked.arg.type)
        before = self._counted.pop(root, (0, 0))
        self._jobs[kind, "success"] += max(0, succeeded - before[0])
        self._jobs[kind, "failed"] += max(0, failed - before[1])
        self._counted[root] = max(before[0], succeeded), max(before[1], failed)
        if len(self._counted) > MAX_REMEMBERED + self._active:
            del self._counted[next(iter(self._counted))]

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        led = self.now()
        active: Tally[tuple[str, str]] = Tally()
        parked: Tally[tuple[str]] = Tally()
        unfinished: Tally[str] = Tally()
        # Without a state they have ended and are counted; their keys are being removed.
        operations = [tracked for some in led.values() for tracked in some if tracked.state]
        self._active = len(operations)
        for tracked in operations:
            self.count(tracked, tracked.jobs.succeeded, tracked.jobs.failed)
            kind = self._type(tracked.arg.type)
            active[kind, tracked.state.decode(errors="replace")] += 1
            parked[(kind,)] += tracked.parked
            unfinished[kind] += max(0, tracked.total - tracked.done - tracked.jobs.failed)
        by_state, undone = ["type", "state"], {(kind,): count for kind, count in unfinished.items()}
        yield GaugeMetricFamily("distop_tables_led", "Tables led here", len(led))
        yield _family(GaugeMetricFamily, "distop_operations_active", "Operations led here", by_state, active)
        stuck = "Operations led here that wait for a decision"
        yield _family(GaugeMetricFamily, "distop_operations_parked", stuck, ["type"], parked)
        left = "Jobs without a result, of operations led here"
        yield _family(GaugeMetricFamily, "distop_jobs_unfinished", left, ["type"], undone)
        if self.spans:
            yield span_metric(self.spans)
        help_text = "Results of jobs seen by leaders here"
        yield _family(CounterMetricFamily, "distop_jobs_finished", help_text, by_state, self._jobs)


def _family(kind: Any, name: str, text: str, labelled: list[str], values: Mapping[Any, int]) -> Metric:
    family = kind(name, text, labels=labelled)
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    metric: Metric = family
    return metric
