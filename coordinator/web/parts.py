"""The pieces that pages are made of: names, badges, tables, bars, and the partition grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from distop.coordinator.state.grid import CLAIMED, FAILED, SUCCEEDED, Cell, JobGrid
from distop.coordinator.views.why import Mood, Reason, short_name, span
from distop.coordinator.web.markup import Child, Html, tag
from distop.proto import distop_pb2 as pb

NOTHING = "–"
"""Stands where there is nothing to say."""

_MAX_LABEL = 80

# Moods that are in order say so in their sentence.
_MOODS = {
    Mood.IDLE: ("idle", ""),
    Mood.MOVING: ("moving", ""),
    Mood.WAITING: ("waiting", "waiting"),
    Mood.STUCK: ("stuck", "stuck"),
    Mood.FAILED: ("failed", "last failed"),
}
_STATES = {
    pb.RUNNING: "running",
    pb.COMMITTING: "committing",
    pb.ABORTING: "aborting",
    pb.SUCCEEDED: "succeeded",
    pb.FAILED: "failed",
    pb.CANCELLED: "cancelled",
}
_CELLS = {SUCCEEDED: "s", FAILED: "f", CLAIMED: "r"}


# -- text --------------------------------------------------------------------------------------------


def name_of(text: str) -> Html:
    """A name that somebody chose: whatever script it is in, it leaves the text around it alone."""
    return tag("bdi", text)


def code(value: object) -> Child:
    """Something to be read letter by letter."""
    return tag("code", str(value)) if value not in ("", None) else NOTHING


def by(who: str) -> Child:
    """``" by somebody"``, or nothing."""
    return [" by ", name_of(who)] if who else None


def link(path: str, text: Child, **query: str | int) -> Html:
    """A link to one of the pages; what is empty or 0 is left out of its query."""
    kept = {key: value for key, value in query.items() if value not in ("", 0)}
    return tag("a", text, href=f"{path}?{urlencode(kept)}" if kept else path)


def table_link(name: str) -> Html:
    return link("/table", name_of(name), name=name)


def operation_link(operation: pb.Operation) -> Html:
    return link("/operation", name_of(short_name(operation)), name=operation.name)


def ago(now: float, moment: float) -> Child:
    """How long ago a moment was, in seconds since the Unix epoch; 0 is never."""
    if not moment:
        return NOTHING
    when = datetime.fromtimestamp(moment, UTC)
    return tag(
        "time",
        f"{span(now - moment)} ago",
        datetime=when.isoformat(timespec="milliseconds"),
        title=when.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


# -- blocks ------------------------------------------------------------------------------------------


def section(title: str, *content: Child) -> Html:
    return tag("section", tag("h2", title), content, data_key=title.partition(" · ")[0])


def note(*content: Child) -> Html:
    return tag("p", content, class_="note")


def empty(*content: Child) -> Html:
    """What stands in place of a list without entries."""
    return tag("p", content, class_="empty")


def pager(*links: Html | None) -> Child:
    """Links to the pages before and behind this one."""
    given = [one for one in links if one is not None]
    return tag("nav", given, class_="pager", aria_label="More") if given else None


def facts(*pairs: tuple[Child, ...] | None) -> Html:
    """Names and what they stand for: each pair is the name, then its value in pieces."""
    lines = [(tag("dt", pair[0]), tag("dd", pair[1:])) for pair in pairs if pair is not None]
    return tag("dl", lines, class_="facts")


def rows_of(
    label: str, columns: Sequence[str], rows: Iterable[Sequence[Child]], *, without: Child = "Nothing."
) -> Html:
    """A table; ``without`` rows, that sentence."""
    body = [
        tag("tr", [tag("td", cell, data_column=column) for column, cell in zip(columns, row, strict=True)])
        for row in rows
    ]
    if not body:
        return empty(without)
    head = tag("tr", [tag("th", column, scope="col") for column in columns])
    caption = tag("caption", label, class_="hidden")
    return tag(
        "div",
        tag("table", caption, tag("thead", head), tag("tbody", body)),
        class_="scroll",
        # Scrolls sideways on narrow screens: so it must be reachable by keyboard.
        tabindex=0,
        role="region",
        aria_label=label,
    )


def problem(code: str, message: str, hint: str = "") -> Html:
    """An error with its stable code."""
    text = f": {message} ({hint})" if hint else f": {message}"
    return tag("p", tag("strong", code), text, class_="problem")


# -- states ------------------------------------------------------------------------------------------


def _badge(kind: str, text: str) -> Html:
    return tag("span", text, class_=f"badge {kind}")


def state_badge(operation: pb.Operation) -> Html:
    """The state of an operation."""
    if operation.cancel_requested and operation.state == pb.RUNNING:
        return _badge("aborting", "cancelling")
    state = _STATES.get(operation.state, "unknown")
    return _badge(state, state)


def reason_of(reason: Reason) -> Child:
    """Why a table moves or not."""
    kind, text = _MOODS[reason.mood]
    return [_badge(kind, text) if text else tag("i", class_=f"dot {kind}"), " ", reason.sentence]


def tally(jobs: pb.JobCounts, grid: JobGrid | None) -> str:
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


def bar(operation: pb.Operation, grid: JobGrid | None) -> Html:
    """The counts of an operation's jobs, in words and as a bar."""
    jobs = operation.jobs
    text = tally(jobs, grid)
    share = jobs.succeeded / jobs.total if jobs.total else 0.0 if jobs.counting else 1.0
    # Only all of them are 100 %.
    percent = 100 if share == 1 else min(99, round(share * 100))
    return tag(
        "div",
        tag("progress", value=jobs.succeeded, max=max(jobs.total, 1), aria_label=text),
        tag("span", text),
        tag("b", f"{percent} %"),
        class_="bar",
    )


def cells(operation: pb.Operation, grid: JobGrid, limit: int) -> Html:
    """The partition grid in at most ``limit`` cells; to a screen reader one picture, named by its counts."""
    drawn = grid.cells(limit)
    size = "large" if len(drawn) <= 60 else "medium" if len(drawn) <= 500 else "small"
    return tag(
        "div",
        Html("".join(_cell(cell) for cell in drawn)),
        class_=f"grid {size}",
        role="img",
        aria_label=f"Jobs of {short_name(operation)}: {tally(operation.jobs, grid)}",
    )


def _cell(cell: Cell) -> Html:
    kind = _CELLS.get(cell.state) or (f"p{cell.level}" if cell.level else None)
    label = cell.label if len(cell.label) <= _MAX_LABEL else cell.label[:_MAX_LABEL] + "…"
    return tag("i", class_=kind, title=label)


def legend(grid: JobGrid, limit: int) -> Html:
    """What the colours of a grid drawn in ``limit`` cells mean."""
    entries = [("s", "done"), ("f", "failed"), *([("r", "at work")] if grid.claimed else []), ("", "waiting")]
    several = -(-grid.total // limit)
    each = f"a cell is up to {several:,} jobs; the stronger its colour, the more of them are done"
    return tag(
        "p",
        [tag("span", tag("i", class_=kind or None), f" {text}") for kind, text in entries],
        tag("span", each) if several > 1 else None,
        class_="legend",
        aria_hidden="true",
    )
