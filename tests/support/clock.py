"""How long the machine stood still: a thread asks for short sleeps, and sees how much longer they took."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field

TICK_S = 0.05
NOTED_S = 0.1
"""Shorter pauses than this are the ordinary ones of a busy machine."""


@dataclass
class PauseClock:
    """Of one process: no timer of it can have been on time while this thread was late."""

    _pauses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=1_000))
    """When each ended, and how long it was."""

    def start(self) -> None:
        """For the life of the process; a forked child has none."""
        threading.Thread(target=self._run, name="pause-clock", daemon=True).start()

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(TICK_S)
            now = time.monotonic()
            self.note(now, now - last - TICK_S)
            last = now

    def note(self, ended: float, pause_s: float) -> None:
        if pause_s > NOTED_S:
            self._pauses.append((ended, pause_s))

    def longest_since(self, began: float) -> float:
        """The longest pause, in seconds, that ended after a moment of the monotonic clock; 0.0: none."""
        return max((pause_s for ended, pause_s in tuple(self._pauses) if ended >= began), default=0.0)
