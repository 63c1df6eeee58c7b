"""What a coordinator counts. This class counts nothing: it is what the rest of the coordinator calls.

The methods are the events worth counting, called where they happen; each call costs a look-up when nobody
scrapes. ``PrometheusMetrics`` does count, and is loaded only with the
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
    """Ignores everything; overridden by what counts."""

    def etcd_client(self, config: EtcdConfig) -> EtcdClient:
        """The connection to etcd that the coordinator works with."""
        return EtcdClient(config)

    def incarnation(self, led: Callable[[], Led]) -> None:
        """A new lease was granted; ``led`` says at any time what is led under it."""

    def planning(self, count: int) -> None:
        """So many starts are being planned, or wait for a thread to be."""

    def long_calls(self, count: Callable[[], int]) -> None:
        """``count`` says at any time how many calls of user code, and preparations of commits, take long."""

    def operation_started(self, type_name: str) -> None:
        """A start was accepted here, for the first time (not: answered again)."""

    def operation_finished(self, tracked: Tracked, history: HistoryRecord) -> None:
        """An operation has ended; called by the leader that finished it."""

    def finish_lost_race(self, type_name: str) -> None:
        """A finishing transaction lost to another writer, and is put on that one's result."""

    def action_failed(self, type_name: str, error: BaseException) -> None:
        """Sealing, completing or collecting an operation failed, and will be tried again."""

    def election(self, *, won: bool) -> None:
        """This coordinator has campaigned for a table."""

    def schedule_ticked(self, type_name: str, *, started: bool) -> None:
        """A schedule has started an operation of the type, or was skipped."""

    def leadership_lost(self) -> None:
        """A table that was led here is led here no more, without having been given up."""


def code_of(error: BaseException) -> str:
    """The stable code of an error; that of internal errors for whatever is no error of distop."""
    return error.code if isinstance(error, DistopError) else DistopError.code
