"""What commands print for programs: one JSON document per command, and one a line for what goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from distop.cli.output.base import Output
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
        Member,
        Operation,
        OperationUpdate,
        Ordering,
        Table,
        Watermarks,
    )


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
