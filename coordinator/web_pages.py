"""The pages, as HTML made on the server: they are whole without JavaScript, which only keeps them fresh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from google.protobuf.json_format import MessageToDict

from distop.coordinator.grid import CLAIMED, FAILED, LEVELS, SUCCEEDED, Cell, JobGrid
from distop.coordinator.markup import Child, Html, join, tag
from distop.coordinator.web_reads import HISTORY, MAX_ACTIVE, WATERMARKS, Live, Overview, TableView
from distop.coordinator.why import Mood, Reason, seconds_of, short_name, span
from distop.errors import DistopError
from distop.proto import distop_pb2 as pb

SMALL_GRID, LARGE_GRID = 240, 2000
"""Cells of an operation's grid among others, and on its own page."""

LIVE_MS, CALM_MS = 500, 2000
"""Milliseconds between two looks of an open page, while something runs and while nothing does."""

_MAX_LABEL = 80

_MOODS = {
    Mood.IDLE: ("idle", "idle"),
    Mood.MOVING: ("moving", "moving"),
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


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What all pages of one coordinator have in common."""

    keyspace: str
    """The first component of its keys: which installation this is."""
    member: str
    """The coordinator that shows the page; empty while it has no lease."""
    now: float
    """Seconds since the Unix epoch."""

    def page(self, title: str, *content: Child, refresh_ms: int = CALM_MS, current: str = "") -> str:
        """A whole page around its content."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", f"{title} · distop"),
            tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
            tag("link", rel="stylesheet", href="/static/page.css"),
            tag("script", src="/static/page.js", defer=True),
        )
        links = [("Overview", "/"), ("Members", "/members")]
        header = tag(
            "header",
            tag("a", "distop", class_="brand", href="/"),
            tag(
                "nav",
                [
                    tag("a", text, href=href, aria_current="page" if text == current else None)
                    for text, href in links
                ],
                aria_label="Pages",
            ),
            tag(
                "form",
                tag("label", "Go to table", for_="go", class_="hidden"),
                tag(
                    "input",
                    id="go",
                    name="name",
                    placeholder="Go to table",
                    required=True,
                    autocomplete="off",
                ),
                action="/table",
                role="search",
            ),
            tag("p", id="live", role="status"),
        )
        footer = tag(
            "footer",
            tag(
                "p",
                "keys ",
                name_of(self.keyspace),
                " · shown by ",
                name_of(self.member or "a coordinator without a lease"),
            ),
            tag(
                "p",
                tag("a", "metrics", href="/metrics"),
                " · ",
                tag("a", "tables as JSON", href="/api/tables"),
            ),
        )
        main = tag("main", content, id="main", data_refresh=refresh_ms)
        return "<!doctype html>" + tag("html", head, tag("body", header, main, footer), lang="en")

    # -- pages ---------------------------------------------------------------------------------------

    def overview(self, view: Overview) -> str:
        """Everything at a glance."""
        roles = [member.role for member in view.members]
        stuck = sum(line.reason.mood is Mood.STUCK for line in view.tables)
        active = f"{view.active:,}" + ("+" if view.active >= MAX_ACTIVE else "")
        figures = [
            (active, "active operation" if view.active == 1 else "active operations", ""),
            *_count(roles.count("executor"), "executor"),
            *_count(roles.count("coordinator"), "coordinator"),
        ]
        if stuck:
            figures.append((str(stuck), "stuck on this page", "bad"))
        more = view.active - len(view.live)
        return self.page(
            "Overview",
            tag("h1", "Overview", class_="hidden"),
            tag(
                "ul",
                [tag("li", tag("b", n), " ", text, class_=mood) for n, text, mood in figures],
                class_="figures",
            ),
            _section(
                "Running",
                [self._card(live, with_table=True) for live in view.live]
                or _empty("Nothing is running. ", tag("code", "distop start"), " starts an operation."),
                tag("p", f"{more:,} more are active; the pages of their tables show them.", class_="note")
                if more > 0 and view.live
                else None,
            ),
            _section(
                "Tables",
                self._tables(view.tables),
                _pager(("next tables", _url("/", after=view.next_after)) if view.next_after else None),
            ),
            _section("Finished lately", self._operations(view.recent, with_table=True))
            if view.recent
            else None,
            refresh_ms=LIVE_MS if view.active else CALM_MS,
            current="Overview",
        )

    def table(self, view: TableView, watermarks: Sequence[pb.Watermark], *, page: int, marks: int) -> str:
        """One table; ``page`` and ``marks`` number the pages of its history and its watermarks."""
        table = view.table
        begin, end = page * HISTORY, (page + 1) * HISTORY
        first, last = marks * WATERMARKS, (marks + 1) * WATERMARKS
        options = MessageToDict(table.options)
        return self.page(
            view.name,
            tag("h1", name_of(view.name)),
            _why(view.reason),
            _facts(
                ("location", _code(table.location)),
                ("format", table.format),
                *((key, _code(value)) for key, value in sorted(options.items())),
                ("snapshot", str(table.snapshot_id) if table.snapshot_id else "nothing published yet"),
                ("metadata", _code(table.metadata_location)),
                (
                    "led by",
                    name_of(table.leader)
                    if table.leader
                    else "nobody: the table is idle"
                    if not table.running
                    else "nobody yet",
                ),
                ("created", self._ago(seconds_of(table.created_at)), _by(table.created_by)),
            ),
            _section("Running", [self._card(live, with_table=False) for live in view.live])
            if view.live
            else None,
            _section(
                "History",
                self._operations(view.history[begin:end], with_table=False),
                _pager(
                    ("newer", _url("/table", name=view.name, page=page - 1, marks=marks)) if page else None,
                    ("older", _url("/table", name=view.name, page=page + 1, marks=marks))
                    if len(view.history) > end
                    else None,
                ),
            ),
            _section(
                f"Watermarks · {len(watermarks):,}",
                _grid_of(
                    ("Source", "Partition", "Value"),
                    [
                        (name_of(mark.source), name_of(mark.partition), _code(mark.value))
                        for mark in watermarks[first:last]
                    ],
                    "No watermarks: nothing was ingested yet.",
                    label="Watermarks",
                ),
                _pager(
                    ("previous", _url("/table", name=view.name, page=page, marks=marks - 1))
                    if marks
                    else None,
                    ("next", _url("/table", name=view.name, page=page, marks=marks + 1))
                    if len(watermarks) > last
                    else None,
                ),
            ),
            refresh_ms=LIVE_MS if table.running else CALM_MS,
        )

    def operation(self, operation: pb.Operation, grid: JobGrid | None, reason: Reason | None) -> str:
        """One operation."""
        facts = MessageToDict(operation.facts)
        live = grid is not None
        began, ended = seconds_of(operation.started_at), seconds_of(operation.finished_at)
        failures = [(name_of(name), text) for name, text in (grid.failures.items() if grid else ())]
        return self.page(
            operation.name,
            tag(
                "h1",
                tag("a", name_of(operation.table), href=_url("/table", name=operation.table)),
                " ",
                _badge(operation),
            ),
            tag("p", name_of(short_name(operation)), class_="subtitle"),
            _why(reason) if reason else None,
            _error(operation),
            _bar(operation, grid),
            _cells(operation, grid, LARGE_GRID) if grid else None,
            _legend(grid) if grid else None,
            _facts(
                ("started", self._ago(began), _by(operation.started_by)),
                ("running for", span(self.now - began)) if live else ("finished", self._ago(ended)),
                ("took", span(ended - began)) if ended else None,
                ("run by", name_of(operation.runner)) if operation.runner else None,
                ("request", _code(operation.request_id)),
                *((key, _code(value)) for key, value in sorted(facts.items())),
            ),
            _section("Failed jobs", _grid_of(("Job", "Error"), failures, "", label="Failed jobs"))
            if failures
            else None,
            refresh_ms=LIVE_MS if live else CALM_MS,
        )

    def members(self, members: Sequence[pb.Member], leaders: Sequence[pb.Leader], shown: int = 200) -> str:
        """Who is there, and who leads what."""
        leads: dict[str, int] = {}
        for leader in leaders:
            leads[leader.member] = leads.get(leader.member, 0) + 1
        people = [
            (
                name_of(member.id),
                member.role,
                _code(member.address),
                name_of(member.host),
                str(member.pid),
                self._ago(seconds_of(member.started_at)),
                ", ".join(member.types) if member.role == "executor" else _leads(leads.get(member.id, 0)),
            )
            for member in members
        ]
        led = [
            (
                tag("a", name_of(one.table), href=_url("/table", name=one.table)),
                name_of(one.member),
                str(one.epoch),
            )
            for one in leaders[:shown]
        ]
        more = len(leaders) - shown
        return self.page(
            "Members",
            tag("h1", "Members"),
            _grid_of(
                ("Member", "Role", "Address", "Host", "Process", "Since", "Serves or leads"),
                people,
                "Nobody is there.",
                label="Members",
            ),
            _section(
                "Leaders",
                _grid_of(
                    ("Table", "Leader", "Epoch"),
                    led,
                    "No table has work, so none has a leader.",
                    label="Leaders",
                ),
                tag("p", f"{more:,} more tables are led.", class_="note") if more > 0 else None,
            ),
            current="Members",
        )

    def problem(self, error: DistopError) -> str:
        """What went wrong, with its stable code."""
        return self.page(
            error.code,
            tag("h1", "This cannot be shown"),
            tag(
                "p",
                tag("strong", error.code),
                f": {error.message}",
                f" ({error.hint})" if error.hint else None,
                class_="problem",
                id="problem",
            ),
        )

    # -- parts ---------------------------------------------------------------------------------------

    def _card(self, live: Live, *, with_table: bool) -> Html:
        """A running operation among others."""
        operation, grid = live.operation, live.grid
        name = short_name(operation)
        began = seconds_of(operation.started_at)
        return tag(
            "article",
            tag(
                "h3",
                tag("a", name_of(operation.table), href=_url("/table", name=operation.table))
                if with_table
                else None,
                " " if with_table else None,
                tag("a", name_of(name), href=_url("/operation", name=operation.name)),
                " ",
                _badge(operation),
            ),
            _bar(operation, grid),
            _cells(operation, grid, SMALL_GRID),
            tag(
                "p",
                f"for {span(self.now - began)}" if began else None,
                _by(operation.started_by),
                join([" · run by ", name_of(operation.runner)]) if operation.runner else " · nobody runs it",
                class_="note",
            ),
            class_="card",
            data_key=operation.name,
        )

    def _tables(self, lines: Sequence[TableView]) -> Html:
        rows = [
            (
                tag("a", name_of(line.name), href=_url("/table", name=line.name)),
                join([_mood(line.reason), " ", tag("span", line.reason.sentence)]),
                str(line.table.snapshot_id) if line.table.snapshot_id else "–",
                name_of(line.table.leader) if line.table.leader else "–",
                f"{line.watermarks:,}",
                _code(line.table.location),
            )
            for line in lines
        ]
        return _grid_of(
            ("Table", "Why", "Snapshot", "Leader", "Watermarks", "Location"),
            rows,
            join(["No tables. ", tag("code", "distop tables create NAME --location URL"), " makes one."]),
            label="Tables",
        )

    def _operations(self, operations: Sequence[pb.Operation], *, with_table: bool) -> Html:
        rows = []
        for one in operations:
            began, ended = seconds_of(one.started_at), seconds_of(one.finished_at)
            table = tag("a", name_of(one.table), href=_url("/table", name=one.table))
            rows.append(
                (
                    *((table,) if with_table else ()),
                    tag("a", name_of(short_name(one)), href=_url("/operation", name=one.name)),
                    _badge(one),
                    f"{one.jobs.succeeded:,}/{one.jobs.total:,}",
                    self._ago(ended),
                    span(ended - began),
                    name_of(one.started_by) if one.started_by else "–",
                    f"{one.error.code}: {one.error.message}" if one.error.code else "",
                )
            )
        columns = ("Operation", "Outcome", "Jobs", "Finished", "Took", "Who", "Error")
        return _grid_of(
            ("Table", *columns) if with_table else columns,
            rows,
            "No operation has finished yet.",
            label="Operations",
        )

    def _ago(self, moment: float) -> Child:
        if not moment:
            return "–"
        when = datetime.fromtimestamp(moment, UTC)
        return tag(
            "time",
            f"{span(self.now - moment)} ago",
            datetime=when.isoformat(timespec="milliseconds"),
            title=when.strftime("%Y-%m-%d %H:%M:%S UTC"),
        )


