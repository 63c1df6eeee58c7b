"""How things are written for people: states, counts, durations, names."""

from __future__ import annotations

from distop.client import JobCounts, OperationState, Pause, Severity

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
    """``text`` without anything that could steer a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def counts(jobs: JobCounts) -> str:
    """``"40/100"``, or ``"40/100, 2 failed"``."""
    failed = f", {jobs.failed:,} failed" if jobs.failed else ""
    return f"{jobs.succeeded:,}/{jobs.total:,}{failed}"


def paused(pause: Pause | None) -> str:
    """``"by jane, since 2024-05-01 12:00:00: new disks"``; empty if nobody holds it."""
    if pause is None:
        return ""
    by = f"by {pause.by}" if pause.by else "by somebody"
    since = f", since {pause.at.astimezone():%Y-%m-%d %H:%M:%S}" if pause.at else ""
    table = " (its table is)" if pause.scope == "table" else ""
    return f"{by}{since}{table}{f': {pause.reason}' if pause.reason else ''}"


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
