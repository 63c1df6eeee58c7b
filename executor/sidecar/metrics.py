"""Metrics of a sidecar."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from distop.executor.host.metrics import counter, gauge
from distop.executor.ledger.ledger import Ledger
from distop.executor.ledger.metrics import ledger_metrics


def sidecar_metrics(ledger: Ledger, *, connected: int, accepted: int, refused: int) -> Iterator[Metric]:
    """Of one process."""
    yield from ledger_metrics(ledger)
    yield gauge("distop_tasks_connected", "Tasks that are connected", connected)
    answers = {("accepted",): accepted, ("refused",): refused}
    yield counter("distop_tasks", "Tasks that connected, or were turned away", ["answer"], answers)
