"""Options about limits say what holds without them."""

from __future__ import annotations

from distop.cli.options.limits import LimitOptions
from distop.coordinator.api.limits import Limits


def test_without_options_the_limits_are_those_of_the_coordinator() -> None:
    assert LimitOptions().limits() == Limits()


def test_each_option_is_a_limit_of_its_own() -> None:
    given = LimitOptions(caller_calls=1, caller_streams=2, caller_starts=3.0, all_calls=4, all_streams=5)
    assert given.limits() == Limits(calls_each=1, streams_each=2, starts_per_s=3.0, calls=4, streams=5)
