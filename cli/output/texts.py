"""Text for people: states, counts, operations, tables, findings, entries of the audit trail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from distop.client import (
    AuditEntry,
    Block,
    Finding,
    Index,
    JobCounts,
    Operation,
    OperationError,
    OperationState,
    Pause,
    Schedule,
    Severity,
    Staged,
    TableContent,
)
from distop.client.model import Model
from distop.proto.commands import to_resolve
from distop.proto.json_text import in_bytes, printable, series_of, text_of, violations_of

if TYPE_CHECKING:
    from distop.executor.checking.spark_setup import WorkerFinding


STATE_STYLES = {
    OperationState.RUNNING: "cyan",
    OperationState.COMMITTING: "blue",
    OperationState.ABORTING: "yellow",
    OperationState.SUCCEEDED: "green",
    OperationState.FAILED: "red",
    OperationState.CANCELLED: "yellow",
    OperationState.UNKNOWN: "",
}

SEVERITY_STYLES = {
    Severity.NOTICE: "cyan",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
    Severity.UNKNOWN: "",
}


def counts(jobs: JobCounts) -> str:
    """``"40/100"``, or ``"40/100, 2 failed"``; ``"0/?"`` while the total is unknown."""
    failed = f", {jobs.failed:,} failed" if jobs.failed else ""
    total = "?" if jobs.counting and not jobs.total else f"{jobs.total:,}"
    return f"{jobs.succeeded:,}/{total}{failed}"


def paused(pause: Pause | None) -> str:
    """``"by jane, since 2024-05-01 12:00:00Z: new disks"``; empty if not paused."""
    if pause is None:
        return ""
    by = f"by {pause.by}" if pause.by else "by an unknown caller"
    since = f", since {pause.at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if pause.at else ""
    table = " (its table is)" if pause.scope == "table" else ""
    return f"{by}{since}{table}{f': {pause.reason}' if pause.reason else ''}"


def broken_rules(facts: Mapping[str, Any]) -> str:
    """One line per broken rule: the number of rows, where most of them are, and a sample."""
    lines = []
    for violation in violations_of(facts):
        most = ", ".join(f"{name}: {rows:,}" for name, rows in violation["most"].items())
        others = violation["partitions"] - len(violation["most"])
        more = f", {others:,} more" if others > 0 else ""
        sample = f", such as {violation['sample']}" if violation.get("sample") else ""
        lines.append(
            f"{violation['rule']}: {violation['rows']:,} row{'' if violation['rows'] == 1 else 's'} "
            f"({most}{more}){sample}"
        )
    rules = facts.get("violatedRules")
    left = rules - len(lines) if isinstance(rules, int) else 0
    return "\n".join([*lines, f"and {left:,} more rules"] if lines and left > 0 else lines)


_MOST_FAILED = 20
"""Most failed partitions shown for an operation."""


def failed_partitions(errors: Any, count: int) -> str:
    """One line for each named partition, and the number of further ones."""
    if not isinstance(errors, Mapping) or not errors:  # an aborted operation names none
        return ""
    lines = [f"{name}: {error}" for name, error in sorted(errors.items())[:_MOST_FAILED]]
    more = count - len(lines)
    return "\n".join([*lines, f"and {more:,} more: --output json names up to 100"] if more > 0 else lines)


def content_pairs(content: TableContent | None) -> list[tuple[str, Any]]:
    """The content of a table, as names and values."""
    if content is None:
        return []
    columns = [
        f"{column.name}: {column.type}{' not null' if column.required else ''}" for column in content.columns
    ]
    size = "" if content.bytes is None else f"{in_bytes(content.bytes)} in {number_of(content.files)} files"
    loaded = (
        f"{when(content.loaded_at)}, {number_of(content.loaded_rows)} rows, by {content.loaded_by}"
        if content.loaded_by
        else ""
    )
    return [
        ("columns", "\n".join(columns)),
        ("partitioned by", ", ".join(content.partition_by)),
        ("rows", content.rows),
        ("size", size),
        ("last load", loaded),
        ("not known", content.missing),
    ]


def became(entry: AuditEntry) -> str:
    """The outcome of an action, in the audit trail."""
    rows = "" if entry.rows is None else f"{number_of(entry.rows)} rows"
    size = "" if entry.bytes is None else in_bytes(entry.bytes)
    return ", ".join(filter(None, (entry.outcome, printable(entry.error_code), rows, size)))


def number_of(count: int | None) -> str:
    """``"1,234"``; empty if unknown."""
    return "" if count is None else f"{count:,}"


def arguments_of(argument: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An argument, as a pair of a name and lines."""
    return [("argument", lines_of(argument))]


def lines_of(value: Any) -> str:
    """A value of JSON: an object has a line for each of its names."""
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {text_of(item)}" for name, item in value.items())
    return text_of(value)


def event_lines(operation: Operation) -> str:
    """What has happened to an operation, a line for each event, with the seconds since its start."""
    lines = []
    for event in operation.events:
        since = (
            (event.at - operation.started_at).total_seconds() if event.at and operation.started_at else 0.0
        )
        by = f" by {event.by}" if event.by else ""
        lines.append(
            f"{when(event.at)}  {since:+.3f} s  {event.what}{by}{f': {event.about}' if event.about else ''}"
        )
    if operation.events_left_out:
        lines.append(f"{operation.events_left_out:,} more, after the first ones, are left out")
    return "\n".join(lines)


