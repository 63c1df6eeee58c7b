"""When a schedule is due, and what is decided of it at a time."""

import math
import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.coordinator.schedules import times
from distop.coordinator.schedules.due import (
    AGAIN_S,
    Tick,
    due_tick,
    is_reached,
    looks,
    parse_condition,
    rested,
    was_skipped,
)
from distop.coordinator.schedules.times import check_cron, last_tick, next_tick, zone_of
from distop.errors import InvalidArgument
from distop.metastore.records.operation import PauseRecord
from distop.metastore.tables.schedules import After, AgendaRecord, ScheduleRecord


def at(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


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
    assert last_tick(cron, at("2026-01-01T00:00:00"), at(until)) == at(expected)
    assert last_tick(cron, at(expected), at(until)) is None


def test_every_half_hour_of_a_year_comes_once_also_when_clocks_are_put_forward_and_back() -> None:
    tick, count = at("2026-01-01T00:00:00"), 0
    while (tick := next_tick("0,30 * * * *", tick)) < at("2027-01-01T00:00:00"):
        count += 1
        if count % 7 == 0:
            assert last_tick("0,30 * * * *", tick - 1, tick) == tick
    assert count == 365 * 48 - 1


def ticks_of(cron: str, after: str, until: str, zone: str) -> list[str]:
    """All times of an expression in a time zone, in local time with its distance from UTC."""
    tick, ticks = at(after), list[str]()
    while (tick := next_tick(cron, tick, zone)) <= at(until):
        ticks.append(datetime.fromtimestamp(tick, ZoneInfo(zone)).isoformat(timespec="minutes"))
    return ticks


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("0,20,40 2 29 3 *", ["2026-03-29T03:00+02:00"]),
        ("0 2,3 29 3 *", ["2026-03-29T03:00+02:00"]),
        ("0 * 29 3 *", [f"2026-03-29T{h:02}:00+0{1 if h < 2 else 2}:00" for h in range(24) if h != 2]),
        ("*/40 2 29,30 3 *", ["2026-03-30T02:00+02:00", "2026-03-30T02:40+02:00"]),
    ],
)
def test_a_time_in_the_missing_hour_comes_when_the_clock_passes_over_it(
    cron: str, expected: list[str]
) -> None:
    assert ticks_of(cron, "2026-03-28T00:00+01:00", "2026-03-30T12:00+02:00", "Europe/Berlin") == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("59 2 25 10 *", ["2026-10-25T02:59+02:00"]),
        ("0 3 25 10 *", ["2026-10-25T03:00+01:00"]),
        (
            "*/40 2 25 10 *",
            [f"2026-10-25T02:{at}" for at in ("00+02:00", "40+02:00", "00+01:00", "40+01:00")],
        ),
        ("0 1-3/1 25 10 *", ["2026-10-25T01:00+02:00", "2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00"]),
        (
            "0 */8 25 10 *",
            [f"2026-10-25T{hour}" for hour in ("00:00+02:00", "08:00+01:00", "16:00+01:00")],
        ),
    ],
)
def test_a_time_in_the_repeated_hour_comes_the_first_time(cron: str, expected: list[str]) -> None:
    assert ticks_of(cron, "2026-10-24T00:00+02:00", "2026-10-26T12:00+01:00", "Europe/Berlin") == expected


@pytest.mark.parametrize(
    "after", ["2026-10-25T02:15+01:00", "2026-10-25T02:30+01:00", "2026-10-25T02:30+02:00"]
)
def test_in_the_second_of_two_equal_hours_the_first_is_over(after: str) -> None:
    tomorrow = at("2026-10-26T02:30+01:00")
    assert next_tick("30 2 * * *", at(after), "Europe/Berlin") == tomorrow
    first = at("2026-10-25T02:30+02:00")
    yesterday = at("2026-10-24T02:30+02:00")
    assert last_tick("30 2 * * *", yesterday, at(after), "Europe/Berlin") == first
    assert last_tick("30 2 * * *", first, at(after), "Europe/Berlin") is None


