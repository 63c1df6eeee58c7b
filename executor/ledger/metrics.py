"""Metrics of a ledger: marks, and the lease of claims and runs."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from distop.executor.host.metrics import counter, gauge
from distop.executor.ledger.ledger import Ledger
from distop.metastore.members.clocks import boot_clock


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
