"""What is decided of a schedule at a time: one catch-up, nothing twice, skips, and when to look next."""

from __future__ import annotations

import msgspec
import pytest

from distop.coordinator.schedules.policy import AGAIN_S, Tick, due_tick, looks, rested, was_told
from distop.metastore.records.operation import PauseRecord
from distop.metastore.records.schedule import AgendaRecord, ScheduleRecord

HOUR = 3600.0
HOURLY = ScheduleRecord(type="noop", cron="0 * * * *", tick=10 * HOUR)
MANY = ScheduleRecord(type="compact", measure="small_files", above=200, tick=1.0)


def test_a_time_is_due_once_it_has_come() -> None:
    assert due_tick(HOURLY, 11 * HOUR - 0.1, 0, None) is None
    assert due_tick(HOURLY, 11 * HOUR, 0, None) == Tick(11 * HOUR)


def test_of_what_was_missed_the_last_is_made_up_for() -> None:
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


def test_what_is_paused_is_never_due() -> None:
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
    assert was_told(left, Tick(65.0, 7))
    assert not was_told(left, Tick(65.0, 8))
    over = tick.skipped(MANY, "INVALID_ARGUMENT", "no such argument", 5.0, passes=False)
    assert due_tick(over, 65.0, 7, {"small_files": 201}) is None


def test_the_next_look_is_at_the_first_time_or_when_a_head_moves() -> None:
    other = msgspec.structs.replace(HOURLY, cron="30 10 * * *")
    paused = msgspec.structs.replace(HOURLY, cron="1 * * * *", pause=PauseRecord())
    agenda = AgendaRecord(due=0.0, decided=["one"])
    left = rested(agenda, [HOURLY, other, paused], 7, 10 * HOUR, waiting=False)
    assert left == AgendaRecord(due=10.5 * HOUR, decided=["one"])
    left = rested(agenda, [HOURLY, MANY], 7, 10 * HOUR, waiting=False)
    assert (left.due, left.watches, left.head, left.looked_at) == (11 * HOUR, True, 7, 10 * HOUR)
    left = rested(agenda, [MANY], 7, 10 * HOUR, waiting=True)
    assert left.due == 10 * HOUR + AGAIN_S
    assert rested(agenda, [], 7, 10 * HOUR, waiting=False) == AgendaRecord(decided=["one"])
