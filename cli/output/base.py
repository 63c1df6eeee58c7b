"""What commands print, as an interface: ``json_output`` speaks to programs, ``human`` to people.

Both have the same methods, so every command speaks both languages. Results go to stdout, everything else to
stderr. JSON is one document per command, and one a line for what goes on (``watch``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.client import (
        AuditEntry,
        Batch,
        Diagnosis,
        Enqueued,
        Explanation,
        Leader,
        Member,
        Operation,
        OperationUpdate,
        Ordering,
        Table,
        Watermarks,
    )

Format = Literal["table", "json"]


class Output(ABC):
    """How a command tells its result."""

    @abstractmethod
    def operation(self, operation: Operation) -> None:
        """One operation."""

    @abstractmethod
    def started(self, operation: Operation) -> None:
        """An operation that was started and is not waited for."""

    @abstractmethod
    def operations(self, operations: list[Operation], more: bool) -> None:
        """A list of operations; ``more``: it was cut short."""

    @abstractmethod
    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Show how an operation goes on, for its own sake; return how it ended."""

    @abstractmethod
    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Wait for an operation to end, show that it moves, show the end; return it."""

    @abstractmethod
    def table(self, table: Table) -> None:
        """One table."""

    @abstractmethod
    def tables(self, tables: list[Table], more: bool) -> None:
        """A list of tables."""

    @abstractmethod
    def watermarks(self, watermarks: Watermarks) -> None:
        """How far each source of a table is."""

    @abstractmethod
    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        """Who is there, and what each leads."""

    @abstractmethod
    def diagnosis(self, diagnosis: Diagnosis) -> None:
        """What the doctor has found."""

    @abstractmethod
    def audit(self, entries: list[AuditEntry], more: bool) -> None:
        """Who did what and when."""

    @abstractmethod
    def enqueued(self, answer: Enqueued) -> None:
        """What became of a batch that was published."""

    @abstractmethod
    def backlog(self, batches: list[Batch], more: bool) -> None:
        """Batches that wait."""

    @abstractmethod
    def ordering(self, ordering: Ordering) -> None:
        """How a table is fed."""

    @abstractmethod
    def explanation(self, explanation: Explanation) -> None:
        """Why a table moves, or does not."""

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
