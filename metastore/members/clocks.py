"""The clock of local deadlines."""

from __future__ import annotations

import time


def boot_clock() -> float:
    """Seconds since the machine started; it counts on while the machine is suspended, if the system can.

    The same for all processes of a host, so that one may tell another until when something holds.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
