"""What a coordinator counts. This class counts nothing; the rest of the coordinator calls its methods.

The methods are the events worth counting, called where they happen; without a scraper each call costs a
look-up. ``PrometheusMetrics`` counts, and is loaded only with the
page that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from distop.coordinator.state.tracker import Tracked
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation import HistoryRecord

Led: TypeAlias = Mapping[str, Iterable[Tracked]]
"""The tables a coordinator leads, and the operations it follows in each."""


class Metrics:
    """Ignores everything; subclasses count."""

    def etcd_client(self, config: EtcdConfig) -> EtcdClient:
        """The connection to etcd that the coordinator works with."""
        return EtcdClient(config)

    def incarnation(self, led: Callable[[], Led]) -> None:
        """A new lease was granted; ``led`` returns what is led under it."""

    def planning(self, count: int) -> None:
        """This many starts are being planned, or wait for a thread."""

    def long_calls(self, count: Callable[[], int]) -> None:
        """``count`` returns how many calls of user code, and preparations of commits, take long."""

    def traces(self, counts: Mapping[str, int]) -> None:
        """``counts`` has the spans so far by their outcome; nothing if none are sent."""

    def operation_started(self, type_name: str) -> None:
        """A start was accepted here for the first time (a repeated answer does not count)."""

    def operation_finished(self, tracked: Tracked, history: HistoryRecord) -> None:
        """An operation has ended; called by the leader that finished it."""

    def finish_lost_race(self, type_name: str) -> None:
        """A finishing transaction lost to another writer, and is retried on the new state."""

    def action_failed(self, type_name: str, error: BaseException) -> None:
        """Sealing, completing or collecting an operation failed, and will be retried."""

    def election(self, *, won: bool) -> None:
        """This coordinator has campaigned for a table."""

    def schedule_ticked(self, type_name: str, *, started: bool) -> None:
        """A schedule has started an operation of the type, or was skipped."""

    def tables(self, counts: Mapping[str, int]) -> None:
        """How many tables of the installation are in a condition that deserves a look: see
        :func:`~distop.coordinator.alerts.conditions.count_tables`. Empty: nobody knows."""

    def leadership_lost(self) -> None:
        """A table is no longer led here, without having been handed over."""


def code_of(error: BaseException) -> str:
    """The stable code of an error; the code of internal errors for errors outside distop."""
    return error.code if isinstance(error, DistopError) else DistopError.code
