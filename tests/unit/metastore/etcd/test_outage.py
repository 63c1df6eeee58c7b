"""What the log says of an etcd that is away."""

from typing import Any

import pytest

from distop.metastore.etcd import outage
from distop.metastore.etcd.outage import Outage

WHY = "etcd at a:1 does not answer: Connection refused"


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    lines = [vars(record) for record in caplog.records if record.name == outage.__name__]
    return [(line["msg"], line["for_s"] if "for_s" in line else line["after_s"]) for line in lines]


def test_an_outage_has_a_line_at_its_beginning_each_minute_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    etcd = Outage(time)
    etcd.answered()
    for _ in range(1500):  # as many retries as many loops make
        etcd.failed(WHY)
        time.now += 0.1
    etcd.answered()
    etcd.answered()
    lines = [("etcd_does_not_answer", for_s) for for_s in (1, 61, 121)] + [("etcd_answers_again", 150)]
    assert [(event, round(seconds)) for event, seconds in said(caplog)] == lines


def test_what_another_member_answers_soon_or_is_only_slow_is_no_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    etcd = Outage(time)
    etcd.failed(WHY)
    time.now += 0.5
    etcd.answered()
    sent_at = time.now
    time.now += 4.9
    etcd.answered()
    time.now += 0.1
    etcd.failed(WHY, sent_at=sent_at)  # others have had answers since it was sent
    time.now += 0.1
    etcd.answered()
    assert said(caplog) == []


def test_an_outage_that_is_noticed_late_counts_from_the_call_that_was_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    etcd = Outage(time)
    sent_at = time.now
    time.now += 5.0
    etcd.failed(WHY, sent_at=sent_at)
    assert said(caplog) == [("etcd_does_not_answer", 5.0)]
