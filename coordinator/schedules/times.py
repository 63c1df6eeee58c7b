"""Cron expressions: five fields, in UTC, where no hour is missing or repeated."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from distop.errors import InvalidArgument

MAX_LENGTH = 100
"""Longest expression; evaluating a longer one costs more."""

_ALLOWED = re.compile(r"[0-9A-Za-z*,/#-]+(?: [0-9A-Za-z*,/#-]+){4}")


def check_cron(text: str, now: float) -> str:
    """An expression in canonical form; raises :class:`~distop.errors.InvalidArgument` if it is invalid, or
    has no time after ``now`` (seconds since the Unix epoch)."""
    cron = " ".join(text.split())
    try:
        if len(cron) > MAX_LENGTH or not _ALLOWED.fullmatch(cron):
            raise CronSimError("five fields are required: minute, hour, day of month, month, day of week")
        if next_tick(cron, now) == math.inf:
            raise CronSimError("there is no such time")
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        why = str(error) or "a field is invalid"
        raise InvalidArgument(
            f"{text[:MAX_LENGTH]!r} is not a cron expression: {why}",
            hint="such as '30 3 * * *' for half past three every night, '0 * * * SUN' for every hour of "
            "Sundays; times are in UTC",
            details={"field": "cron"},
        ) from None
    return cron


def next_tick(cron: str, after: float) -> float:
    """The first time of an expression after a time, both in seconds since the Unix epoch; infinity: there is
    none in 50 years."""
    times = CronSim(cron, datetime.fromtimestamp(int(after), UTC))
    return found.timestamp() if (found := next(times, None)) is not None else math.inf


def last_tick(cron: str, until: float) -> float:
    """The last time of an expression up to and with a time, both in seconds since the Unix epoch."""
    return next(CronSim(cron, datetime.fromtimestamp(int(until) + 1, UTC), reverse=True)).timestamp()
