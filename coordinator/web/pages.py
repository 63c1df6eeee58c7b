"""The pages, as HTML made on the server: they are whole without JavaScript, which only keeps them fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distop.coordinator.views.why import Mood, seconds_of, short_name, span
from distop.coordinator.web.markup import Child, Html, tag
from distop.coordinator.web.parts import (
    NOTHING,
    ago,
    bar,
    by,
    cells,
    code,
    empty,
    facts,
    legend,
    link,
    name_of,
    note,
    operation_link,
    pager,
    problem,
    reason_of,
    rows_of,
    section,
    state_badge,
    table_link,
)
from distop.coordinator.web.reads import (
    HISTORY,
    LIVE,
    MAX_ACTIVE,
    WATERMARKS,
    Live,
    OperationPage,
    Overview,
    TablePage,
)
from distop.errors import DistopError
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json

SMALL_GRID, LARGE_GRID = 240, 2000
"""Cells of an operation's grid among others, and on its own page."""

LIVE_MS, CALM_MS = 500, 2000
"""Milliseconds between two looks of an open page, while something runs and while nothing does."""

LEADERS, OTHERS = 200, 100
"""Leaders listed on the page of members, and running operations that a table's page only names."""

_LINKS = (("Overview", "/"), ("Members", "/members"))


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The pages of one coordinator at one moment."""

    keyspace: str
    """The first component of its keys: which installation this is."""
    member: str
    """The coordinator that shows the page; empty before it has a lease."""
    now: float
    """Seconds since the Unix epoch."""

    def overview(self, view: Overview) -> str:
        """Everything at a glance."""
        more = view.active - len(view.live)
        return self._page(
            "Overview",
            tag("h1", "Overview", class_="hidden"),
            _figures(view),
            section(
                "Running",
                tag("div", [self._card(live, with_table=True) for live in view.live], class_="cards")
                if view.live
                else empty("Nothing is running. ", tag("code", "distop start"), " starts an operation."),
                note(f"{more:,} more are active: see the pages of their tables.")
                if view.live and more > 0
                else None,
            ),
            section(
                "Tables",
                self._tables(view.tables),
                pager(link("/", "next tables", after=view.next_after) if view.next_after else None),
            ),
            section("Finished lately", self._operations(view.recent, with_table=True))
            if view.recent
            else None,
            refresh_ms=LIVE_MS if view.active else CALM_MS,
        )

    def table(self, view: TablePage, watermarks: Sequence[pb.Watermark], *, page: int, marks: int) -> str:
        """One table; ``page`` and ``marks`` number the pages of its history and of its watermarks."""
        table = view.table
        options = from_json(table.options_json, "options")
        nobody = "nobody yet" if table.running else "nobody while it is idle"
        return self._page(
            view.name,
            tag("h1", name_of(view.name)),
            tag("p", reason_of(view.reason), class_="why"),
            section(
                "Running",
                tag("div", [self._card(live, with_table=False) for live in view.live], class_="cards"),
                _others(table.running[LIVE:]),
            )
            if view.live
            else None,
            facts(
                ("location", code(table.location)),
                ("format", table.format),
                *((key, code(value)) for key, value in sorted(options.items())),
                ("snapshot", str(table.snapshot_id) if table.snapshot_id else "nothing is published yet"),
                ("metadata", code(table.metadata_location)) if table.metadata_location else None,
                ("led by", name_of(table.leader) if table.leader else nobody),
                ("created", ago(self.now, seconds_of(table.created_at)), by(table.created_by)),
            ),
            section(
                "History",
                self._operations(view.history[page * HISTORY : (page + 1) * HISTORY], with_table=False),
                pager(
                    link("/table", "newer", name=view.name, page=page - 1, marks=marks) if page else None,
                    link("/table", "older", name=view.name, page=page + 1, marks=marks)
                    if len(view.history) > (page + 1) * HISTORY
                    else None,
                ),
            ),
            section(
                f"Watermarks · {len(watermarks):,}",
                _watermarks(watermarks[marks * WATERMARKS : (marks + 1) * WATERMARKS]),
                pager(
                    link("/table", "previous", name=view.name, page=page, marks=marks - 1) if marks else None,
                    link("/table", "next", name=view.name, page=page, marks=marks + 1)
                    if len(watermarks) > (marks + 1) * WATERMARKS
                    else None,
                ),
            ),
            refresh_ms=LIVE_MS if table.running else CALM_MS,
        )

    def operation(self, view: OperationPage) -> str:
        """One operation."""
        operation, grid = view.operation, view.grid
        reported = from_json(operation.facts_json, "facts")
        broken = reported.pop("violations", None) or []
        began, ended = seconds_of(operation.started_at), seconds_of(operation.finished_at)
        error = operation.error
        failures = [(name_of(name), text) for name, text in (grid.failures.items() if grid else ())]
        return self._page(
            operation.name,
            tag("p", "Operation on ", table_link(operation.table), class_="note"),
            tag("h1", name_of(short_name(operation)), " ", state_badge(operation)),
            tag("p", reason_of(view.reason), class_="why") if view.reason else None,
            problem(error.code, error.message) if error.code else None,
            bar(operation, grid),
            [cells(operation, grid, LARGE_GRID), legend(grid, LARGE_GRID)] if grid else None,
            facts(
                ("started", ago(self.now, began), by(operation.started_by)),
                ("finished", ago(self.now, ended)) if ended else None,
                ("took", span(ended - began)) if ended else ("running for", span(self.now - began)),
                ("run by", name_of(operation.runner)) if operation.runner else None,
                ("request", code(operation.request_id)),
                *((key, code(value)) for key, value in sorted(reported.items())),
            ),
            section("Broken rules", _broken_rules(broken)) if broken else None,
            section("Failed jobs", rows_of("Failed jobs", ("Job", "Error"), failures)) if failures else None,
            refresh_ms=CALM_MS if ended else LIVE_MS,
        )

    def members(self, members: Sequence[pb.Member], leaders: Sequence[pb.Leader]) -> str:
        """Who is there, and who leads what."""
        led: dict[str, int] = {}
        for leader in leaders:
            led[leader.member] = led.get(leader.member, 0) + 1
        people = [
            (
                name_of(member.id),
                member.role + (" (draining)" if member.draining else ""),
                code(member.address),
                name_of(member.host),
                str(member.pid),
                ago(self.now, seconds_of(member.started_at)),
                {
                    "executor": f"serves {', '.join(member.types) or 'nothing'}",
                    "coordinator": f"leads {_many(led.get(member.id, 0), 'table')}",
                }.get(member.role, ""),
            )
            for member in members
        ]
        tables = [(table_link(one.table), name_of(one.member), str(one.epoch)) for one in leaders[:LEADERS]]
        more = len(leaders) - LEADERS
        columns = ("Member", "Role", "Address", "Host", "Process", "Since", "What it does")
        return self._page(
            "Members",
            tag("h1", "Members"),
            rows_of("Members", columns, people, without="Nobody is there."),
            section(
                "Leaders",
                rows_of(
                    "Leaders",
                    ("Table", "Leader", "Epoch"),
                    tables,
                    without="No table has work, so none needs a leader.",
                ),
                note(f"{more:,} more tables are led.") if more > 0 else None,
            ),
        )

    def problem(self, error: DistopError) -> str:
        """What went wrong, with its stable code."""
        said = problem(error.code, error.message, error.hint)
        return self._page("Not shown", tag("h1", "This cannot be shown"), tag("div", said, id="problem"))

    # -- parts ---------------------------------------------------------------------------------------

    def _page(self, title: str, *content: Child, refresh_ms: int = CALM_MS) -> str:
        """A whole page around its content."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{title} · distop"),
            tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
            tag("link", rel="stylesheet", href="/static/page.css"),
            tag("script", src="/static/page.js", defer=True),
        )
        links = [
            tag("a", text, href=href, aria_current="page" if text == title else None) for text, href in _LINKS
        ]
        search = tag(
            "form",
            tag("label", "Go to table", for_="go", class_="hidden"),
            tag("input", id="go", name="name", placeholder="Go to table", required=True, autocomplete="off"),
            action="/table",
            role="search",
        )
        header = tag(
            "header",
            tag("a", "distop", class_="brand", href="/"),
            tag("nav", links, aria_label="Pages"),
            search,
            tag("p", id="live", role="status"),
        )
        shown_by = name_of(self.member) if self.member else "a coordinator without a lease"
        footer = tag(
            "footer",
            tag("p", "keys ", code(f"{self.keyspace}."), " · shown by ", shown_by),
            tag(
                "p",
                tag("a", "tables as JSON", href="/api/tables"),
                " · ",
                tag("a", "metrics", href="/metrics"),
            ),
        )
        main = tag("main", content, id="main", data_refresh=refresh_ms)
        return "<!doctype html>" + tag("html", head, tag("body", header, main, footer), lang="en")

    def _card(self, live: Live, *, with_table: bool) -> Html:
        """A running operation among others."""
        operation, grid = live.operation, live.grid
        began = seconds_of(operation.started_at)
        return tag(
            "article",
            tag(
                "h3",
                [table_link(operation.table), " "] if with_table else None,
                operation_link(operation),
                " ",
                state_badge(operation),
            ),
            bar(operation, grid),
            cells(operation, grid, SMALL_GRID),
            note(
                f"for {span(self.now - began)}, started",
                by(operation.started_by or "an unnamed caller"),
                [", run by ", name_of(operation.runner)] if operation.runner else ", without a runner",
            ),
            class_="card",
            data_key=operation.name,
        )

    def _tables(self, lines: Sequence[TablePage]) -> Html:
        rows = [
            (
                table_link(line.name),
                reason_of(line.reason),
                str(line.table.snapshot_id) if line.table.snapshot_id else NOTHING,
                name_of(line.table.leader) if line.table.leader else NOTHING,
                f"{line.watermarks:,}",
                code(line.table.location),
            )
            for line in lines
        ]
        return rows_of(
            "Tables",
            ("Table", "Why", "Snapshot", "Leader", "Watermarks", "Location"),
            rows,
            without=["No tables. ", tag("code", "distop tables create NAME --location URL"), " makes one."],
        )

    def _operations(self, operations: Sequence[pb.Operation], *, with_table: bool) -> Html:
        """Finished operations."""
        rows = []
        for one in operations:
            began, ended = seconds_of(one.started_at), seconds_of(one.finished_at)
            rows.append(
                (
                    *([table_link(one.table)] if with_table else []),
                    operation_link(one),
                    state_badge(one),
                    f"{one.jobs.succeeded:,}/{one.jobs.total:,}",
                    ago(self.now, ended),
                    span(ended - began),
                    name_of(one.started_by) if one.started_by else NOTHING,
                    tag("span", f"{one.error.code}: {one.error.message}", class_="bad")
                    if one.error.code
                    else NOTHING,
                )
            )
        columns = ("Operation", "Outcome", "Jobs", "Finished", "Took", "Who", "Error")
        return rows_of(
            "Finished operations",
            ("Table", *columns) if with_table else columns,
            rows,
            without="No operation has finished yet.",
        )