ZONES = ["Europe/Berlin", "America/Havana", "Africa/Cairo", "America/Sao_Paulo", "Australia/Lord_Howe", "UTC"]
CRONS = ["30 2 * * *", "0 0 * * *", "*/30 0,23 * * *", "15 */2 * * *", "0 * * * *", "5 0,1,2,3,23 * * 0,6"]


@given(
    st.sampled_from(ZONES),
    st.sampled_from(CRONS),
    st.integers(1_500_000_000, 1_800_000_000),
    st.integers(0, 200),
)
@settings(max_examples=300, deadline=None)
def test_the_last_time_is_the_last_of_the_next_ones(zone: str, cron: str, after: int, hours: int) -> None:
    """Or one time would be started again and again. Clocks change at midnight in some zones, by half an hour
    in another."""
    until, tick, last = after + 1800.0 * hours, float(after), None
    while (tick := next_tick(cron, tick, zone)) <= until:
        assert last is None or last < tick
        last = tick
    assert last_tick(cron, after, until, zone) == last


@pytest.mark.parametrize(
    "zone",
    ["Berlin", "europe/berlin", "+02:00", "../etc/passwd", "Europe", "localtime", "right/UTC", "E" * 65],
)
def test_an_unknown_time_zone_is_refused_by_name(zone: str) -> None:
    """U3."""
    with pytest.raises(InvalidArgument, match=re.escape(zone[:64])) as refused:
        check_cron("0 0 * * *", 0.0, zone)
    assert refused.value.details["field"] == "timezone"


def test_a_host_without_time_zones_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "ZoneInfo", lambda name: {}[name])
    with pytest.raises(InvalidArgument) as refused:
        zone_of("Europe/Berlin")
    assert "install the package tzdata" in refused.value.hint


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


def test_a_time_that_never_comes_again_is_infinity() -> None:
    assert next_tick("0 0 */30 2 MON#5", at("2026-01-01T00:00:00")) == math.inf


HOUR = 3600.0
HOURLY = ScheduleRecord(type="noop", cron="0 * * * *", tick=10 * HOUR)
MANY = ScheduleRecord(type="compact", measure="small_files", above=200, tick=1.0)


def test_a_time_is_due_once_it_has_come() -> None:
    assert due_tick(HOURLY, 11 * HOUR - 0.1, 0, None) is None
    assert due_tick(HOURLY, 11 * HOUR, 0, None) == Tick(11 * HOUR)


def test_only_the_last_missed_time_is_made_up_for() -> None:
    tick = due_tick(HOURLY, 30.5 * HOUR, 0, None)
    assert tick == Tick(30 * HOUR)
    left = tick.started(HOURLY, "t/noop/1")
    assert (left.tick, left.started, left.operation) == (30 * HOUR, 1, "t/noop/1")
    assert due_tick(left, 30.9 * HOUR, 0, None) is None
    assert due_tick(left, 31 * HOUR, 0, None) == Tick(31 * HOUR)


@pytest.mark.parametrize("back", [0.5, 1.0, 9.0, 400.0])
def test_a_clock_that_jumps_back_shows_times_that_are_decided(back: float) -> None:
    left = Tick(11 * HOUR).started(HOURLY, "t/noop/1")
    assert due_tick(left, (11 - back) * HOUR, 0, None) is None


def test_a_paused_schedule_is_never_due() -> None:
    paused = msgspec.structs.replace(HOURLY, pause=PauseRecord(by="jane"))
    assert due_tick(paused, 50 * HOUR, 0, None) is None
    assert not looks(msgspec.structs.replace(MANY, pause=PauseRecord()), 7)


def test_a_condition_is_looked_at_once_for_each_head() -> None:
    assert not looks(MANY, 0)
    assert looks(MANY, 7)
    assert due_tick(MANY, 5.0, 7, {"small_files": 200}) is None
    assert due_tick(MANY, 5.0, 7, None) is None
    tick = due_tick(MANY, 5.0, 7, {"small_files": 201})
    assert tick == Tick(5.0, 7)
    left = tick.started(MANY, "t/compact/1")
    assert not looks(left, 7)
    assert due_tick(left, 500.0, 7, {"small_files": 900}) is None
    assert looks(left, 8)


