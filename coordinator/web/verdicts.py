"""What the operations of a table report about its rules, and about rows in quarantine. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json, violations_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one operation has found: a validation, or an ingest before it published."""

    operation: pb.Operation
    rules: int
    rows: int
    """Rows that were looked at."""
    broken: int
    """Rules that rows break."""
    worst: str
    """The broken rule that most rows break, and how many; empty if that is unknown."""


def verdicts(operations: Iterable[pb.Operation]) -> list[Verdict]:
    """The verdicts of those operations that have checked rules."""
    checked = []
    for operation in operations:
        facts = from_json(operation.facts_json, "facts")
        rules, rows = facts.get("rules"), facts.get("checkedRows")
        if type(rules) is int and type(rows) is int:
            most = max(violations_of(facts), key=lambda violation: violation["rows"], default=None)
            worst = f"{most['rule']}: {most['rows']:,}" if most else ""
            broken = facts.get("violatedRules")
            checked.append(Verdict(operation, rules, rows, broken if type(broken) is int else 0, worst))
    return checked


def rules_of(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rules of a table, each as its kind and what it says."""
    checks = options.get("checks")
    raw = checks.get("rules") if isinstance(checks, Mapping) else None
    rules: list[tuple[str, str]] = []
    for rule in raw if isinstance(raw, list) else [raw] if raw else []:
        if isinstance(rule, Mapping):
            values = (
                ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                for value in rule.values()
            )
            rules.append((", ".join(rule), "; ".join(values)))
        else:
            rules.append(("check", str(rule)))
    return rules


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An operation that has put rows into quarantine."""

    operation: pb.Operation
    rows: int
    replayed_by: str
    """The operation that has ingested them since; empty: none of those that are known."""


def quarantined(operations: Iterable[pb.Operation]) -> list[Quarantined]:
    """Those operations, given the newest first: what replays rows is newer than what they are of."""
    replays: dict[str, str] = {}
    kept = []
    for operation in operations:
        facts = from_json(operation.facts_json, "facts")
        if isinstance(again := facts.get("replayOf"), str):
            replays.setdefault(again, operation.name)
        if isinstance(facts.get("quarantine"), str):
            rows = facts.get("badRows")
            replayed = replays.get(operation.name, "")
            kept.append(Quarantined(operation, rows if type(rows) is int else 0, replayed))
    return kept
