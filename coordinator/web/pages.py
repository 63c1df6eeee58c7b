"""Pages from the templates in ``page/``: text is always escaped, and invisible characters are shown.

The environment escapes the value of every expression, so a table called ``<script>`` is just a name. An
undefined name in a template is an error, never an empty text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from distop.coordinator.state.grid import JobGrid, Outcomes
from distop.coordinator.views import messages, why
from distop.coordinator.views.why import Need, many
from distop.coordinator.web import actions, charts, reads
from distop.coordinator.web.actions import Action
from distop.coordinator.web.reads import Failure, grouped
from distop.proto import distop_pb2 as pb
from distop.proto import json_text
from distop.proto.commands import command
from distop.proto.json_text import LINKS, from_json, links_of, printable, text_of, violations_of


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


PENDING = {
    Need.DECISION: "Waits for a decision",
    Need.REPAIR: "Cannot be read",
    Need.UPGRADE: "Waits for a newer version",
    Need.CALL: "Waits for a slow call",
    Need.LEADER: "Waits for its leader",
    Need.RESUME: "Paused",
    Need.RUNNER: "Waits for an executor to take it",
    Need.EXECUTOR: "Waits for an executor to be started",
    Need.LEASE: "Waits for the lease of its executor to end",
    Need.JOBS: "Its jobs run",
}
"""What an operation needs next, in a line."""

EVENTS = {
    "taken": "good",
    "step done": "good",
    "steps done": "good",
    "waits again": "warn",
    "cancel requested": "warn",
    "paused": "warn",
    "completion failed": "bad",
    "parked": "bad",
}
"""How an event looks."""

BATCHES = {
    "applied": "succeeded",
    "waiting": "idle",
    "running": "running",
    "approval": "approval",
    "failed": "failed",
    "skipped": "skipped",
    "rewritten": "rewritten",
}
"""The states of a batch, and how each looks."""

FILTERS = (
    ("", "any"),
    ("running,committing,aborting", "under way"),
    ("succeeded", "succeeded"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
)
"""States of operations as one chooses them."""

SEVERITIES = {number: name.lower() for name, number in pb.Severity.items()}

COLUMNS, RULES, SCHEDULES, LATEST = 200, 200, 100, 50
"""Columns, rules, schedules, and what came last, in lists."""

MANY_SMALL, MANY_SNAPSHOTS = 20, 100
"""Small files and snapshots from which on removing them is worth a command."""

LARGE_GRID = 2000
"""Cells of an operation's grid on its own page."""

SHORT = 120
"""Characters of an argument in lists."""

LINES = 20
"""Lines of a value."""

MOMENT = "%Y-%m-%d %H:%M:%S UTC"
"""How a moment is written."""


def render(template: str, **values: object) -> str:
    """A whole page.

    Parameters
    ----------
    values:
        What the template shows; and on every page ``keyspace`` (the first component of the coordinator's
        keys, which names the installation), ``member`` (its id; empty before it has a lease), ``now``
        (seconds since the Unix epoch) and ``address`` (where the page asks again; empty: nowhere). What its
        reader may do is chosen by ``offered``: everything, unless it is given. Nobody can sign in, unless the
        coordinator ``identifies_callers``.
    """
    given = {"offered": _all, "identifies_callers": False, **values}
    return ENVIRONMENT.get_template(template).render(given)


def _all(possible: Iterable[Action], running: Iterable[str] = ()) -> list[Action]:
    return list(possible)


def url(path: str, **query: str | int) -> str:
    """The address of one of the pages; empty and 0 values are left out of its query."""
    kept = {key: value for key, value in query.items() if value not in ("", 0)}
    return f"{path}?{urlencode(kept)}" if kept else path


def tally(jobs: pb.JobCounts, grid: JobGrid | Outcomes | None) -> str:
    """``"34 of 120 jobs done, 1 failed"``."""
    counting = grid is not None and not grid.complete
    total = "an unknown number of" if jobs.counting and not jobs.total else f"{jobs.total:,}"
    jobs_done = f"{jobs.succeeded:,} of {total} {'job' if jobs.total == 1 else 'jobs'} done"
    parts = [f"at least {jobs_done}" if counting else jobs_done]
    if jobs.failed:
        parts.append(f"{jobs.failed:,} failed")
    if grid is not None and (claimed := grid.claimed):
        parts.append(f"{claimed:,} at work")
    return ", ".join(parts)


def failures_of(grid: JobGrid | None, facts: Mapping[str, Any]) -> list[Failure]:
    """The failures of an operation's jobs by message; of one that is over those that its facts name."""
    named: Any = facts.get("failedPartitions") if grid is None else grid.failures
    known = isinstance(named, Mapping) and all(isinstance(error, str) for error in named.values())
    return grouped(named) if known else []


def others_of(facts: Mapping[str, Any], failures: Sequence[Failure]) -> dict[str, Any]:
    """The facts that the page of an operation shows nowhere else."""
    elsewhere = {"violations": violations_of(facts), "failedPartitions": failures, LINKS: links_of(facts)}
    return {name: value for name, value in facts.items() if not elsewhere.get(name)}


@dataclass(frozen=True, slots=True)
class ToMend:
    """What makes a table slow to read or costly to keep, and the command that mends it."""

    what: str
    do: str
    """The action that mends it."""
    command: str


def to_mend(name: str, listed: pb.ListSnapshotsResponse) -> list[ToMend]:
    """What the first page of a table's snapshots says about its health."""
    mending, more = [], "+" if listed.next_page_token else ""
    for snapshot in listed.snapshots:
        if snapshot.present and snapshot.small_files >= MANY_SMALL:
            mending.append(_to_mend(many(snapshot.small_files, "small file"), "compact-table", name))
        if snapshot.present and snapshot.delete_files:
            deletes = many(snapshot.delete_files, "file of row deletes", "files of row deletes")
            mending.append(_to_mend(deletes, "compact-table", name))
    if len(listed.snapshots) >= MANY_SNAPSHOTS:
        kept = f"{len(listed.snapshots):,}{more} snapshots are kept"
        mending.append(_to_mend(kept, "expire", name))
    return mending


def _to_mend(subject: str, do: str, name: str) -> ToMend:
    return ToMend(subject, do, command(do, name))


def percent(jobs: pb.JobCounts) -> int:
    """The share that is done. Only all jobs are 100 %."""
    share = jobs.succeeded / jobs.total if jobs.total else 0.0 if jobs.counting else 1.0
    return 100 if share == 1 else min(99, round(share * 100))


def short(argument: Mapping[str, Any]) -> str:
    """The argument, in one line of a table; of many values the first one."""
    text = ", ".join(f"{name}={_first_of(value)}" for name, value in argument.items())
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"


def _first_of(value: Any) -> str:
    more = len(value) - 1 if isinstance(value, list) else 0
    return f"{text_of(value[0])} and {more:,} more" if more > 0 else text_of(value)


def _readable(value: Any) -> Any:
    """An expression's value before it is escaped; markup comes from macros, whose expressions passed here."""
    return value if isinstance(value, Markup) else printable(str(value))


ENVIRONMENT = Environment(
    loader=PackageLoader(__package__, "page"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_readable,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters["number"] = "{:,}".format


def _defined_in(module: ModuleType) -> dict[str, Any]:
    """The public names that a module defines itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
    }


# What templates may call: whatever these modules define.
for _module in (json_text, messages, why, charts, actions, reads, sys.modules[__name__]):
    ENVIRONMENT.globals |= _defined_in(_module)
ENVIRONMENT.globals |= {"pb": pb, "typed": command, "utc": partial(datetime.fromtimestamp, tz=UTC)}
