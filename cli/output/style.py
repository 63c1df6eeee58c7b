"""Formats for people: states, counts, durations, names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from distop.client import JobCounts, OperationState, Pause, Severity
from distop.proto.facts import violations_of

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


def printable(text: str) -> str:
    """``text`` without terminal control characters."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


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
    for one in violations_of(facts):
        most = ", ".join(f"{name}: {rows:,}" for name, rows in one["most"].items())
        more = ", ..." if one["partitions"] > len(one["most"]) else ""
        sample = f", such as {one['sample']}" if one.get("sample") else ""
        lines.append(
            f"{one['rule']}: {one['rows']:,} row{'' if one['rows'] == 1 else 's'} ({most}{more}){sample}"
        )
    rules = facts.get("violatedRules")
    left = rules - len(lines) if isinstance(rules, int) else 0
    return "\n".join([*lines, f"and {left:,} more rules"] if lines and left > 0 else lines)


def duration(seconds: float | None) -> str:
    """``"0.31 s"``, ``"12.3 s"``, ``"4 min 10 s"``, ``"2 h 5 min"``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def in_bytes(size: int) -> str:
    """``"512 B"``, ``"1.4 KiB"``, ``"12.0 GiB"``."""
    if size < 1024:
        return f"{size} B"
    scaled, units = size / 1024, iter(("KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while scaled >= 1024 and unit != "TiB":
        scaled, unit = scaled / 1024, next(units)
    return f"{scaled:,.1f} {unit}"
