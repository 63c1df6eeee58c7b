"""How commands show their results: here as JSON and YAML for programs; ``human`` has the form for people.

Each form has the same methods, so every command supports both. Results go to stdout, everything else to
stderr. JSON and YAML are one document per command; commands that follow something (``watch``) print one per
change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from distop.cli.output.exits import exit_code
from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.client import Operation, OperationUpdate, Watermarks
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
    "members",
]


COUNTED = 100
"""How many items a truncated list counts behind its end."""


def some_more(more: int) -> str:
    """How many items a list leaves out, in words."""
    return f"{more:,} more" if more < COUNTED else f"at least {more:,} more"


def plain(value: Any) -> Any:
    """A result of the client as values of JSON."""
    from distop.proto.messages import plain  # loads protobuf, which help does not need

    return plain(value)


class Output:
    """How a command shows its result; this one as JSON, each document in one line."""

    def written(self, value: Any) -> str:
        """A document, with its end of line. In ASCII: it arrives unchanged, whatever the reader's locale."""
        return json.dumps(plain(value)) + "\n"

    def _print(self, value: Any) -> None:
        print(self.written(value), end="", flush=True)

    def show(self, result: Any) -> None:
        """One result of the client: an operation, a table, a diagnosis, ..."""
        shown = plain(result)
        of = {"wrong": result.wrong, "warned": result.warned} if hasattr(result, "wrong") else {}
        self._print(shown | of)

    def listed(self, listing: Listing, items: Sequence[Any], more: int) -> None:
        """Several of a kind; ``more``: how many the list leaves out, as far as they were counted."""
        self._print(items)
        if more:
            # The list itself is the result; that it was truncated is written to stderr.
            hint = f"{some_more(more)}: --limit 0 shows all"
            print(self.written({"more": more, "hint": hint}), end="", file=sys.stderr)

    def started(self, operation: Operation) -> None:
        """An operation that was started, without waiting for it."""
        self._print(operation)

    def preview(self, preview: Mapping[str, Any]) -> None:
        """What an operation would do."""
        self._print(preview)

    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Show the updates of an operation (``watch``); return its final state."""
        for update in updates:
            self._print(update)
            last = update.operation
        return last

    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        """Wait for an operation to end, show progress and the result; return it."""
        for update in updates:
            last = update.operation
        self._print(last)
        return last

    def watermarks(self, watermarks: Watermarks) -> None:
        """The watermarks of a table."""
        self._print(watermarks)

    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        """Workers of Spark that were looked at, and what is wrong there."""
        shown = [
            {name: getattr(finding, name) for name in ("code", "sentence", "workers", "remedy")}
            for finding in findings
        ]
        self._print({"wrong": bool(shown), "findings": shown, "workers": list(map(dict, workers))})

    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        """Any other result: names and values; ``hints`` are for people only."""
        self._print(facts)

    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        """A result that only programs need here."""
        self._print(facts)

    def note(self, text: str) -> None:
        """A remark, for people only."""

    def error(self, error: DistopError) -> None:
        """Why the command failed."""
        shown = error.fields() | {"exit_code": exit_code(error)}
        print(self.written({"error": shown}), end="", file=sys.stderr, flush=True)


class YamlOutput(Output):
    """YAML; each document begins with ``---``."""

    def written(self, value: Any) -> str:
        import yaml  # only this needs it

        text: str = yaml.safe_dump(plain(value), explicit_start=True, sort_keys=False)
        return text