def name_of(text: str) -> Html:
    """A name that somebody chose: whatever script it is in, it leaves the text around it alone."""
    return tag("bdi", text)


def _code(value: object) -> Child:
    return tag("code", str(value)) if value not in ("", None) else "–"


def _by(who: str) -> Child:
    return [" by ", name_of(who)] if who else None


def _url(path: str, **query: str | int) -> str:
    kept = {key: value for key, value in query.items() if value not in ("", 0)}
    return f"{path}?{urlencode(kept)}" if kept else path


def _count(count: int, noun: str) -> list[tuple[str, str, str]]:
    return [(str(count), noun if count == 1 else f"{noun}s", "" if count else "bad")]


def _leads(count: int) -> str:
    return f"leads {count:,} table{'' if count == 1 else 's'}"


def _section(title: str, *content: Child) -> Html:
    return tag("section", tag("h2", title), content, data_key=title.partition(" · ")[0])


def _empty(*content: Child) -> Html:
    return tag("p", content, class_="empty")


def _pager(*links: tuple[str, str] | None) -> Child:
    given = [tag("a", text, href=href) for link in links if link is not None for text, href in (link,)]
    return tag("nav", given, class_="pager", aria_label="More") if given else None


def _facts(*facts: tuple[Child, ...] | None) -> Html:
    return tag(
        "dl",
        [(tag("dt", fact[0]), tag("dd", fact[1:])) for fact in facts if fact is not None],
        class_="facts",
    )


