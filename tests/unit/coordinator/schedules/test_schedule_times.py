"""Cron expressions: which are taken, and the times that they name, in UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from distop.coordinator.schedules.times import check_cron, last_tick, next_tick
from distop.errors import InvalidArgument


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01:00"),
        ("* * * * *", "2026-01-01T00:00:59.900", "2026-01-01T00:01:00"),
        ("30 3 * * *", "2026-01-01T03:30:00", "2026-01-02T03:30:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 12 * * SUN", "2026-01-01T00:00:00", "2026-01-04T12:00:00"),
        ("*/15 0-1 1,15 * *", "2026-01-01T01:45:00", "2026-01-15T00:00:00"),
        # Where clocks are put forward and back an hour in many places: in UTC nothing happens.
        ("30 2 * * *", "2026-03-28T12:00:00", "2026-03-29T02:30:00"),
        ("30 1 * * *", "2026-10-25T01:30:00", "2026-10-26T01:30:00"),
    ],
)
def test_the_next_time_is_the_first_one_after(cron: str, after: str, expected: str) -> None:
    assert next_tick(cron, at(after)) == at(expected)


@pytest.mark.parametrize(
    ("cron", "until", "expected"),
    [
        ("0 * * * *", "2026-01-01T05:00:00", "2026-01-01T05:00:00"),
        ("0 * * * *", "2026-01-01T05:00:00.5", "2026-01-01T05:00:00"),
        ("0 * * * *", "2026-01-01T04:59:59.999", "2026-01-01T04:00:00"),
        ("30 3 * * *", "2026-03-01T03:29:00", "2026-02-28T03:30:00"),
    ],
)
def test_the_last_time_is_the_one_up_to_now(cron: str, until: str, expected: str) -> None:
    assert last_tick(cron, at(until)) == at(expected)


def test_every_half_hour_of_a_year_comes_once_also_when_clocks_are_put_forward_and_back() -> None:
    tick, count = at("2026-01-01T00:00:00"), 0
    while (tick := next_tick("0,30 * * * *", tick)) < at("2027-01-01T00:00:00"):
        count += 1
        if count % 7 == 0:
            assert last_tick("0,30 * * * *", tick) == tick
    assert count == 365 * 48 - 1


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "0 30 3 * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 9",
        "*/0 * * * *",
        "5-1 * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "0 0 */30 2 MON#5",
        "@daily",
        "1#1/2 * * * *",
        "0 0 * * 1#1/2",
        "0 0 * * ²L",
        "a b c d e",
        "* * * * *; rm",
        ",".join(["1"] * 200) + " * * * *",
    ],
)
def test_what_is_no_expression_or_never_comes_is_refused_by_its_field(cron: str) -> None:
    """U3."""
    with pytest.raises(InvalidArgument) as refused:
        check_cron(cron, at("2026-01-01T00:00:00"))
    assert refused.value.details["field"] == "cron"


def test_an_expression_has_one_spelling() -> None:
    assert check_cron("  0   3 *  * sun ", at("2026-01-01T00:00:00")) == "0 3 * * sun"


def test_what_never_comes_again_is_told_as_infinity() -> None:
    assert next_tick("0 0 */30 2 MON#5", at("2026-01-01T00:00:00")) == math.inf
