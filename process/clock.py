"""The clock of local deadlines."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Seconds since the machine started, including suspension, if the system supports that.

    The same for all processes of a host, so that they can exchange deadlines.
    """
    return time.clock_gettime(_CLOCK)
