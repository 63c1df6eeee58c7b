"""What pages draw: where things lie on a line of time. Pure: messages in, shares of a width out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distop.coordinator.views.why import seconds_of
from distop.proto import distop_pb2 as pb

WIDTH = 1000.0
"""The width of a drawing, in its own units: a browser scales it."""

_BEGINS = {
    "started": "waiting",
    "taken": "running",
    "waits again": "waiting",
    "sealed": "completing",
    "parked": "parked",
    "decided": "completing",
}
"""What an operation does after an event; after others it goes on with what it did."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What an operation did for a while."""

    name: str
    seconds: float
    at: float
    """Where it begins, and how wide it is, in units of the drawing."""
    width: float


def phases(events: Iterable[pb.Event], end: float) -> list[Phase]:
    """The phases of an operation up to ``end``, in seconds since the epoch; none without events."""
    begun: list[tuple[str, float]] = []
    for event in events:
        name = _BEGINS.get(event.what)
        if name is not None and (not begun or begun[-1][0] != name):
            # By the clocks of several hosts: no phase begins before the one that it follows.
            begun.append((name, max(seconds_of(event.at), begun[-1][1] if begun else 0.0)))
    if not begun:
        return []
    first = begun[0][1]
    scale = WIDTH / max(end - first, 1e-3)
    ends = [*(at for _, at in begun[1:]), end]
    return [
        Phase(name, until - at, (at - first) * scale, max(until - at, 0.0) * scale)
        for (name, at), until in zip(begun, ends, strict=True)
    ]
