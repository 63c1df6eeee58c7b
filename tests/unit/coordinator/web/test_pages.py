"""Names may hold anything; pages hold them as text."""

import json
import re
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from distop.coordinator.views.why import Mood, Need, Reason
from distop.coordinator.web.charts import over_time, phases
from distop.coordinator.web.pages import ENVIRONMENT, LINES, render, short
from distop.coordinator.web.reads import OperationPage, grouped
from distop.errors import NotFound
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import printable
from distop.proto.messages import timestamp
from support.repository import ROOT


class Reader(HTMLParser):
    """Reads back what a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


TEXT = ENVIRONMENT.from_string('<p title="{{ text }}">{{ text }}</p>')
NAMES = ENVIRONMENT.from_string(
    '{% from "parts.html" import code, name_of, table_link %}'
    "{{ name_of(name) }}{{ code(name) }}{{ table_link(name) }}"
)
PAGE = ROOT / "coordinator" / "web" / "page"
PAST_THE_ENVIRONMENT = (
    r"~|\bautoescape\b|\|\s*(safe|e|escape|forceescape|join|replace|tojson|urlize|xmlattr)\b"
)
"""What Jinja escapes itself, or not at all: the environment does not see it."""


@given(st.text())
def test_text_and_attributes_come_back_as_what_can_be_seen_of_them(text):
    reader = read(TEXT.render(text=text))
    assert [name for name, _ in reader.seen] == ["p"]
    assert reader.text == reader.seen[0][1]["title"] == printable(text)


@given(st.text(alphabet="<>&\"'/= scriptonload:%?#\u202e\x00\n", min_size=1))
def test_no_name_becomes_markup(name):
    reader = read(NAMES.render(name=name))
    assert [element for element, _ in reader.seen] == ["bdi", "code", "a", "bdi"]
    assert dict(reader.seen[2][1]).keys() == {"href"}
    assert str(reader.seen[2][1]["href"]).startswith("/table?name=")
    assert reader.text == printable(name) * 3


@pytest.mark.parametrize("template", ENVIRONMENT.list_templates(extensions=["html"]))
def test_a_template_has_no_way_past_the_environment(template):
    assert ENVIRONMENT.loader is not None
    source = ENVIRONMENT.loader.get_source(ENVIRONMENT, template)[0]
    assert not re.search(PAST_THE_ENVIRONMENT, source)
    assert not re.search(r"<script(?! src=)|\sstyle=|\son\w+=", source)


def test_each_column_that_has_a_style_is_one_of_a_page():
    columns = set(re.findall(r'data-column="([^"]+)"', (PAGE / "page.css").read_text()))
    templates = "".join(file.read_text() for file in PAGE.glob("*.html"))
    assert columns - set(re.findall(r'"([^"\n]+)"', templates)) == set()


def test_a_missing_value_of_a_page_is_an_error():
    with pytest.raises(UndefinedError, match="'address' is undefined"):
        render("problem.html", error=NotFound("there is no such page"))


def test_invisible_characters_are_shown_by_their_codes():
    assert printable("sales\u202egnp.exe\n") == "sales\\u202egnp.exe\\n"
    assert printable("日本 مرحبا <b>") == "日本 مرحبا <b>"


FRAME: dict[str, Any] = {"keyspace": "distOp", "member": "c1", "now": 1_100.0, "address": "/operation"}


def shown(operation: pb.Operation, **fields: Any) -> str:
    """The page of an operation."""
    view = OperationPage(operation=operation, **fields)
    return render("operation.html", view=view, jobs="", start=0, **FRAME)


def test_what_cannot_be_read_in_time_runs_all_the_same():
    """U1, U4: the overview counts operations from an index, and then looks at each."""
    view = {"tables": [], "next_after": "", "live": [], "active": 2, "members": [], "recent": []}
    page = read(render("overview.html", view=view, **FRAME)).text
    assert "2 active operations" in page
    assert "Nothing is running" not in page
    assert "2 are active and not shown here" in page
    assert "Nothing is running" in render("overview.html", view=view | {"active": 0}, **FRAME)


def test_a_parked_operation_is_red_and_says_what_it_waits_for():
    """U1"""
    parked = pb.Completion(parked=True, attempts=5, error=pb.OperationError(code="X", message="broken"))
    jobs = pb.JobCounts(total=4, succeeded=4)
    operation = pb.Operation(
        name="t/ingest/1", type="ingest", instance=1, state=pb.COMMITTING, jobs=jobs, completion=parked
    )
    reason = Reason(Mood.STUCK, "ingest/1 is parked")
    page = shown(operation, reason=reason, need=Need.DECISION)
    assert '<div class="bar amiss">' in page
    assert '<span class="badge parked">parked</span>' in page
    assert '<li class="pending stuck">' in page
    assert "Waits for a decision" in page


def test_links_of_a_type_are_links_and_what_is_none_is_text():
    """U1"""
    operation = pb.Operation(name="t/k/1", type="k", instance=1, state=pb.SUCCEEDED)

    def links(**named: str) -> list[dict[str, str | None]]:
        operation.facts_json = json.dumps({"links": named})
        seen = read(shown(operation)).seen
        return [given for tag, given in seen if tag == "a" and "noopener" in (given.get("rel") or "")]

    (link,) = links(**{"<b>": "https://example.com/?a=1&b='"})
    assert link["href"] == "https://example.com/?a=1&b='"
    assert links(page="javascript:alert(1)") == []
    assert "javascript:alert" in shown(operation)


def test_phases_follow_the_events_whatever_the_clocks_say():
    events = [
        pb.Event(at=timestamp(at), what=what)
        for at, what in ((100, "started"), (110, "taken"), (111, "led"), (109, "sealed"), (130, "finished"))
    ]
    found = [(phase.name, phase.seconds, phase.width) for phase in phases(events, 150.0)]
    assert found == [("waiting", 10, 200), ("running", 0, 0), ("completing", 40, 800)]
    assert phases([], 1.0) == []


def test_a_count_lasts_until_now_whatever_the_clocks_say():
    first, last = (
        pb.Snapshot(in_history=True, rows=rows, committed_at=timestamp(at))
        for rows, at in ((1, 100), (4, 150))
    )
    (rows,) = over_time([last, first], 200.0)
    assert (rows.title, rows.highest, rows.begin) == ("Rows", 4, 100.0)
    assert [(line.last, line.path) for line in rows.lines] == [(4, "M0 75.0H500.0V0.0H1000.0")]
    (early,) = over_time([first, last], 120.0)
    assert early.lines[0].path == "M0 75.0H1000.0V0.0H1000.0"
    assert over_time([first], 200.0) == []


def test_values_are_written_as_on_the_command_line():
    """U1: JSON in the notation of arguments, numbers with separators, one line for each of several."""
    paths = [f"/in/{number}.csv" for number in range(LINES + 3)]
    assert short({"paths": paths, "header": True}) == f"paths=/in/0.csv and {LINES + 2} more, header=true"
    argument = json.dumps({"paths": paths, "header": True, "limit": 1000, "of": {"a": None}})
    operation = pb.Operation(
        name="t/k/1", type="k", instance=1, state=pb.SUCCEEDED, argument_json=argument, events=[pb.Event()]
    )
    operation.started_at.FromSeconds(1_000)
    operation.finished_at.FromMilliseconds(1_001_310)
    page = shown(operation)
    for text in ("true", "1,000", "a=null", *paths[:LINES]):
        assert f"<code>{text}</code>" in page
    assert paths[LINES] not in page
    assert "and 3 more" in page
    assert "<dd>1.31 s</dd>" in page
    assert ">1970-01-01 00:16:40 UTC</time>" in page


def test_failures_are_grouped_by_what_they_say():
    errors = {"day=01": "no file day=01", "day=02": "no file day=02", "day=03": "disk full", "4": "4 of 4"}
    groups = [(failure.error, list(failure.partitions)) for failure in grouped(errors)]
    assert groups == [("no file …", ["day=01", "day=02"]), ("disk full", ["day=03"]), ("4 of 4", ["4"])]


def test_the_vendored_library_is_the_one_that_its_note_names():
    note = (PAGE / "htmx.txt").read_text()
    digest = sha256((PAGE / "htmx.min.js").read_bytes()).hexdigest()
    assert f"SHA-256: {digest}\n" in note
    assert "htmx 4.0.1" in note
    assert "0BSD" in note
