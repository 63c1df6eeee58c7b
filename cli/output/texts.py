"""Text for people: operations, tables and entries of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from distop.cli.output.style import in_bytes, printable
from distop.client import AuditEntry, Index, Operation, TableContent
from distop.proto.facts import series_of

_MOST_FAILED = 20
"""Most failed partitions shown for an operation."""


def failed_partitions(errors: Any, count: int) -> str:
    """One line for each named partition, and the number of further ones."""
    if not isinstance(errors, Mapping) or not errors:  # an aborted operation names none
        return ""
    lines = [f"{name}: {error}" for name, error in sorted(errors.items())[:_MOST_FAILED]]
    more = count - len(lines)
    return "\n".join([*lines, f"and {more:,} more: --output json names up to 100"] if more > 0 else lines)


def content_pairs(content: TableContent | None) -> list[tuple[str, str]]:
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
        ("rows", number_of(content.rows)),
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


def asked_for(argument: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An argument, as a pair of a name and lines."""
    return [("asked for", "\n".join(f"{name}: {text_of(value)}" for name, value in argument.items()))]


def event_lines(operation: Operation) -> str:
    """What has happened to an operation, a line for each event, with the seconds since its start."""
    lines = []
    for one in operation.events:
        since = (one.at - operation.started_at).total_seconds() if one.at and operation.started_at else 0.0
        by = f" by {one.by}" if one.by else ""
        lines.append(f"{when(one.at)}  {since:+.3f} s  {one.what}{by}{f': {one.about}' if one.about else ''}")
    if operation.events_left_out:
        lines.append(f"{operation.events_left_out:,} more, after the first ones, are left out")
    return "\n".join(lines)


def index_line(index: Index) -> str:
    """A published index."""
    behind = index.commits_behind
    state = "how far behind is unknown" if behind is None else f"{behind} behind" if behind else "up to date"
    left_out = f", {index.left_out} left out" if index.left_out else ""
    return f"{index.column}: snapshot {index.snapshot_id}, {state}, {index.files:,} files{left_out}"


def state_of(operation: Operation) -> str:
    """The state, with how many rows went to quarantine: ``"succeeded, 12 quarantined"``."""
    bad = operation.facts.get("badRows") if "quarantine" in operation.facts else None
    return f"{operation.state.value}, {text_of(bad)} quarantined" if bad else operation.state.value


def series_line(series: Mapping[str, Any]) -> str:
    """How many operations a series has."""
    if not series:
        return ""
    return f"{series['name']}: {series['operations']:,} since {series['since']}, {series['rows']:,} rows"


def in_series(operation: Operation) -> str:
    """A suffix for the name of a series' last operation."""
    series = series_of(operation.facts)
    return f" ({series['operations']:,} of {printable(series['name'])})" if series else ""


def text_of(value: Any) -> str:
    """Any value of JSON, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text_of(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if isinstance(value, bool):
        return str(value).lower()  # the notation of arguments
    if isinstance(value, int) and abs(value) < 1 << 53:
        return f"{value:,}"
    return str(value)


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
