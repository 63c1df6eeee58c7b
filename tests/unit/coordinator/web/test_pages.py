"""Names may hold anything; pages hold them as text."""

from __future__ import annotations

import re
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from distop.coordinator.web.pages import ENVIRONMENT, printable, render
from distop.errors import NotFound
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


def test_what_nobody_gave_is_an_error_and_no_empty_place():
    with pytest.raises(UndefinedError, match="'address' is undefined"):
        render("problem.html", error=NotFound("there is no such page"))


def test_what_cannot_be_seen_is_spelled_out():
    assert printable("sales\u202egnp.exe\n") == "sales\\u202egnp.exe\\n"
    assert printable("日本 مرحبا <b>") == "日本 مرحبا <b>"


def test_the_vendored_library_is_the_one_that_its_note_names():
    note = (PAGE / "htmx.txt").read_text()
    digest = sha256((PAGE / "htmx.min.js").read_bytes()).hexdigest()
    assert f"SHA-256: {digest}\n" in note
    assert "htmx 4.0.1" in note
    assert "0BSD" in note