def _grid_of(columns: Sequence[str], rows: Iterable[Sequence[Child]], empty: Child, *, label: str) -> Html:
    body = [
        tag("tr", [tag("td", cell, data_column=column) for column, cell in zip(columns, row, strict=True)])
        for row in rows
    ]
    if not body:
        return _empty(empty)
    head = tag("tr", [tag("th", column, scope="col") for column in columns])
    return tag(
        "div",
        tag("table", tag("caption", label, class_="hidden"), tag("thead", head), tag("tbody", body)),
        class_="scroll",
    )


def _mood(reason: Reason) -> Html:
    kind, text = _MOODS[reason.mood]
    return tag("span", text, class_=f"badge {kind}")


def _why(reason: Reason) -> Html:
    return tag("p", _mood(reason), " ", tag("span", reason.sentence), class_="why")


def _badge(operation: pb.Operation) -> Html:
    state = _STATES.get(operation.state, "unknown")
    asked = operation.cancel_requested and operation.state == pb.RUNNING
    return tag("span", "cancelling" if asked else state, class_=f"badge {'aborting' if asked else state}")


def _error(operation: pb.Operation) -> Child:
    if not operation.error.code:
        return None
    return tag("p", tag("strong", operation.error.code), f": {operation.error.message}", class_="problem")


