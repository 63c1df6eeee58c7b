"""Metrics of executors and sidecars: marks, the lease of claims and runs, and runs or tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from distop.executor.host.metrics import counter, gauge
from distop.executor.ledger.ledger import Ledger
from distop.process.http import span_metric
from distop.process.loop import boot_clock


def ledger_metrics(ledger: Ledger) -> Iterator[Metric]:
    """The metrics of one process."""
    batcher, desk = ledger.batcher, ledger.desk
    marks = {(outcome.value,): count for outcome, count in batcher.answered.items()}
    marks["unanswered",] = batcher.unanswered
    yield counter("distop_marks", "Results that jobs sent, by outcome", ["outcome"], marks)
    yield counter("distop_mark_groups", "Transactions that wrote results", [], {(): batcher.groups})
    yield gauge("distop_marks_waiting", "Results that wait for a transaction", batcher.waiting)
    begun = "Leases; a second one means that the first was lost"
    yield counter("distop_incarnations", begun, [], {(): desk.begun})
    valid_s = max(0.0, desk.owned_until - boot_clock())
    yield gauge("distop_lease_seconds", "How long the lease is certainly valid without a renewal", valid_s)


def is_registered(ledger: Ledger) -> bool:
    """Whether the process is registered in etcd under a lease."""
    return ledger.desk.owned_until > boot_clock()


def sidecar_metrics(ledger: Ledger, *, connected: int, accepted: int, refused: int) -> Iterator[Metric]:
    """The metrics of a sidecar: tasks that are connected, and those that were accepted and refused."""
    yield from ledger_metrics(ledger)
    yield gauge("distop_tasks_connected", "Tasks that are connected", connected)
    answers = {("accepted",): accepted, ("refused",): refused}
    yield counter("distop_tasks", "Tasks that connected, or were turned away", ["answer"], answers)


def executor_metrics(
    ledger: Ledger,
    *,
    running: int,
    taken: Mapping[str, int],
    ended: Mapping[tuple[str, str], int],
    spans: Mapping[str, int],
) -> Iterator[Metric]:
    """The metrics of an executor: with operations taken, by type, and runs that ended, by type and how."""
    yield from ledger_metrics(ledger)
    if spans:
        yield span_metric(spans)
    yield gauge("distop_runs", "Operations that run here", running)
    by_type = {(kind,): count for kind, count in taken.items()}
    yield counter("distop_runs_taken", "Operations taken to be run here", ["type"], by_type)
    yield counter("distop_runs_ended", "Runs that ended here, by how", ["type", "end"], ended)
