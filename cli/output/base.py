"""The interface of command output; ``programs`` has those for programs, ``human`` for people.

Both have the same methods, so every command supports both. Results go to stdout, everything else to stderr.
JSON and YAML are one document per command; commands that follow something (``watch``) print one per change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.client import Leader, Member, Operation, OperationUpdate, Watermarks
    from distop.executor.checking.spark_setup import WorkerFinding

Format = Literal["table", "wide", "json", "yaml"]
Listing = Literal[
    "operations",
    "tables",
    "alerts",
    "audit",
    "backlog",
    "applied",
    "snapshots",
    "traces",
    "schedules",
    "quarantines",
    "quarantined",
]


COUNTED = 100
"""How many items a truncated list counts behind its end."""


def some_more(more: int) -> str:
    """How many items a list leaves out, in words."""
    return f"{more:,} more" if more < COUNTED else f"at least {more:,} more"


class Output(ABC):
    """How a command shows its result."""

    @abstractmethod
    def show(self, result: Any) -> None:
        """One result of the client: an operation, a table, a diagnosis, ..."""

    @abstractmethod
    def listed(self, listing: Listing, items: Sequence[Any], more: int) -> None:
        """Several of a kind; ``more``: how many the list leaves out, as far as they were counted."""

    @abstractmethod
    def started(self, operation: Operation) -> None:
        """An operation that was started, without waiting for it."""

    @abstractmethod
    def preview(self, preview: Mapping[str, Any]) -> None:
        """What an operation would do."""

    @abstractmethod
    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Show the updates of an operation (``watch``); return its final state."""

    @abstractmethod
    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Wait for an operation to end, show progress and the result; return it."""

    @abstractmethod
    def watermarks(self, watermarks: Watermarks) -> None:
        """The watermarks of a table."""

    @abstractmethod
    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        """The live members, and the tables that each leads."""

    @abstractmethod
    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        """Workers of Spark that were looked at, and what is wrong there."""

    @abstractmethod
    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        """Any other result: names and values; ``hints`` are for people only."""

    @abstractmethod
    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        """A result that only programs need here."""

    @abstractmethod
    def note(self, text: str) -> None:
        """A remark, for people only."""

    @abstractmethod
    def error(self, error: DistopError) -> None:
        """Why the command failed."""
