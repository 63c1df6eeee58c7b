"""Command output for programs: one JSON document per command, or one per line for commands that follow."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distop.cli.output.base import Listing, Output
from distop.cli.output.exits import exit_code
from distop.errors import DistopError
from distop.proto.messages import plain

if TYPE_CHECKING:
    from distop.client import Leader, Member, Operation, OperationUpdate, Watermarks
    from distop.executor.checking.spark_setup import WorkerFinding


class JsonOutput(Output):
    """JSON for programs."""

    def show(self, result: Any) -> None:
        shown = plain(result)
        of = {"wrong": result.wrong, "warned": result.warned} if hasattr(result, "wrong") else {}
        _print(shown | of)

    def listed(self, what: Listing, items: Sequence[Any], more: bool) -> None:
        _print(items)
        if more:
            # The list itself is the result; that it was truncated is written to stderr.
            print(
                json.dumps({"more": True, "hint": "more items exist: --limit 0 shows all"}), file=sys.stderr
            )

    def started(self, operation: Operation) -> None:
        _print(operation)

    def preview(self, preview: Mapping[str, Any]) -> None:
        _print(preview)

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

    def watermarks(self, watermarks: Watermarks) -> None:
        _print(watermarks)

    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        led: dict[str, list[str]] = {}
        for leader in leaders:
            led.setdefault(leader.member, []).append(leader.table)
        _print([plain(member) | {"leads": led.get(member.id, [])} for member in members])

    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        found = [
            {"code": one.code, "sentence": one.sentence, "workers": one.workers, "remedy": one.remedy}
            for one in findings
        ]
        _print({"wrong": bool(found), "findings": found, "workers": [dict(one) for one in workers]})

    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        _print(facts)

    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        _print(facts)

    def note(self, text: str) -> None:
        pass

    def error(self, error: DistopError) -> None:
        shown = error.fields() | {"exit_code": exit_code(error)}
        print(json.dumps({"error": shown}), file=sys.stderr, flush=True)


def _print(value: Any) -> None:
    # ASCII: the document arrives unchanged, whatever the reader's locale.
    print(json.dumps(plain(value)), flush=True)
