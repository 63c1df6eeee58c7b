"""Templates of schedules: they show the time of a tick in the time zone of its schedule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from distop.coordinator.schedules.times import zone_of
from distop.proto import templates


def rendered(value: Any, tick: float, timezone: str, field: str = "argument") -> Any:
    """A value with the templates in its texts replaced, at any depth.

    ``tick`` is in seconds since the Unix epoch; an empty time zone is UTC. Raises the errors of
    :func:`distop.proto.templates.rendered`.
    """
    shown = datetime.fromtimestamp(int(tick), zone_of(timezone))
    return templates.rendered(value, {"tick": shown}, field)