def _figures(view: Overview) -> Html:
    """The counts that say at once whether anything is amiss."""
    roles = [member.role for member in view.members]
    executors, coordinators = roles.count("executor"), roles.count("coordinator")
    stuck = sum(line.reason.mood is Mood.STUCK for line in view.tables)
    some = "+" if view.active >= MAX_ACTIVE else ""
    figures = [
        (f"{view.active:,}{some}", "active operation" if view.active == 1 else "active operations", False),
        (f"{executors:,}", "executor" if executors == 1 else "executors", not executors),
        (f"{coordinators:,}", "coordinator" if coordinators == 1 else "coordinators", not coordinators),
        *([(f"{stuck:,}", "stuck on this page", True)] if stuck else []),
    ]
    return tag(
        "ul",
        [
            tag("li", tag("b", number), f" {text}", class_="bad" if amiss else None)
            for number, text, amiss in figures
        ],
        class_="figures",
    )


def _others(names: Sequence[str]) -> Html | None:
    """Links to running operations that are not drawn."""
    if not names:
        return None
    links = [[" ", link("/operation", name_of(name), name=name)] for name in names[:OTHERS]]
    return note("Also running:", links, f" and {len(names) - OTHERS:,} more" if len(names) > OTHERS else None)


def _watermarks(marks: Sequence[pb.Watermark]) -> Html:
    return rows_of(
        "Watermarks",
        ("Source", "Partition", "Value"),
        [(code(mark.source), code(mark.partition), code(mark.value)) for mark in marks],
        without="No watermarks: nothing was ingested yet.",
    )


def _broken_rules(found: Sequence[Mapping[str, Any]]) -> Html:
    """What rows were found to break, by rule; where most of them are, and one of them."""
    return rows_of(
        "Broken rules",
        ("Rule", "Rows", "Most of them in", "Such as"),
        [
            (
                code(one.get("rule")),
                f"{int(one.get('rows', 0)):,}",
                ", ".join(f"{name} ({int(rows):,})" for name, rows in one.get("most", {}).items()),
                code(one.get("sample")),
            )
            for one in found
        ],
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