def _tally(jobs: pb.JobCounts, claimed: int) -> str:
    parts = [f"{jobs.succeeded:,} of {jobs.total:,} jobs done"]
    if jobs.failed:
        parts.append(f"{jobs.failed:,} failed")
    if claimed:
        parts.append(f"{claimed:,} at work")
    return ", ".join(parts)


def _bar(operation: pb.Operation, grid: JobGrid | None) -> Html:
    """The counts in words, and as a bar."""
    jobs = operation.jobs
    text = _tally(jobs, grid.claimed if grid else 0)
    share = jobs.succeeded / jobs.total if jobs.total else 1.0
    # Only all of them are 100 %.
    percent = f"{100 if share == 1 else min(99, round(share * 100))} %"
    return tag(
        "div",
        tag("progress", value=jobs.succeeded, max=max(jobs.total, 1), aria_label=text),
        tag("span", text),
        tag("b", percent),
        class_="bar",
    )


_KINDS = {SUCCEEDED: "s", FAILED: "f", CLAIMED: "r"}


def _cells(operation: pb.Operation, grid: JobGrid, limit: int) -> Html:
    """The partition grid: one picture to a screen reader, with its summary as text."""
    cells = grid.cells(limit)
    drawn = Html("".join(_cell(cell) for cell in cells))
    size = "large" if len(cells) <= 60 else "small" if len(cells) > 500 else "medium"
    label = f"Jobs of {short_name(operation)}: {_tally(operation.jobs, grid.claimed)}"
    return tag("div", drawn, class_=f"grid {size}", role="img", aria_label=label)


def _cell(cell: Cell) -> Html:
    kind = _KINDS.get(cell.state) or (f"p{cell.level}" if 0 < cell.level <= LEVELS else None)
    label = cell.label if len(cell.label) <= _MAX_LABEL else cell.label[:_MAX_LABEL] + "…"
    return tag("i", class_=kind, title=label)


def _legend(grid: JobGrid) -> Html:
    entries = [("s", "done"), ("f", "failed")]
    if grid.claimed:
        entries.append(("r", "at work"))
    entries.append(("", "waiting"))
    per_cell = -(-grid.total // LARGE_GRID)
    each = (
        f"a cell is up to {per_cell:,} jobs; the darker, the more of them are done" if per_cell > 1 else None
    )
    return tag(
        "p",
        [tag("span", tag("i", class_=kind or None), f" {text}") for kind, text in entries],
        tag("span", each) if each else None,
        class_="legend",
        aria_hidden="true",
    )
