"""What an executor has done so far, over all incarnations of its runner."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Runs by operation type, of which an executor serves a fixed set. Of its event loop alone."""

    running: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By type and by how: ``settled``, ``over``, ``left``, or ``broken`` where nothing can be launched."""