def index_line(index: Index) -> str:
    """A published index."""
    behind = index.commits_behind
    state = "how far behind is unknown" if behind is None else f"{behind} behind" if behind else "up to date"
    left_out = f", {index.left_out} left out" if index.left_out else ""
    return f"{index.column}: snapshot {index.snapshot_id}, {state}, {index.files:,} files{left_out}"


def state_of(operation: Operation, *, decide: bool = False) -> str:
    """The state, with how many rows went to quarantine: ``"succeeded, 12 quarantined"``; and what holds it:
    ``"committing (parked)"``. ``decide``: with the command for that."""
    bad = operation.facts.get("badRows") if "quarantine" in operation.facts else None
    state = f"{operation.state.value}, {text_of(bad)} quarantined" if bad else operation.state.value
    if operation.completion is not None and operation.parked:
        command = to_resolve(operation.name, skippable=operation.completion.skippable)
        return f"{state} (parked: {command})" if decide else f"{state} (parked)"
    if operation.cancel_requested and not operation.done:
        return f"{state} (cancel requested)"
    return f"{state} (paused)" if operation.pause else state


def series_line(series: Mapping[str, Any]) -> str:
    """How many operations a series has."""
    if not series:
        return ""
    return f"{series['name']}: {series['operations']:,} since {series['since']}, {series['rows']:,} rows"


def in_series(operation: Operation) -> str:
    """A suffix for the name of a series' last operation."""
    series = series_of(operation.facts)
    return f" ({series['operations']:,} of {printable(series['name'])})" if series else ""


def shown(value: Any) -> str:
    """A field of a result: as :func:`text_of`, times in UTC, and nothing for ``None``."""
    if value is None:
        return ""
    return when(value) if isinstance(value, datetime) else text_of(value)


def completion_line(operation: Operation) -> str:
    """How completing the operation fails or hangs, if it does."""
    completion = operation.completion
    if completion is None or operation.done:
        return ""
    skipped = f", {completion.skipped} steps skipped" if completion.skipped else ""
    if completion.running:
        return f"{completion.running} takes long{skipped}"
    if completion.error is None:
        return f"tried again{skipped}"
    step = f" at step {completion.step}" if completion.step else ""
    error = f"{completion.error.code}: {completion.error.message}"
    since = f" since {when(completion.since)}" if completion.since else ""
    line = f"{completion.attempts} failed attempts{since}{step}{skipped}: {error}"
    if completion.parked or not completion.next_at:
        return line
    return f"{line}; the next at {when(completion.next_at)}, the last at {when(completion.until)}"


def when(moment: datetime | None) -> str:
    """``"2024-05-01 12:00:00Z"``; empty for no time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if moment else ""


def seconds_since(moment: datetime | None) -> float | None:
    """The age of a time."""
    return (datetime.now(UTC) - moment).total_seconds() if moment else None


MOST_HOSTS = 5


def doctor_lines(findings: Iterable[Finding]) -> Iterator[Text]:
    """Those of ``distop cluster doctor``."""
    for finding in findings:
        mark = "fixed" if finding.fixed else finding.severity.value
        style = "green" if finding.fixed else SEVERITY_STYLES[finding.severity]
        yield _line(mark, style, finding.code, finding.sentence)
        for text in filter(None, [finding.outcome, "" if finding.fixed else finding.remedy]):
            yield Text(f"    {printable(text)}")


def worker_lines(findings: Iterable[WorkerFinding]) -> Iterator[Text]:
    """Those of ``distop executor --check``."""
    for finding in findings:
        hosts = some_hosts(finding.workers)
        error = Severity.ERROR
        yield _line(
            error.value, SEVERITY_STYLES[error], finding.code, f"{hosts}: " * bool(hosts) + finding.sentence
        )
        yield Text(f"    {printable(finding.remedy)}")


def some_hosts(hosts: Sequence[str]) -> str:
    """The first of them, and how many others there are."""
    more = len(hosts) - MOST_HOSTS
    return ", ".join(hosts[:MOST_HOSTS]) + (f" and {more} more" if more > 0 else "")


def _line(mark: str, style: str, code: str, sentence: str) -> Text:
    return Text.assemble((f"{mark}: ", style), (f"{code}: ", "bold"), printable(sentence))


def fields_of(model: Model) -> list[tuple[str, Any]]:
    """The fields of a result that are set, as names and values: what it has is what is shown."""
    pairs = []
    for field in fields(model):  # type: ignore[arg-type]  # each model is a dataclass
        value = getattr(model, field.name)
        if value or (value == 0 and field.default is None):
            pairs.append((field.name.replace("_", " "), _field(value)))
    return pairs


def _field(value: Any) -> Any:
    match value:
        case bool():
            return "yes"
        case int():
            return f"{value:,}"
        case Pause():
            return paused(value)
        case OperationError():
            return f"{value.code}: {value.message}"
        case Block():
            return Text(printable(f"batch {value.batch}: {_field(value.error)}"), "red")
        case Staged():
            return f"{value.batch} on {value.branch}"
        case Mapping():
            return lines_of(value)
        case tuple():
            return Text("\n").join(
                text if isinstance(text, Text) else Text(shown(text)) for text in map(_field, value)
            )
    return value


def skip_reason(schedule: Schedule) -> str:
    """Why the last tick was skipped; empty: none was."""
    return printable(f"{schedule.skip.code}: {schedule.skip.message}") if schedule.skip else ""
