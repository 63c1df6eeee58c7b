"""Command output for programs, as JSON or YAML: one document per command, or one per change (``watch``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from distop.cli.output.base import Listing, Output, some_more
from distop.cli.output.exits import exit_code
from distop.errors import DistopError
from distop.proto.messages import plain

if TYPE_CHECKING:
    from distop.client import Leader, Member, Operation, OperationUpdate, Watermarks
    from distop.executor.checking.spark_setup import WorkerFinding


class JsonOutput(Output):
    """JSON, each document in one line."""

    def written(self, value: Any) -> str:
        """A document, with its end of line. In ASCII: it arrives unchanged, whatever the reader's locale."""
        return json.dumps(plain(value)) + "\n"

    def _print(self, value: Any) -> None:
        print(self.written(value), end="", flush=True)

    def show(self, result: Any) -> None:
        shown = plain(result)
        of = {"wrong": result.wrong, "warned": result.warned} if hasattr(result, "wrong") else {}
        self._print(shown | of)

    def listed(self, listing: Listing, items: Sequence[Any], more: int) -> None:
        self._print(items)
        if more:
            # The list itself is the result; that it was truncated is written to stderr.
            hint = f"{some_more(more)}: --limit 0 shows all"
            print(self.written({"more": more, "hint": hint}), end="", file=sys.stderr)

    def started(self, operation: Operation) -> None:
        self._print(operation)

    def preview(self, preview: Mapping[str, Any]) -> None:
        self._print(preview)

    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        for update in updates:
            self._print(update)
            last = update.operation
        return last

    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        for update in updates:
            last = update.operation
        self._print(last)
        return last

    def watermarks(self, watermarks: Watermarks) -> None:
        self._print(watermarks)

    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        led: dict[str, list[str]] = {}
        for leader in leaders:
            led.setdefault(leader.member, []).append(leader.table)
        self._print([plain(member) | {"leads": led.get(member.id, [])} for member in members])

    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        faults = [
            {
                "code": finding.code,
                "sentence": finding.sentence,
                "workers": finding.workers,
                "remedy": finding.remedy,
            }
            for finding in findings
        ]
        self._print(
            {"wrong": bool(faults), "findings": faults, "workers": [dict(worker) for worker in workers]}
        )

    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        self._print(facts)

    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        self._print(facts)

    def note(self, text: str) -> None:
        pass

    def error(self, error: DistopError) -> None:
        shown = error.fields() | {"exit_code": exit_code(error)}
        print(self.written({"error": shown}), end="", file=sys.stderr, flush=True)


class YamlOutput(JsonOutput):
    """YAML; each document begins with ``---``."""

    def written(self, value: Any) -> str:
        return yaml.safe_dump(plain(value), explicit_start=True, sort_keys=False)
