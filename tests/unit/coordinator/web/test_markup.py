"""Names may hold anything; pages hold them as text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.web.markup import join, printable, tag
from distop.coordinator.web.parts import code, link, name_of


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


def test_attributes_are_written_as_html_writes_them():
    html = tag(
        "i", "x", class_="a", aria_label="b", data_key="c", hidden=True, title=None, open=False, value=0
    )
    assert html == '<i class="a" aria-label="b" data-key="c" hidden value="0">x</i>'


def test_void_elements_have_no_end():
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_children_nest_and_nothing_is_left_out_but_nothing():
    assert tag("p", "a", None, ["b", [tag("b", "c")]]) == "<p>ab<b>c</b></p>"


@given(st.text())
def test_text_and_attributes_come_back_as_what_can_be_seen_of_them(text):
    reader = read(tag("p", text, title=text))
    assert [name for name, _ in reader.seen] == ["p"]
    assert reader.text == reader.seen[0][1]["title"] == printable(text)


@given(st.text(alphabet="<>&\"'/= scriptonload:%?#\u202e\x00\n", min_size=1))
def test_no_name_becomes_markup(name):
    reader = read(join([name_of(name), code(name), link("/table", name_of(name), name=name)]))
    assert [element for element, _ in reader.seen] == ["bdi", "code", "a", "bdi"]
    assert dict(reader.seen[2][1]).keys() == {"href"}
    assert str(reader.seen[2][1]["href"]).startswith("/table?name=")
    assert printable(name) in reader.text


def test_what_cannot_be_seen_is_spelled_out():
    assert printable("sales\u202egnp.exe\n") == "sales\\u202egnp.exe\\n"
    assert printable("日本 مرحبا <b>") == "日本 مرحبا <b>"
