"""What commands print: one class for programs here, and one for people in ``human``.

Both have the same methods, so every command speaks both languages. Results go to stdout, everything else to
stderr. JSON is one document per command, and one a line for what goes on (``watch``).
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from distop.cli.output.exits import exit_code
from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.client import (
        AuditEntry,
        Batch,
        Diagnosis,
        Enqueued,
        Explanation,
        Leader,
        LookUp,
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
    def look_up(self, found: LookUp) -> None:
        """Where a value is to be found."""

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


def make_output(wanted: Format) -> Output:
    """The output of this name."""
    if wanted == "json":
        return JsonOutput()
    from distop.cli.output.human import HumanOutput

    return HumanOutput()


class JsonOutput(Output):
    """For programs."""

    def operation(self, operation: Operation) -> None:
        _print(operation)

    def started(self, operation: Operation) -> None:
        _print(operation)

    def operations(self, operations: list[Operation], more: bool) -> None:
        _print(operations)

    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        for update in updates:
            _print(update)
            last = update.operation
        return last

    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        for update in updates:
            last = update.operation
        _print(last)
        return last

    def table(self, table: Table) -> None:
        _print(table)

    def tables(self, tables: list[Table], more: bool) -> None:
        _print(tables)

    def look_up(self, found: LookUp) -> None:
        _print(found)

    def watermarks(self, watermarks: Watermarks) -> None:
        _print(watermarks)

    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        led: dict[str, list[str]] = {}
        for leader in leaders:
            led.setdefault(leader.member, []).append(leader.table)
        _print([plain(member) | {"leads": led.get(member.id, [])} for member in members])

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        _print(plain(diagnosis) | {"wrong": diagnosis.wrong})

    def audit(self, entries: list[AuditEntry], more: bool) -> None:
        _print(entries)

    def enqueued(self, answer: Enqueued) -> None:
        _print(answer)

    def backlog(self, batches: list[Batch], more: bool) -> None:
        _print(batches)

    def ordering(self, ordering: Ordering) -> None:
        _print(ordering)

    def explanation(self, explanation: Explanation) -> None:
        _print(explanation)

    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        _print(facts)

    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        _print(facts)

    def note(self, text: str) -> None:
        pass

    def error(self, error: DistopError) -> None:
        shown = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "retryable": error.retryable,
            "details": error.details,
            "exit_code": exit_code(error),
        }
        print(json.dumps({"error": shown}), file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    """A result as JSON: dataclasses by their fields, times in ISO 8601."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _print(value: Any) -> None:
    # ASCII: whatever the locale of the reading end, the document arrives as it was.
    print(json.dumps(plain(value)), flush=True)
