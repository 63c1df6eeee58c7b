"""What the parts of one coordinator share: its services, and a term in which it leads a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.admission import Admission
from distop.coordinator.starting.planner import Planner
from distop.coordinator.state.caches import LeaderCaches
from distop.coordinator.work.work import Work
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.lease import Epoch, LeaseSession
from distop.metastore.records.keyspace import TableKeys
from distop.operations.registry import Registry
from distop.process.loop import boot_clock
from distop.process.tracing import Tracer


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services of one coordinator; belongs to one event loop."""

    client: EtcdClient
    planning: Work
    """Where types plan."""
    publishing: Work
    """Where operations are completed: table metadata, commit steps, hooks of users, sweeping files."""
    answering: Work
    """Where the storage of tables is read for callers."""
    metrics: Metrics = field(default_factory=Metrics)
    caches: LeaderCaches = field(default_factory=LeaderCaches)
    admission: Admission = field(default_factory=Admission)
    tracer: Tracer = field(default_factory=Tracer)
    clock: Callable[[], float] = boot_clock
    """Monotonic seconds, for timers."""
    wall: Callable[[], float] = time.time
    """Seconds since the Unix epoch: for records, and to compare with those that other hosts have written."""

    @property
    def registry(self) -> Registry:
        """The operation types."""
        return self.planning.registry

    @cached_property
    def planner(self) -> Planner:
        """Plans what callers, batches and schedules start."""
        return Planner(self.planning, self.metrics)


@dataclass(frozen=True)
class Term:
    """One leadership of a table by this process: it lasts while its epoch is held, and its lease lives."""

    keys: TableKeys
    epoch: Epoch
    session: LeaseSession

    def check(self) -> None:
        """Raise :class:`~distop.errors.LeaseLost` when this process may no longer act as the leader.

        May be called from other threads. Without an error another leader may have begun all the same: each
        transaction compares the epoch.
        """
        self.session.check()

    @property
    def fields(self) -> dict[str, object]:
        """The table and the epoch, for the log."""
        return {"table": self.keys.name, "epoch": self.epoch.revision}
