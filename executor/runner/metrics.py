"""Metrics of an executor."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from distop.executor.host.metrics import counter, gauge
from distop.executor.ledger.ledger import Ledger
from distop.executor.ledger.metrics import ledger_metrics
from distop.executor.runner.tally import Tally


def executor_metrics(ledger: Ledger, tally: Tally) -> Iterator[Metric]:
    """The metrics of one process."""
    yield from ledger_metrics(ledger)
    yield gauge("distop_runs", "Operations that run here", tally.running)
    taken = {(kind,): count for kind, count in tally.taken.items()}
    yield counter("distop_runs_taken", "Operations taken to be run here", ["type"], taken)
    yield counter("distop_runs_ended", "Runs that ended here, by how", ["type", "end"], tally.ended)
