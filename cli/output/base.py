"""What commands print, as an interface: ``json_output`` speaks to programs, ``human`` to people.

Both have the same methods, so every command speaks both languages. Results go to stdout, everything else to
stderr. JSON is one document per command, and one a line for what goes on (``watch``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.client import Leader, Member, Operation, OperationUpdate, Watermarks
    from distop.executor.checking.findings import Finding as WorkerFinding

Format = Literal["table", "json"]
Listing = Literal["operations", "tables", "audit", "backlog", "snapshots", "traces", "schedules"]


class Output(ABC):
    """How a command tells its result."""

    @abstractmethod
    def show(self, result: Any) -> None:
        """One result of the client: an operation, a table, a diagnosis, ..."""

    @abstractmethod
    def listed(self, what: Listing, items: Sequence[Any], more: bool) -> None:
        """Several of a kind; ``more``: the list was cut short."""

    @abstractmethod
    def started(self, operation: Operation) -> None:
        """An operation that was started and is not waited for."""

    @abstractmethod
    def preview(self, preview: Mapping[str, Any]) -> None:
        """What an operation would do."""

    @abstractmethod
    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Show how an operation goes on, for its own sake; return how it ended."""

    @abstractmethod
    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Wait for an operation to end, show that it moves, show the end; return it."""

    @abstractmethod
    def watermarks(self, watermarks: Watermarks) -> None:
        """How far each source of a table is."""

    @abstractmethod
    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        """Who is there, and what each leads."""

    @abstractmethod
    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        """Workers of Spark that were looked at, and what is wrong there."""

    @abstractmethod
    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        """Anything else: names and values; ``hints`` are for people only."""

    @abstractmethod
    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        """A result that people see elsewhere."""

    @abstractmethod
    def note(self, text: str) -> None:
        """A remark beside the result, for people only."""

    @abstractmethod
    def error(self, error: DistopError) -> None:
        """Why it did not work."""
