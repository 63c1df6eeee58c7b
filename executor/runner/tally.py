"""Counters of an executor, over all incarnations of its runner."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Runs by operation type, of which an executor serves a fixed set. Used only on its event loop."""

    running: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By type and end: ``settled``, ``over``, ``left``, or ``broken`` if nothing can be launched any more."""
