"""What the log says of the error of something that is tried again."""

import logging

import pytest

from distop.errors import EtcdDenied, EtcdUnavailable, OutcomeUnknown
from distop.process.loop import log_failure


@pytest.mark.parametrize(
    ("error", "level", "has_trace"),
    [
        (EtcdUnavailable(), logging.DEBUG, False),
        (ExceptionGroup("of a task group", [EtcdUnavailable()]), logging.DEBUG, False),
        (EtcdDenied(), logging.WARNING, False),
        (OutcomeUnknown(), logging.WARNING, False),
        (KeyError("a defect"), logging.ERROR, True),
    ],
)
def test_a_defect_has_its_trace_and_an_etcd_that_is_away_is_for_debugging(
    error: Exception, level: int, has_trace: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log_failure(logging.getLogger("distop.test"), "follower_failed", error, follower="one")
    [line] = caplog.records
    assert (line.levelno, line.exc_info is not None) == (level, has_trace)
