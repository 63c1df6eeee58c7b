"""The times of schedules: cron expressions of five fields, in UTC or another time zone, and templates that
show the time of a tick in that zone.

Where the clocks of a zone are put forward or back, the rule is that of Debian's cron. A time that the clock
jumps over comes at that moment, several of them once; a time that the clock shows twice comes the first time
only. But an expression whose minute or hour begins with ``*`` comes at every moment whose local time matches:
``0 * * * *`` once in each hour that passes.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from distop.errors import InvalidArgument, PreconditionFailed
from distop.proto import templates

MADE_UP_S = 6 * 86_400.0
"""How long a tick can be made up for. Ids are remembered for a day longer: clocks differ."""

MAX_LENGTH = 100
"""Longest expression; evaluating a longer one costs more."""

_ALLOWED = re.compile(r"[0-9A-Za-z*,/#-]+(?: [0-9A-Za-z*,/#-]+){4}")

_ZONE = re.compile(r"(?!localtime|posix|right)[A-Za-z][A-Za-z0-9_+/-]{0,63}")
"""Names that mean the same on every host."""


def zone_of(name: str) -> tzinfo:
    """The time zone with a name of the IANA database; UTC if the name is empty.

    Raises :class:`~distop.errors.InvalidArgument` if it is unknown on this host.
    """
    if not name:
        return UTC
    zone = _zone(name) if _ZONE.fullmatch(name) else None
    if zone is None:
        raise InvalidArgument(
            f"this coordinator knows no time zone {name[:64]!r}",
            hint="give a name such as Europe/Berlin"
            if _zone("Europe/Berlin") is not None
            else "its host has no time zones: install the package tzdata there",
            details={"field": "timezone"},
        )
    return zone


def _zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no such file, a damaged one, a folder
        return None


def check_cron(text: str, now: float, timezone: str = "") -> str:
    """An expression in canonical form; raises :class:`~distop.errors.InvalidArgument` if it or the time zone
    is invalid, or if it has no time after ``now`` (seconds since the Unix epoch)."""
    zone_of(timezone)
    cron = " ".join(text.split())
    try:
        if len(cron) > MAX_LENGTH or not _ALLOWED.fullmatch(cron):
            raise CronSimError("five fields are required: minute, hour, day of month, month, day of week")
        if next_tick(cron, now, timezone) == math.inf:
            raise CronSimError("there is no such time")
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        why = str(error) or "a field is invalid"
        raise InvalidArgument(
            f"{text[:MAX_LENGTH]!r} is not a cron expression: {why}",
            hint="such as '30 3 * * *' for half past three every night, '0 * * * SUN' for every hour of "
            "Sundays; in UTC, unless a time zone is given",
            details={"field": "cron"},
        ) from None
    return cron


def next_tick(cron: str, after: float, timezone: str = "") -> float:
    """The first time of an expression after a time, both in seconds since the Unix epoch; infinity: there is
    none in 50 years."""
    times = CronSim(cron, datetime.fromtimestamp(int(after), zone_of(timezone)))
    # In the second of two equal hours the library begins with the times of the first, which are over.
    return next((tick for time in times if (tick := time.timestamp()) > after), math.inf)


def past_tick(cron: str, text: str, now: float, timezone: str = "") -> float:
    """The time of an expression that a caller has written, in seconds since the Unix epoch.

    Parameters
    ----------
    text:
        In ISO 8601; without a distance from UTC it is in the time zone.

    Raises
    ------
    InvalidArgument
        It is no time of the expression.
    PreconditionFailed
        It is in the future, or too long ago.
    """
    details = {"field": "tick"}
    try:
        at = datetime.fromisoformat(text)
        tick = (at if at.tzinfo is not None else at.replace(tzinfo=zone_of(timezone))).timestamp()
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{text[:50]!r} is not a time", hint="write one such as 2026-03-29T06:00", details=details
        ) from None
    if tick > now:
        raise PreconditionFailed(f"{text} is in the future: the schedule starts it then", details=details)
    if tick < now - MADE_UP_S:
        raise PreconditionFailed(
            f"{text} is too long ago: what was started is known for {MADE_UP_S / 86_400:g} days",
            hint="start the operation yourself: distop operation start",
            details=details,
        )
    if (following := next_tick(cron, tick - 1.0, timezone)) != tick:
        shown = datetime.fromtimestamp(following, zone_of(timezone)) if following < math.inf else "never"
        raise InvalidArgument(f"{text} is not a time of {cron!r}, the next is {shown}", details=details)
    return tick


def last_tick(cron: str, after: float, until: float, timezone: str = "") -> float | None:
    """The last time of an expression after one time and up to another, all in seconds since the Unix epoch;
    ``None``: there is none."""
    tick = next_tick(cron, after, timezone)
    if tick > until:
        return None
    back = CronSim(cron, datetime.fromtimestamp(int(until) + 1, zone_of(timezone)), reverse=True)
    last = next(back, None)
    if last is not None and last.timestamp() <= until:
        tick = max(tick, last.timestamp())
    # Backwards the library may pass over times of a repeated hour: no more than those of one day.
    while (following := next_tick(cron, tick, timezone)) <= until:
        tick = following
    return tick


def rendered(value: Any, tick: float, timezone: str, field: str = "argument") -> Any:
    """A value with the templates in its texts replaced, at any depth.

    ``tick`` is in seconds since the Unix epoch; an empty time zone is UTC. Raises the errors of
    :func:`distop.proto.templates.rendered`.
    """
    shown = datetime.fromtimestamp(int(tick), zone_of(timezone))
    return templates.rendered(value, {"tick": shown}, field)
