"""Templates in arguments of schedules: what they become, and what is refused."""

from datetime import datetime
from typing import Any

import pytest

from distop.coordinator.schedules.times import rendered
from distop.errors import InvalidArgument
from distop.proto.templates import MAX_EXPRESSIONS, has_templates

TICK = datetime.fromisoformat("2026-03-29T00:30:00+01:00").timestamp() + 0.25
"""In UTC it is the day before."""


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("{{ tick }}", "Europe/Berlin", "2026-03-29T00:30:00+01:00"),
        ("{{tick}}", "", "2026-03-28T23:30:00+00:00"),
        ("/in/{{ tick | date }}/*.csv", "Europe/Berlin", "/in/2026-03-29/*.csv"),
        ("{{ tick | date }}", "", "2026-03-28"),
        ("{{ tick|date('%Y/%m') }}-{{ tick | date(\"%d\") }}", "Europe/Berlin", "2026/03-29"),
        (
            "{{ tick | date('%GW%V.%u %j %H:%M:%S %y %z 100%% è') }}",
            "",
            "2026W13.6 087 23:30:00 26 +0000 100% è",
        ),
        ("{{ '{{' }} }} {% if %} {# none #}\r\n", "", "{{ }} {% if %} {# none #}\r\n"),
        ("{ { tick } }", "", "{ { tick } }"),
    ],
)
def test_templates_show_the_time_of_the_tick_in_its_zone(text: str, zone: str, expected: str) -> None:
    """All that is no template stays as it is, to the last byte."""
    assert rendered(text, TICK, zone) == expected


def test_texts_at_any_depth_are_rendered_and_nothing_else() -> None:
    argument: dict[str, Any] = {"{{ a": [1, None, {"b": ["{{ tick | date }}", 2.5]}], "c": True}
    assert has_templates(argument)
    assert rendered(argument, TICK, "") == {"{{ a": [1, None, {"b": ["2026-03-28", 2.5]}], "c": True}
    assert not has_templates({"{{ a": ["b", {"c": 1}]})


@pytest.mark.parametrize(
    "text",
    [
        "{{ tock }}",
        "{{ table }}",
        "{{ tick | data }}",
        "{{ tick | upper }}",
        "{{ tick.__class__ }}",
        "{{ tick.year }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 'a' * 1000000000 }}",
        "{{ tick ~ tick }}",
        "{{ [1] }}",
        "{{ range(9) }}",
        "{{ tick | date('%s') }}",
        "{{ tick | date('%9999999d') }}",
        "{{ tick | date('%') }}",
        "{{ tick | date(1) }}",
        "{{ tick | date('%Y', '%m') }}",
        "{{ tick | date | date }}",
        "{{ 'a' | date }}",
        "{{- tick -}}",
        "{{ }}",
        "{{ tick }",
        "{{ tick",
        "{{ tick }} {{",
    ],
)
def test_what_is_no_template_is_refused(text: str) -> None:
    """U3: by name, and with what can be written."""
    with pytest.raises(InvalidArgument) as refused:
        rendered({"a": [text]}, TICK, "")
    assert text in refused.value.message
    assert "{{ tick | date }}" in refused.value.hint
    assert refused.value.details["field"] == "argument"


def test_an_argument_has_so_many_templates_and_no_more() -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        rendered(["{{ tick }}"] * (MAX_EXPRESSIONS + 1), TICK, "")
