"""The errors and metrics of the code, for the reference of the documentation and for its tests."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

import distop
from distop.cli.output.exits import exit_code
from distop.coordinator.metrics.prometheus import PrometheusMetrics
from distop.errors import DistopError
from distop.executor.ledger.ledger import Ledger
from distop.executor.ledger.metrics import executor_metrics, sidecar_metrics
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig


@dataclass(frozen=True)
class KnownError:
    """One error that a user can meet."""

    code: str
    status: str
    """The status of gRPC that carries it."""
    exit_code: int
    retryable: bool
    meaning: str
    hint: str


def errors() -> list[KnownError]:
    """All errors of all modules, by code."""
    for module in pkgutil.walk_packages(distop.__path__, f"{distop.__name__}."):
        if not module.name.endswith(".__main__"):  # that runs a program when it is loaded
            importlib.import_module(module.name)
    return sorted((_known(kind) for kind in _kinds(DistopError)), key=lambda error: error.code)


def _kinds(kind: type[DistopError]) -> Iterator[type[DistopError]]:
    if kind.__module__.startswith(f"{distop.__name__}."):
        yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


def _known(kind: type[DistopError]) -> KnownError:
    # The root of all errors documents what they have in common, not what its own code means.
    own = "A defect, or an error of a kind that has no code." if kind is DistopError else ""
    meaning = own or " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    status, _ = kind.kind.value
    return KnownError(kind.code, status, exit_code(kind()), kind.retryable, meaning, kind.default_hint)


async def families() -> dict[str, list[Metric]]:
    """The metrics that coordinators, executors and sidecars serve which have done nothing yet."""
    client = EtcdClient(EtcdConfig())
    try:
        ledger, coordinator = Ledger(client), PrometheusMetrics()
        coordinator.traces({"sent": 0})
        return {
            "coordinator": list(coordinator.registry.collect()),
            "executor": list(executor_metrics(ledger, running=0, taken={}, ended={}, spans={"sent": 0})),
            "sidecar": list(sidecar_metrics(ledger, connected=0, accepted=0, refused=0)),
        }
    finally:
        await client.close()