def test_a_time_that_is_skipped_is_over_and_counted() -> None:
    left = Tick(11 * HOUR).skipped(HOURLY, "TABLE_PAUSED", "why", 11 * HOUR + 3, passes=True)
    assert (left.skipped, left.started, left.tick) == (1, 0, 11 * HOUR)
    assert left.skip is not None
    assert (left.skip.code, left.skip.message, left.skip.at) == ("TABLE_PAUSED", "why", 11 * HOUR + 3)
    assert due_tick(left, 11.5 * HOUR, 0, None) is None


def test_a_condition_that_is_in_the_way_of_something_waits_and_is_counted_once() -> None:
    tick = Tick(5.0, 7)
    left = tick.skipped(MANY, "INCOMPATIBLE_OPERATION", "t/ingest/1 is running", 5.0, passes=True)
    assert due_tick(left, 65.0, 7, {"small_files": 201}) == Tick(65.0, 7)
    assert was_skipped(left, Tick(65.0, 7))
    assert not was_skipped(left, Tick(65.0, 8))
    over = tick.skipped(MANY, "INVALID_ARGUMENT", "no such argument", 5.0, passes=False)
    assert due_tick(over, 65.0, 7, {"small_files": 201}) is None


def test_the_next_look_is_at_the_first_time_or_when_a_head_moves() -> None:
    other = msgspec.structs.replace(HOURLY, cron="30 10 * * *")
    paused = msgspec.structs.replace(HOURLY, cron="1 * * * *", pause=PauseRecord())
    agenda = AgendaRecord(due=0.0, decided=["one"])
    left = rested(agenda, [HOURLY, other, paused], 7, {}, 10 * HOUR, waiting=False)
    assert left == AgendaRecord(due=10.5 * HOUR, decided=["one"])
    left = rested(agenda, [HOURLY, MANY], 7, {}, 10 * HOUR, waiting=False)
    assert (left.due, left.watches, left.head, left.looked_at) == (11 * HOUR, True, 7, 10 * HOUR)
    left = rested(agenda, [MANY], 7, {}, 10 * HOUR, waiting=True)
    assert left.due == 10 * HOUR + AGAIN_S
    assert rested(agenda, [], 7, {}, 10 * HOUR, waiting=False) == AgendaRecord(decided=["one"])


def test_a_time_that_waits_for_a_watermark_needs_no_look_before_that_has_moved() -> None:
    """Or before the next time comes, which waits in its place."""
    after = After(table="x", source="s", partition="p", value="9")
    waits = msgspec.structs.replace(HOURLY, after=after)
    assert due_tick(waits, 12.2 * HOUR, 0, None) == Tick(12 * HOUR)
    left = rested(AgendaRecord(due=0.0), [waits], 7, {"x": 3}, 12.2 * HOUR, waiting=False)
    assert left == AgendaRecord(due=13 * HOUR, marks={"x": 3}, looked_at=12.2 * HOUR)


@pytest.mark.parametrize(
    ("standing", "value", "holds"),
    [
        (None, "", False),
        ("9", "10", False),
        ("10", "9", True),
        ("10", "10", True),
        ("part-9", "part-10", False),
        ("2024-02-01T08:00:00Z", "2024-02", True),
        ("2024-01-31", "2024-02", False),
        ("17", "2024-02", False),
    ],
)
def test_a_watermark_is_reached_in_the_order_of_watermarks(
    standing: str | None, value: str, holds: bool
) -> None:
    assert is_reached(After(table="x", source="s", partition="p", value=value), standing) is holds


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("watermark(x,s,p)>=9", ("x", "s", "p", "9")),
        (
            " watermark( a.b , file:///in (1), x , 2024-01 ) >= 1 8 ",
            ("a.b", "file:///in (1), x", "2024-01", "1 8"),
        ),
        (
            "watermark(default.x, s3://b/{{ tick }}, p) >= a, b) >= c",
            ("x", "s3://b/{{ tick }}", "p", "a, b) >= c"),
        ),
    ],
)
def test_a_condition_on_a_watermark_is_read_and_shown(text: str, after: tuple[str, str, str, str]) -> None:
    condition = parse_condition(text)
    assert condition.after is not None
    assert msgspec.structs.astuple(condition.after) == after
    assert parse_condition(str(condition)) == condition
